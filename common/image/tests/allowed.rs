//! Tests of what patterns match: a table, and a comparison with the simplest matcher.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use porch_fn_image::{AllowedImages, glob_matches};
use proptest::prelude::*;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn list(patterns: &[&str]) -> AllowedImages {
    AllowedImages::parse(patterns, PREFIX).unwrap()
}

#[test]
fn patterns_match_part_by_part() {
    let pinned = format!("ghcr.io/a/b@{DIGEST}");
    let both = format!("ghcr.io/a/b:v1@{DIGEST}");
    for (pattern, fit, do_not) in [
        // Stars and slashes.
        ("ghcr.io/a/*", &["ghcr.io/a/b:v1", &pinned][..], &["ghcr.io/a/b/c", "ghcr.io/ab", "b"][..]),
        ("ghcr.io/a/**", &["ghcr.io/a/b", "ghcr.io/a/b/c:v1", &both], &["ghcr.io/ab/c", "gcr.io/a/b"]),
        ("ghcr.io/**/b", &["ghcr.io/a/b", "ghcr.io/a/c/b:v9"], &["ghcr.io/b", "ghcr.io/a/b/c"]),
        ("ghcr.io/*/b", &["ghcr.io/a/b"], &["ghcr.io/a/c/b"]),
        ("ghcr.io/a/b", &["ghcr.io/a/b", "GHCR.io/a/b:x"], &["ghcr.io/a/bc", "ghcr.io/a/b/c", "ghcr.io/a"]),
        ("**", &["f", "x/y", "localhost:5000/f:v1", &both], &[]),
        ("**/b:v1", &["ghcr.io/a/b:v1", "b:v1"], &["ghcr.io/a/b:v2", "ghcr.io/a/ab:v1"]),
        // Registries.
        (
            "*.example.com/**",
            &["a.example.com/f", "a.b.example.com/x"],
            &["example.com/f", "x/a.example.com/f"],
        ),
        ("ghcr.*/f", &["ghcr.io/f", "ghcr.example.com/f"], &["ghcr.io/x/f", "x/ghcr.io/f"]),
        ("docker.io/acme-*/**", &["acme-x/f:v1", "acme-x/a/b"], &["acme-x.example.com/f", "acme/f"]),
        ("*/a/b", &["ghcr.io/a/b", "localhost:5000/a/b"], &["ghcr.io/x/a/b"]),
        ("localhost:*/f", &["localhost:5000/f"], &["localhost/f", "localhost:5000/g"]),
        ("LOCALHOST:5000/f", &["localhost:5000/f"], &["localhost:5001/f"]),
        // Parts that a reference may leave out.
        (
            "set-*",
            &["set-x:v1", "ghcr.io/kptdev/krm-functions-catalog/set-x"],
            &["ghcr.io/x/set-x", "unset-x"],
        ),
        ("*", &["f:v1"], &["ghcr.io/kptdev/krm-functions-catalog/x/f", "docker.io/library/f"]),
        ("x/*", &["x/f", "docker.io/x/f"], &["ghcr.io/x/f", "docker.io/library/f"]),
        ("index.docker.io/f*", &["docker.io/f1", "docker.io/library/f2"], &["docker.io/x/f1"]),
        ("docker.io/**", &["x/y", "docker.io/f"], &["ghcr.io/f"]),
        // Tags.
        ("ghcr.io/a/b:v1", &["ghcr.io/a/b:v1"], &["ghcr.io/a/b:v10", "ghcr.io/a/b", &pinned, &both]),
        ("ghcr.io/a/b:v1.*", &["ghcr.io/a/b:v1.2"], &["ghcr.io/a/b:v1", "ghcr.io/a/b:v2.v1.2"]),
        ("ghcr.io/a/b:latest", &["ghcr.io/a/b"], &["ghcr.io/a/b:v1"]),
        ("ghcr.io/a/b:*", &["ghcr.io/a/b", "ghcr.io/a/b:v1", &pinned], &["ghcr.io/a/c"]),
        // Digests.
        (&pinned, &[&pinned, &both], &["ghcr.io/a/b", "ghcr.io/a/b:v1"]),
        (&both, &[&both], &[&pinned, "ghcr.io/a/b:v1"]),
        ("**@sha256:*", &[&pinned, &both], &["ghcr.io/a/b:v1"]),
        ("**:v1@*", &[&both], &[&pinned, "ghcr.io/a/b:v1"]),
    ] {
        let list = list(&["nothing.example/at/all", pattern]);
        for image in fit {
            assert_eq!(list.check(image, ""), Ok(()), "{pattern}");
        }
        for image in do_not {
            let text = list.check(image, "").unwrap_err().to_string();
            assert!(text.ends_with(" matches it"), "{pattern} {image}: {text}");
        }
    }
}

#[test]
fn the_tag_field_overrides_the_tag() {
    let pinned = format!("ghcr.io/a/b@{DIGEST}");
    for (pattern, image, tag, allowed) in [
        ("ghcr.io/a/b:v1.*", "ghcr.io/a/b:v1.1", "", true),
        ("ghcr.io/a/b:v1.*", "ghcr.io/a/b:v1.1", "v2.1", false),
        ("ghcr.io/a/b:v1.*", "ghcr.io/a/b:v2.1", "v1.1", true),
        ("ghcr.io/a/b:v1.*", "ghcr.io/a/b:v1.1", "no constraint", true),
        ("ghcr.io/a/b:v1.*", "ghcr.io/a/b:v1.1", "1.x", false),
        ("ghcr.io/a/b:v1.*", "ghcr.io/a/b:v1.1", "v1.1+build", false),
        ("ghcr.io/a/b:v1.*", &*pinned, "v1.1", false),
        ("ghcr.io/a/b:*", "ghcr.io/a/b:v1", ">=1.0 <2", true),
        ("ghcr.io/a/b:***", &pinned, ">=1.0 <2", true),
        ("ghcr.io/a/c@*", "ghcr.io/a/c:v1", ">=1.0 <2", false),
    ] {
        assert_eq!(list(&[pattern]).check(image, tag).is_ok(), allowed, "{pattern} {image} {tag}");
    }
}

#[test]
fn rejections_name_the_image_and_the_flag() {
    let list = list(&["ghcr.io/a/b:v1"]);
    let text = |image: &str, tag: &str| list.check(image, tag).unwrap_err().to_string();
    assert_eq!(
        text("f", ""),
        "image \"ghcr.io/kptdev/krm-functions-catalog/f:latest\" is not allowed: no pattern of the function \
         runner's --allowed-images matches it"
    );
    assert_eq!(
        text("ghcr.io/a/b:v1", "~1.2"),
        "image \"ghcr.io/a/b\" is not allowed with the constraint \"~1.2\", which may select any tag: no pattern \
         of the function runner's --allowed-images allows every tag of this image; name an allowed tag"
    );
    let none = text("Not An Image", "");
    assert!(none.starts_with("not allowed: the function runner's --allowed-images accepts"), "{none}");
}

#[test]
fn a_pattern_that_no_image_matches_is_rejected() {
    let error = |pattern: &str| AllowedImages::parse(&[pattern], PREFIX).unwrap_err().to_string();
    for empty in ["", " ", "\n"] {
        assert_eq!(error(empty), "an empty pattern: leave the flag out to allow every image");
    }
    let malformed = "ghcr.io/A/*, ghcr.io/a/, /a, ghcr.io//a, a b, f:, f:.*, f:-*, f@, f@SHA256:*, f:v1@a@b, -*, \
                     ghcr.io/a?, {a}, http://ghcr.io/a, ghcr.io:port/a";
    for pattern in malformed.split(", ") {
        assert!(error(pattern).starts_with(&format!("{pattern:?} is not a pattern for images: write ")));
    }
    assert_eq!(error(&"a".repeat(1025)), "a pattern of 1025 bytes is too long: it may have 1024");
    assert!(AllowedImages::parse(&["*".repeat(200)], "").is_ok());
    assert!(AllowedImages::parse(&["**"], "Not A Prefix").is_ok(), "it does not use the prefix");
    assert!(AllowedImages::parse(&["f"], "Not A Prefix").is_err());
    let many = vec!["*"; 1001];
    let too_many = AllowedImages::parse(&many, "").unwrap_err().to_string();
    assert_eq!(too_many, "1001 patterns are too many: there may be 1000");
    assert!(AllowedImages::parse(&many[1..], "").is_ok());
}

#[test]
fn a_first_part_that_may_not_be_a_registry_is_rejected() {
    let unclear =
        "acme-*/** ghcr*/kptdev/** a*/f:v1 *x/f@sha256:* a**/f **a/f **.example.com/** localhost:**/f";
    for pattern in unclear.split(' ') {
        let first = pattern.split('/').next().unwrap();
        let text = AllowedImages::parse(&["f", pattern], PREFIX).unwrap_err().to_string();
        assert!(text.starts_with(&format!("{pattern:?} is ambiguous, because {first:?} may be ")), "{text}");
    }
    for clear in "*/f **/f ***/f *.example.com/f *:5000/f ghcr.*/f docker.io/acme-*/f a/*/f".split(' ') {
        assert!(AllowedImages::parse(&[clear], PREFIX).is_ok(), "{clear}");
    }
}

/// The simplest matcher: it tries every way to match.
fn matches_plainly(glob: &[u8], text: &[u8]) -> bool {
    let (rest, continues) = match glob {
        [] => return text.is_empty(),
        [b'*', b'*', rest @ ..] => (rest, !text.is_empty()),
        [b'*', rest @ ..] => (rest, !text.is_empty() && text[0] != b'/'),
        [byte, rest @ ..] => return text.first() == Some(byte) && matches_plainly(rest, &text[1..]),
    };
    matches_plainly(rest, text) || continues && matches_plainly(glob, &text[1..])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn matching_agrees_with_a_simple_matcher(glob in "([ab/]|[*]){0,9}", text in "[ab/]{0,9}") {
        let expected = matches_plainly(glob.as_bytes(), text.as_bytes());
        prop_assert_eq!(glob_matches(&glob, &text), expected);
    }
}
