//! Challenges and tokens as registries write them, good and bad.

use std::time::Duration;

use proptest::prelude::*;

use super::{BearerChallenge, Challenge, challenge, parse_token};

#[allow(clippy::unnecessary_wraps, reason = "as it is compared")]
fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
    Some(Challenge::Bearer(BearerChallenge {
        realm: realm.into(),
        service: service.map(str::to_owned),
        scope: scope.map(str::to_owned),
    }))
}

#[test]
fn challenges_are_read() {
    let both = Some("s");
    for (headers, expected) in [
        (
            vec![r#"Bearer realm="https://a/t",service="s",scope="repository:x:pull""#],
            bearer("https://a/t", both, Some("repository:x:pull")),
        ),
        (vec![r#"bearer Realm = "https://a/t" , SERVICE="s""#], bearer("https://a/t", both, None)),
        (vec![r"Bearer realm=https://a/t,service=s"], bearer("https://a/t", both, None)),
        (
            vec![r#"Bearer realm="https://a/t",scope="repository:x:pull,push repository:y:pull""#],
            bearer("https://a/t", None, Some("repository:x:pull,push repository:y:pull")),
        ),
        (vec![r#"Bearer realm="https://a/\"t\"",service="""#], bearer("https://a/\"t\"", None, None)),
        (vec![r#"Basic realm="Registry""#], Some(Challenge::Basic)),
        (vec!["BASIC"], Some(Challenge::Basic)),
        (vec!["Negotiate", r#"Basic realm="x", charset="UTF-8""#], Some(Challenge::Basic)),
        (vec![r#"Basic realm="x", Bearer realm="https://a/t""#], bearer("https://a/t", None, None)),
        (vec![r#"Basic realm="x""#, r#"Bearer realm="https://a/t""#], bearer("https://a/t", None, None)),
        (vec![r#"Negotiate, Basic realm="Bearer realm=x""#], Some(Challenge::Basic)),
        (vec![r#"Bearer service="s""#], None),
        (vec!["Bearer"], None),
        (vec![r#"Bearer realm="https://a/t"#], None),
        (vec![r#"Bearer realm="https://a/t\"#], None),
        (vec!["=x"], None),
        (vec![""], None),
        (vec![], None),
    ] {
        assert_eq!(challenge(headers.iter().copied()), expected, "{headers:?}");
    }
    let long = format!("Bearer realm=\"https://a/{}\"", "t".repeat(9 << 10));
    assert_eq!(challenge([long.as_str()]), None);
}

#[test]
fn tokens_are_read() {
    for (body, secret, usable_for) in [
        (r#"{"token":"t","expires_in":300,"issued_at":"x"}"#, "t", 270),
        (r#"{"access_token":"t"}"#, "t", 54),
        (r#"{"token":"","access_token":"t","expires_in":"100"}"#, "t", 90),
        (r#"{"token":"t","access_token":"u","expires_in":0}"#, "t", 54),
        (r#"{"token":"t","expires_in":-5}"#, "t", 54),
        (r#"{"token":"t","expires_in":null}"#, "t", 54),
        (r#"{"token":"t","expires_in":18446744073709551615}"#, "t", 77760),
    ] {
        let token = parse_token(body.as_bytes()).unwrap();
        assert_eq!(
            (token.secret.expose(), token.usable_for),
            (secret, Duration::from_secs(usable_for)),
            "{body}"
        );
    }
}

#[test]
fn what_is_no_token_is_told_without_its_content() {
    for (body, reason) in [
        ("{}", "it has neither token nor access_token"),
        (r#"{"token":"pl4nted\n"}"#, "it has characters that no token may have"),
        (r#"{"token":["pl4nted"]}"#, "a field is missing or of the wrong type (line 1, column 9)"),
        (r#"{"token":"pl4nted"#, "the JSON ends too early (line 1, column 17)"),
        ("pl4nted", "it is not JSON (line 1, column 1)"),
    ] {
        let error = parse_token(body.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, format!("the image's registry sent a malformed token: {reason}"));
    }
}

proptest! {
    #[test]
    fn any_header_is_an_answer(text in "\\PC{0,200}", pieces in prop::collection::vec(prop::sample::select(vec!["Bearer", "Basic", " ", ",", "=", "\"", "\\", "realm", "scope", "é"]), 0..20)) {
        let _ = challenge([text.as_str(), pieces.concat().as_str()]);
    }

    #[test]
    fn what_was_quoted_comes_back(realm in "[ -~]{1,40}", scope in "[ -~]{1,40}") {
        let quote = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let header = format!("Basic realm=\"x\", Bearer realm=\"{}\",scope=\"{}\"", quote(&realm), quote(&scope));
        prop_assert_eq!(challenge([header.as_str()]), bearer(&realm, None, Some(&scope)));
    }

    #[test]
    fn any_token_answer_is_told_without_its_content(body in prop::collection::vec(any::<u8>(), 0..200), field in "\\PC{0,20}") {
        let _ = parse_token(&body);
        let wrong = serde_json::json!({"token": {"pl4nted": field}, "access_token": "pl4nted"}).to_string();
        prop_assert!(!parse_token(wrong.as_bytes()).unwrap_err().to_string().contains("pl4nted"));
    }
}
