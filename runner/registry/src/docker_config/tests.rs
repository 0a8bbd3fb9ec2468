//! Docker config files as people write them: every spelling, every form, every mistake.

use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, Engine as _};
use porch_fn_image::Image;
use serde_json::json;

use super::{Credential, DockerConfig};

const PLANTED: &str = "pl4ntedS3cret";

fn image(reference: &str) -> Image {
    Image::parse(reference, "").unwrap()
}

fn parse(config: &serde_json::Value) -> Result<DockerConfig, String> {
    DockerConfig::parse(config.to_string().as_bytes())
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
fn each_spelling_of_a_host_is_that_host() {
    for key in [
        "https://index.docker.io/v1/",
        "https://index.docker.io/v1",
        "https://index.docker.io",
        "http://index.docker.io/v1/",
        "HTTPS://Index.Docker.IO/v2/",
        "index.docker.io/v1/",
        "docker.io",
        "docker.io/",
        "https://registry-1.docker.io/v2/",
    ] {
        assert_eq!(user_for(&[(key, "me")], "me/function:v1"), Some("me".into()), "{key}");
        assert_eq!(user_for(&[(key, "me")], "ubuntu"), Some("me".into()), "{key}");
        assert_eq!(user_for(&[(key, "me")], "ghcr.io/ubuntu"), None, "{key}");
    }
    for (key, reference, found) in [
        ("r.example.com", "r.example.com/a/b", true),
        ("r.example.com", "r.example.com:443/a", true),
        ("r.example.com", "r.example.com:5000/a", false),
        ("http://r.example.com/", "r.example.com/a", true),
        ("r.example.com:443", "r.example.com/a", true),
        ("R.EXAMPLE.com/v2/", "r.example.com/a", true),
        ("http://r.example.com:80/v1/", "r.example.com/a", true),
        ("r.example.com:5000", "r.example.com:5000/a", true),
        ("https://r.example.com:5000/v2/", "r.example.com:5000/a", true),
        ("[::1]:5000", "[::1]:5000/a", true),
    ] {
        assert_eq!(user_for(&[(key, "me")], reference).is_some(), found, "{key} {reference}");
    }
}

#[test]
fn the_longest_path_wins_and_a_star_stands_for_a_part_of_one_label() {
    let entries = [
        ("r.example.com", "host"),
        ("r.example.com/team", "team"),
        ("https://r.example.com/team/project/", "project"),
        ("r.example.com/v1", "v1"),
        ("https://r.example.com/v1/v2", "second spelling"),
        ("*.example.com", "star"),
        ("*.dkr-*.aws.com:5000", "aws"),
    ];
    for (reference, user) in [
        ("r.example.com/other/x", Some("host")),
        ("r.example.com/team/x", Some("team")),
        ("r.example.com/team", Some("team")),
        ("r.example.com/teams/x", Some("host")),
        ("r.example.com/team/project/x:v1", Some("project")),
        ("r.example.com/team/projects/x", Some("team")),
        // Without scheme and slash `v1` is a repository, not the API's version. Of two spellings of
        // one place the first counts.
        ("r.example.com/v1/x", Some("v1")),
        ("a.example.com/x", Some("star")),
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
    let error = |text: &str| DockerConfig::parse(text.as_bytes()).unwrap_err();
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
