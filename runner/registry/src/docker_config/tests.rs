//! Docker config files as people write them: every spelling, every form, every mistake.

use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, Engine as _};
use porch_fn_image::Image;
use proptest::prelude::*;
use serde_json::json;

use super::{Credential, DockerConfig};

const PLANTED: &str = "pl4ntedS3cret";

fn image(reference: &str) -> Image {
    Image::parse(reference, "").unwrap()
}

fn parse(config: &serde_json::Value) -> Result<DockerConfig, String> {
    DockerConfig::parse(config.to_string().as_bytes()).map_err(|error| error.to_string())
}

/// The user found for the image, each entry having the user that is given with its key.
fn user_for(entries: &[(&str, &str)], reference: &str) -> Option<String> {
    let auths: serde_json::Map<_, _> = entries
        .iter()
        .map(|(key, user)| ((*key).to_owned(), json!({"username": user, "password": PLANTED})))
        .collect();
    let config = parse(&json!({ "auths": auths })).unwrap();
    config.lookup(&image(reference)).map(|credential| match credential {
        Credential::Basic { user, .. } => user.clone(),
        other => panic!("{other:?}"),
    })
}

#[test]
fn each_spelling_of_docker_hub_is_docker_hub() {
    for key in [
        "https://index.docker.io/v1/",
        "https://index.docker.io/v1",
        "https://index.docker.io/v2/",
        "https://index.docker.io/",
        "https://index.docker.io",
        "http://index.docker.io/v1/",
        "HTTPS://Index.Docker.IO/v1/",
        "index.docker.io/v1/",
        "index.docker.io",
        "docker.io",
        "docker.io/",
        "registry-1.docker.io",
        "https://registry-1.docker.io/v2/",
    ] {
        assert_eq!(user_for(&[(key, "me")], "me/function:v1"), Some("me".into()), "{key}");
        assert_eq!(user_for(&[(key, "me")], "ubuntu"), Some("me".into()), "{key}");
        assert_eq!(user_for(&[(key, "me")], "ghcr.io/ubuntu"), None, "{key}");
    }
}

#[test]
fn each_spelling_of_a_host_is_that_host() {
    for key in [
        "r.example.com",
        "https://r.example.com",
        "http://r.example.com/",
        "r.example.com:443",
        "R.EXAMPLE.com/v2/",
    ] {
        assert_eq!(user_for(&[(key, "me")], "r.example.com/a/b"), Some("me".into()), "{key}");
        assert_eq!(user_for(&[(key, "me")], "r.example.com:443/a/b"), Some("me".into()), "{key}");
        assert_eq!(user_for(&[(key, "me")], "r.example.com:5000/a/b"), None, "{key}");
    }
    assert_eq!(user_for(&[("http://r.example.com:80/v1/", "me")], "r.example.com/a"), Some("me".into()));
    assert_eq!(user_for(&[("r.example.com:5000", "me")], "r.example.com:5000/a"), Some("me".into()));
    assert_eq!(
        user_for(&[("https://r.example.com:5000/v2/", "me")], "r.example.com:5000/a"),
        Some("me".into())
    );
    assert_eq!(user_for(&[("[::1]:5000", "me")], "[::1]:5000/a"), Some("me".into()));
}

#[test]
fn the_longest_path_wins_on_its_boundaries() {
    let entries = [
        ("r.example.com", "host"),
        ("r.example.com/team", "team"),
        ("https://r.example.com/team/project/", "project"),
        ("r.example.com/v1", "v1"),
    ];
    for (reference, user) in [
        ("r.example.com/other/x", "host"),
        ("r.example.com/team/x", "team"),
        ("r.example.com/team", "team"),
        ("r.example.com/teams/x", "host"),
        ("r.example.com/team/project", "project"),
        ("r.example.com/team/project/x:v1", "project"),
        ("r.example.com/team/projects/x", "team"),
        // Without scheme and slash `v1` is a repository, not the API's version.
        ("r.example.com/v1/x", "v1"),
    ] {
        assert_eq!(user_for(&entries, reference), Some(user.into()), "{reference}");
    }
}

#[test]
fn a_star_stands_for_a_part_of_one_label() {
    let entries = [("*.example.com", "star"), ("r.example.com", "exact"), ("*.dkr-*.aws.com:5000", "aws")];
    for (reference, user) in [
        ("a.example.com/x", Some("star")),
        ("r.example.com/x", Some("exact")),
        ("a.b.example.com/x", None),
        ("a.example.com:5000/x", None),
        ("1.dkr-eu.aws.com:5000/x", Some("aws")),
        ("1.dkr.aws.com:5000/x", None),
    ] {
        assert_eq!(user_for(&entries, reference).as_deref(), user, "{reference}");
    }
}

#[test]
fn an_entry_is_read_in_each_of_its_forms() {
    let padded = BASE64_STANDARD.encode("me:pass:w0rds");
    let bare = BASE64_STANDARD_NO_PAD.encode("me:pass:w0rds");
    assert_ne!(padded, bare);
    let with_nul = BASE64_STANDARD.encode("me:pass:w0rds\0\0");
    let of = |entry: serde_json::Value| {
        let config = parse(&json!({"auths": {"r.example.com": entry}})).unwrap();
        config.lookup(&image("r.example.com/x")).cloned()
    };
    let shown = |credential: &Credential| match credential {
        Credential::Basic { user, password } => format!("basic {user} {}", password.expose()),
        Credential::Identity { token } => format!("identity {}", token.expose()),
        Credential::Bearer { token } => format!("bearer {}", token.expose()),
    };
    for (entry, expected) in [
        (json!({"auth": padded}), Some("basic me pass:w0rds")),
        (json!({"auth": bare}), Some("basic me pass:w0rds")),
        (json!({"auth": with_nul}), Some("basic me pass:w0rds")),
        (json!({"auth": format!("{padded}\n")}), Some("basic me pass:w0rds")),
        (json!({"username": "me", "password": "p"}), Some("basic me p")),
        (json!({"username": "other", "password": "p", "auth": bare}), Some("basic me pass:w0rds")),
        (json!({"auth": bare, "identitytoken": "it"}), Some("identity it")),
        (json!({"username": "<token>", "identitytoken": "it"}), Some("identity it")),
        (json!({"registrytoken": "rt"}), Some("bearer rt")),
        (json!({"email": "me@example.com"}), None),
        (json!({}), None),
    ] {
        assert_eq!(of(entry.clone()).as_ref().map(shown).as_deref(), expected, "{entry}");
    }
}

#[test]
fn what_is_wrong_is_named_without_its_content() {
    let entry = |entry: serde_json::Value| json!({"auths": {"r.example.com": entry}});
    for (config, expected) in [
        (entry(json!(PLANTED)), r#"auths, entry "r.example.com": it is not a JSON object"#),
        (entry(json!({"auth": [PLANTED]})), r#"auths, entry "r.example.com": auth is not a string"#),
        (entry(json!({"auth": "%%"})), r#"auths, entry "r.example.com": auth is not base64"#),
        (
            entry(json!({"auth": BASE64_STANDARD.encode(PLANTED)})),
            r#"auths, entry "r.example.com": auth is not user:password in base64"#,
        ),
        (
            entry(json!({"auth": BASE64_STANDARD.encode([0xff, b':'])})),
            r#"auths, entry "r.example.com": auth is not UTF-8 in base64"#,
        ),
        (
            entry(json!({"password": PLANTED})),
            r#"auths, entry "r.example.com": it has a password without a username"#,
        ),
        (
            entry(json!({"username": PLANTED})),
            r#"auths, entry "r.example.com": it has a username without a password"#,
        ),
        (
            entry(json!({"registrytoken": format!("{PLANTED}\n")})),
            r#"auths, entry "r.example.com": registrytoken has characters that no token may have"#,
        ),
        (json!(PLANTED), "it is not a JSON object"),
        (json!({"auths": PLANTED}), "its auths is not a JSON object"),
        (json!({"credHelpers": PLANTED}), "its credHelpers is not a JSON object"),
        (json!({"credsStore": {"x": PLANTED}}), "its credsStore is not a string"),
        (
            json!({"auths": {"a.example.com": {}, format!("https://me:{PLANTED}@r.example.com"): {}}}),
            "auths, entry number 2: its key may not have a user, a query or a fragment",
        ),
        (json!({"auths": {"": {}}}), r#"auths, entry "": its key has no registry"#),
        (
            json!({"auths": {"ftp://x": {}}}),
            r#"auths, entry "ftp://x": its key is neither a registry nor an http or https URL"#,
        ),
    ] {
        assert_eq!(parse(&config).unwrap_err(), expected);
    }
    let error = |text: &str| DockerConfig::parse(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(error("{\"auths\": {\n  \"a\" }}"), "line 2, column 7: this is not JSON");
    assert_eq!(error("{\"auths\": {"), "line 1, column 11: the JSON ends too early");
}

#[test]
fn what_leaves_credentials_to_programs_is_seen() {
    let helper = |config: serde_json::Value| parse(&config).unwrap().helper;
    assert_eq!(helper(json!({"credsStore": "desktop"})), Some("credsStore"));
    assert_eq!(helper(json!({"credHelpers": {"gcr.io": "gcloud"}})), Some("credHelpers"));
    assert_eq!(helper(json!({"credHelpers": {}, "credsStore": ""})), None);
    assert_eq!(helper(json!({"auths": {}})), None);
}

#[test]
fn debug_shows_no_secret() {
    let auth = BASE64_STANDARD.encode(format!("me:{PLANTED}"));
    let config = parse(&json!({"auths": {
        "a.example.com": {"auth": auth},
        "b.example.com": {"identitytoken": PLANTED},
        "c.example.com": {"registrytoken": PLANTED},
    }}))
    .unwrap();
    let text = format!("{config:?}");
    assert!(text.contains("a.example.com") && text.contains("[secret]"), "{text}");
    assert!(!text.contains(PLANTED) && !text.contains(&auth), "{text}");
}

/// JSON of about the right form, with the planted secret anywhere but in a key.
fn nearly_a_config() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(json!(PLANTED)),
        Just(json!(BASE64_STANDARD.encode(format!("me:{PLANTED}")))),
        Just(json!(null)),
        Just(json!(7)),
        Just(json!(true)),
        "\\PC{0,8}".prop_map(|text| json!(text)),
    ];
    let key = prop_oneof![
        prop::sample::select(vec![
            "auths",
            "auth",
            "username",
            "password",
            "identitytoken",
            "registrytoken",
            "credsStore",
            "credHelpers",
            "https://index.docker.io/v1/",
            "r.example.com/a",
            "*.example.com",
            "a@b",
            "v1/",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}",
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::Array),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = DockerConfig::parse(&bytes);
    }

    #[test]
    fn no_error_has_a_secret(config in nearly_a_config(), cut in any::<prop::sample::Index>(), wrap in any::<bool>()) {
        let config = if wrap { json!({ "auths": config }) } else { config };
        let mut text = config.to_string().into_bytes();
        for bytes in [text.clone(), { text.truncate(cut.index(text.len())); text }] {
            match DockerConfig::parse(&bytes) {
                Ok(config) => {
                    config.lookup(&image("r.example.com/a/b"));
                }
                Err(error) => {
                    let shown = format!("{error} {error:?}");
                    prop_assert!(!shown.contains(PLANTED));
                }
            }
        }
    }

    #[test]
    fn a_host_finds_its_own_entry_and_no_other(host in "[a-z]{1,8}(\\.[a-z]{1,5}){1,3}(:[1-9][0-9]{1,3})?", path in "[a-z]{1,8}(/[a-z]{1,8}){0,3}") {
        let entries = [(host.as_str(), "me")];
        let this = format!("{host}/{path}");
        prop_assert_eq!(user_for(&entries, &this), Some("me".to_owned()));
        let other = format!("x{host}/{path}");
        prop_assert_eq!(user_for(&entries, &other), None);
        let longer = [(host.as_str(), "host"), (this.as_str(), "path")];
        prop_assert_eq!(user_for(&longer, &this), Some("path".to_owned()));
    }
}
