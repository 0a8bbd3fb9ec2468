//! Docker config files in all spellings and forms, and with mistakes.

use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, Engine as _};
use serde_json::json;

use super::*;

const PLANTED: &str = "pl4ntedS3cret";

fn image(reference: &str) -> Image {
    Image::parse(reference, "").unwrap()
}

fn parse(config: &Value) -> Result<DockerConfig, String> {
    DockerConfig::parse(config.to_string().as_bytes())
}

/// Returns the user found for the image. `entries` are pairs of key and user.
fn user_for(entries: &[(&str, &str)], reference: &str) -> Option<String> {
    let entry =
        |(key, user): &(&str, &str)| ((*key).to_owned(), json!({"username": user, "password": PLANTED}));
    let auths: Map<_, _> = entries.iter().map(entry).collect();
    let config = parse(&json!({ "auths": auths })).unwrap();
    config.lookup(&image(reference)).map(|credential| match credential {
        Credential::Basic { user, .. } => user.clone(),
        other @ Credential::Identity { .. } => panic!("{other:?}"),
    })
}

#[test]
fn all_spellings_of_a_host_match_it() {
    let docker_hub = "https://index.docker.io/v1/ https://index.docker.io/v1 https://index.docker.io \
                      http://index.docker.io/v1/ HTTPS://Index.Docker.IO/v2/ index.docker.io/v1/ docker.io docker.io/ \
                      https://registry-1.docker.io/v2/";
    for key in docker_hub.split(' ') {
        for (reference, found) in [("me/function:v1", true), ("ubuntu", true), ("ghcr.io/ubuntu", false)] {
            assert_eq!(user_for(&[(key, "me")], reference).is_some(), found, "{key} {reference}");
        }
    }
    for (key, reference, found) in [
        ("r.example.com", "r.example.com/a/b", true),
        ("r.example.com", "r.example.com:443/a", true),
        ("r.example.com", "r.example.com:5000/a", false),
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
        // In `r.example.com/v1`, `v1` is a path. In `https://r.example.com/v1/v2`, only `v2` is the
        // API version. So both entries have the path `v1`, and the first one wins.
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
    for (entry, expected) in [
        (json!({"auth": padded}), "basic me pass:w0rds"),
        (json!({"auth": bare}), "basic me pass:w0rds"),
        (json!({"auth": BASE64_STANDARD.encode("me:pass:w0rds\0\0")}), "basic me pass:w0rds"),
        (json!({"auth": format!("{padded}\n")}), "basic me pass:w0rds"),
        (json!({"username": "me", "password": "p"}), "basic me p"),
        (json!({"username": "other", "password": "p", "auth": bare}), "basic me pass:w0rds"),
        (json!({"auth": bare, "identitytoken": "it"}), "identity it"),
        (json!({"username": "<token>", "identitytoken": "it"}), "identity it"),
        (json!({"email": "me@example.com"}), ""),
        (json!({"auth": null}), ""),
    ] {
        let config = parse(&json!({"auths": {"r.example.com": entry}})).unwrap();
        let found = match config.lookup(&image("r.example.com/x")) {
            Some(Credential::Basic { user, password }) => format!("basic {user} {password}"),
            Some(Credential::Identity { token }) => format!("identity {token}"),
            None => String::new(),
        };
        assert_eq!(found, expected, "{entry}");
    }
}

#[test]
fn an_error_names_the_entry_and_quotes_no_value() {
    for (entry, expected) in [
        (json!(PLANTED), "it is not a JSON object, or a field of it is not a string"),
        (json!({"auth": [PLANTED]}), "it is not a JSON object, or a field of it is not a string"),
        (json!({"auth": "%%"}), "auth is not base64"),
        (json!({"auth": BASE64_STANDARD.encode(PLANTED)}), "auth is not user:password in base64"),
        (json!({"auth": BASE64_STANDARD.encode([0xff, b':'])}), "auth is not UTF-8 in base64"),
        (json!({"password": PLANTED}), "it has a password without a username"),
        (json!({"username": PLANTED}), "it has a username without a password"),
        (
            json!({"username": "a:b", "password": PLANTED}),
            "username has a colon, which no user name may have",
        ),
    ] {
        let error = parse(&json!({"auths": {"r.example.com": entry}})).unwrap_err();
        assert_eq!(error, format!("auths, entry \"r.example.com\": {expected}"));
    }
    let secret_key = format!("https://me:{PLANTED}@r.example.com");
    let no_key = "its key is neither a registry nor an http or https URL";
    for (config, expected) in [
        (json!(PLANTED), "a field is missing or of the wrong type (line 1, column 15)".to_owned()),
        (json!({"auths": PLANTED}), "a field is missing or of the wrong type (line 1, column 24)".to_owned()),
        (
            json!({"credsStore": {"x": 1}}),
            "a field is missing or of the wrong type (line 1, column 14)".to_owned(),
        ),
        (
            json!({"auths": {"a.example.com": {}, secret_key: {}}}),
            "auths, entry number 2: its key may not have a user, a query or a fragment".to_owned(),
        ),
        (json!({"auths": {"": {}}}), format!("auths, entry \"\": {no_key}")),
        (json!({"auths": {"ftp://x": {}}}), format!("auths, entry \"ftp://x\": {no_key}")),
    ] {
        assert_eq!(parse(&config).unwrap_err(), expected);
    }
}

#[test]
fn helpers_are_found_in_the_order_of_docker() {
    for (config, key) in [
        (json!({"credsStore": "desktop"}), Some("credsStore")),
        (json!({"credHelpers": {"gcr.io": "gcloud"}}), Some("credHelpers")),
        (json!({"credHelpers": {}, "credsStore": ""}), None),
        (json!({"auths": {}}), None),
    ] {
        assert_eq!(parse(&config).unwrap().helper_key(), key);
    }
    let config = parse(&json!({
        "auths": {"gcr.io": {"auth": "bWU6cHc="}, "ghcr.io": {"auth": "bWU6cHc="}, "quay.io": {}},
        "credHelpers": {"https://index.docker.io/v1/": "hub", "gcr.io": "gcloud", "r.local:5000": "local"},
        "credsStore": "desktop",
    }))
    .unwrap();
    for (image, helper) in [
        ("gcr.io/a:v1", Some("gcloud")),
        ("docker.io/library/a:v1", Some("hub")),
        ("r.local:5000/a:v1", Some("local")),
        ("r.local/a:v1", Some("desktop")),
        ("quay.io/a:v1", Some("desktop")),
        ("ghcr.io/a:v1", None),
    ] {
        let image = Image::parse(image, "").unwrap();
        assert_eq!(config.helper(&image), helper, "{image:?}");
    }
    assert!(config.lookup(&Image::parse("ghcr.io/a:v1", "").unwrap()).is_some());
    assert_eq!(
        parse(&json!({"credHelpers": {"gcr.io": "x"}})).unwrap().helper(&Image::parse("a.b/c", "").unwrap()),
        None
    );
}
