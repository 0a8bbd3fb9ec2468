//! Valid and malformed challenges and tokens.

use super::{BearerChallenge, Challenge, parse_token};
use crate::address_class::AddressClass;

fn challenge(headers: &[&str]) -> Option<Challenge> {
    super::challenge(headers.iter().copied(), AddressClass::Public, false)
}

fn bearer(realm: &str, service: Option<&str>) -> Challenge {
    let (realm, service) = (realm.to_owned(), service.map(str::to_owned));
    Challenge::Bearer(BearerChallenge { realm, service, registry: AddressClass::Public, is_plain: false })
}

#[test]
fn challenges_are_read() {
    let with_service = || Some(bearer("https://a/t", Some("s")));
    let without = || Some(bearer("https://a/t", None));
    for (headers, expected) in [
        (&[r#"Bearer realm="https://a/t",service="s",scope="repository:x:pull""#][..], with_service()),
        (&[r#"bearer Realm = "https://a/t" , SERVICE="s""#], with_service()),
        (&[r#"Bearer realm="https://a/\"t\"",service="""#], Some(bearer("https://a/\"t\"", None))),
        // RFC 9110 allows any number of spaces.
        (&[r#"Bearer  realm="https://a/t",service="s""#], with_service()),
        (&[r#"Basic   realm="x",   Bearer   realm="https://a/t""#], without()),
        (
            &[r#"Bearer realm="https://a/t",service="two  spaces""#],
            Some(bearer("https://a/t", Some("two  spaces"))),
        ),
        (&[r#"Basic realm="Registry""#], Some(Challenge::Basic)),
        (&["BASIC"], Some(Challenge::Basic)),
        (&["Negotiate", r#"Basic realm="x", charset="UTF-8""#], Some(Challenge::Basic)),
        (&[r#"Basic realm="x", Bearer realm="https://a/t""#], without()),
        (&[r#"Basic realm="x""#, r#"Bearer realm="https://a/t""#], without()),
        (&[r#"Bearer realm="https://a"#, r#"Bearer realm="https://a/t""#], without()),
        (&[r#"Negotiate, Basic realm="Bearer realm=x""#], Some(Challenge::Basic)),
        (&[r#"Bearer service="s""#], None),
        (&["Bearer"], None),
        (&["=x"], None),
        (&[""], None),
        (&[], None),
    ] {
        assert_eq!(challenge(headers), expected, "{headers:?}");
    }
}

#[test]
fn tokens_are_read_and_errors_do_not_quote_them() {
    for (body, expected) in [
        (r#"{"token":"t","expires_in":300,"issued_at":"x"}"#, Ok("t")),
        (r#"{"access_token":"t"}"#, Ok("t")),
        (r#"{"token":"","access_token":"t"}"#, Ok("t")),
        (r#"{"token":"t","access_token":"u"}"#, Ok("t")),
        ("{}", Err("it has neither token nor access_token")),
        (r#"{"token":"pl4nted\n"}"#, Err("it has characters that no token may have")),
        (r#"{"token":["pl4nted"]}"#, Err("a field is missing or of the wrong type (line 1, column 9)")),
        (r#"{"token":"pl4nted"#, Err("the JSON ends too early (line 1, column 17)")),
        ("pl4nted", Err("it is not JSON (line 1, column 1)")),
    ] {
        let found = parse_token(body.as_bytes());
        let text = |reason| format!("the image's registry sent a malformed token: {reason}");
        let expected = expected.map(str::to_owned).map_err(text);
        assert_eq!(found.map_err(|error| error.to_string()), expected, "{body}");
    }
}
