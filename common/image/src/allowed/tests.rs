//! What patterns fit, by value, and against a matcher so plain that it can be believed.

use proptest::prelude::*;

use super::*;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn list(patterns: &[&str]) -> AllowedImages {
    AllowedImages::parse(patterns, PREFIX).unwrap()
}

#[test]
fn a_pattern_fits_what_it_says() {
    let pinned = format!("ghcr.io/a/b@{DIGEST}");
    let both = format!("ghcr.io/a/b:v1@{DIGEST}");
    for (pattern, fit, do_not) in [
        // Stars and slashes.
        (
            "ghcr.io/a/*",
            &["ghcr.io/a/b", "ghcr.io/a/b:v1", &pinned][..],
            &["ghcr.io/a/b/c", "ghcr.io/ab", "b"][..],
        ),
        ("ghcr.io/a/**", &["ghcr.io/a/b", "ghcr.io/a/b/c:v1", &both], &["ghcr.io/ab/c", "gcr.io/a/b"]),
        ("ghcr.io/**/b", &["ghcr.io/a/b", "ghcr.io/a/c/b:v9"], &["ghcr.io/b", "ghcr.io/a/b/c"]),
        ("ghcr.io/*/b", &["ghcr.io/a/b"], &["ghcr.io/a/c/b"]),
        ("ghcr.io/a/b", &["ghcr.io/a/b", "GHCR.io/a/b:x"], &["ghcr.io/a/bc", "ghcr.io/a/b/c", "ghcr.io/a"]),
        ("**", &["f", "x/y", "localhost:5000/f:v1", &both], &[]),
        ("**/b:v1", &["ghcr.io/a/b:v1", "b:v1"], &["ghcr.io/a/b:v2", "ghcr.io/a/ab:v1"]),
        // Registries.
        (
            "*.example.com/**",
            &["a.example.com/f", "a.b.example.com/x/y"],
            &["example.com/f", "x/a.example.com/f"],
        ),
        ("ghcr.*/f", &["ghcr.io/f", "ghcr.example.com/f"], &["ghcr.io/x/f", "x/ghcr.io/f"]),
        ("docker.io/acme-*/**", &["acme-x/f:v1", "acme-x/a/b"], &["acme-x.example.com/f", "acme/f"]),
        ("*/a/b", &["ghcr.io/a/b", "localhost:5000/a/b"], &["ghcr.io/x/a/b"]),
        ("localhost:*/f", &["localhost:5000/f"], &["localhost/f", "localhost:5000/g"]),
        ("LOCALHOST:5000/f", &["localhost:5000/f"], &["localhost:5001/f"]),
        // What a reference may leave out.
        (
            "set-*",
            &["set-labels:v1", "ghcr.io/kptdev/krm-functions-catalog/set-x"],
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
            assert!(matches!(list.check(image, ""), Err(NotAllowed::Image { .. })), "{pattern} {image}");
        }
    }
}

#[test]
fn every_image_is_allowed_without_patterns() {
    let all = AllowedImages::default();
    assert_eq!(AllowedImages::parse::<&str>(&[], "").unwrap(), all);
    for (image, tag) in [("f", ""), ("ghcr.io/a/b", ">=1"), ("Not An Image", "")] {
        assert_eq!(all.check(image, tag), Ok(()));
    }
}

#[test]
fn the_tag_field_counts_as_in_the_rest() {
    let tagged = list(&["ghcr.io/a/b:v1.*"]);
    let pinned = format!("ghcr.io/a/b@{DIGEST}");
    for (image, tag, allowed) in [
        ("ghcr.io/a/b:v1.1", "", true),
        ("ghcr.io/a/b:v1.1", "v2.1", false),
        ("ghcr.io/a/b:v2.1", "v1.1", true),
        ("ghcr.io/a/b:v1.1", "no constraint", true),
        ("ghcr.io/a/b:v1.1", "1.x", false),
        ("ghcr.io/a/b:v1.1", ">=1.0", false),
        ("ghcr.io/a/b:v1.1", "v1.1+build", false),
        (&*pinned, "v1.1", false),
    ] {
        assert_eq!(tagged.check(image, tag).is_ok(), allowed, "{image} {tag}");
    }
    let any = list(&["ghcr.io/a/b:*", "ghcr.io/a/c@*"]);
    assert_eq!(any.check("ghcr.io/a/b:v1", ">=1.0 <2"), Ok(()));
    assert_eq!(any.check(&pinned, ">=1.0 <2"), Ok(()));
    assert!(any.check("ghcr.io/a/c:v1", ">=1.0 <2").is_err());
}

#[test]
fn refusals_say_what_and_name_the_flag() {
    let list = list(&["ghcr.io/a/b:v1"]);
    let text = |image: &str, tag: &str| list.check(image, tag).unwrap_err().to_string();
    assert_eq!(
        text("f", ""),
        "image \"ghcr.io/kptdev/krm-functions-catalog/f:latest\" is not allowed: no pattern of the function \
         runner's --allowed-images fits it"
    );
    assert_eq!(
        text("ghcr.io/a/b:v1", "~1.2"),
        "image \"ghcr.io/a/b\" is not allowed by the constraint \"~1.2\", which may stand for any tag: no pattern \
         of the function runner's --allowed-images allows every tag of it; name a tag that is allowed"
    );
    let none = text("Not An Image", "");
    assert!(none.starts_with("not allowed: the function runner's --allowed-images takes"), "{none}");
}

#[test]
fn what_can_fit_no_image_is_refused() {
    let error = |pattern: &str| AllowedImages::parse(&[pattern], PREFIX).unwrap_err();
    for empty in ["", " ", "\n"] {
        assert_eq!(error(empty), PatternError::Empty);
    }
    for pattern in [
        "ghcr.io/A/*",
        "ghcr.io/a/",
        "/a",
        "ghcr.io//a",
        "a b",
        "f:",
        "f:.*",
        "f:-*",
        "f@",
        "f@SHA256:*",
        "f:v1@a@b",
        "-*",
        "ghcr.io/a?",
        "{a,b}",
        "http://ghcr.io/a",
        "ghcr.io:port/a",
    ] {
        assert_eq!(error(pattern), PatternError::Malformed { pattern: pattern.to_owned() });
    }
    assert_eq!(error(&"a".repeat(1025)), PatternError::TooLong { length: 1025 });
    assert!(AllowedImages::parse(&["*".repeat(200)], "").is_ok());
    assert!(AllowedImages::parse(&["**"], "Not A Prefix").is_ok(), "it does not use the prefix");
    assert!(AllowedImages::parse(&["f"], "Not A Prefix").is_err());
    let many = vec!["*"; 1001];
    assert_eq!(AllowedImages::parse(&many, ""), Err(PatternError::TooMany { count: 1001 }));
    assert!(AllowedImages::parse(&many[1..], "").is_ok());
}

#[test]
fn a_first_part_that_may_be_no_registry_is_refused() {
    for (pattern, first) in [
        ("acme-*/**", "acme-*"),
        ("ghcr*/kptdev/**", "ghcr*"),
        ("a*/f:v1", "a*"),
        ("*x/f@sha256:*", "*x"),
        ("a**/f", "a**"),
        ("**a/f", "**a"),
        ("**.example.com/**", "**.example.com"),
        ("localhost:**/f", "localhost:**"),
    ] {
        let unclear = PatternError::Unclear { pattern: pattern.to_owned(), first: first.to_owned() };
        assert_eq!(AllowedImages::parse(&["f", pattern], PREFIX), Err(unclear));
    }
    for clear in
        ["*/f", "**/f", "***/f", "*.example.com/f", "*:5000/f", "ghcr.*/f", "docker.io/acme-*/f", "a/*/f"]
    {
        assert!(AllowedImages::parse(&[clear], PREFIX).is_ok(), "{clear}");
    }
    assert_eq!(
        AllowedImages::parse(&["acme-*/**"], PREFIX).unwrap_err().to_string(),
        "\"acme-*/**\" leaves open whether \"acme-*\" is a registry: put docker.io/ before it for names on Docker Hub; \
         a registry with a * in it needs a . or a :, and no **"
    );
}

/// The plainest matcher there is: every way in turn.
fn fits_plainly(glob: &[u8], text: &[u8]) -> bool {
    match glob {
        [] => text.is_empty(),
        [b'*', b'*', rest @ ..] => {
            fits_plainly(rest, text) || !text.is_empty() && fits_plainly(glob, &text[1..])
        }
        [b'*', rest @ ..] => {
            fits_plainly(rest, text)
                || text.first().is_some_and(|byte| *byte != b'/') && fits_plainly(glob, &text[1..])
        }
        [byte, rest @ ..] => text.first() == Some(byte) && fits_plainly(rest, &text[1..]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn matching_is_what_it_is_by_definition(glob in "([ab/]|[*]){0,8}", text in "[ab/]{0,8}") {
        prop_assert_eq!(Glob::new(&glob).fits(&text, &Pairs::of(&text)), fits_plainly(glob.as_bytes(), text.as_bytes()));
    }

    #[test]
    fn an_image_fits_itself_and_what_it_becomes_with_stars(
        image in "([a-z]{1,3}(\\.io|:5000)?/)?[a-z]{1,3}(/[a-z]{1,3})?(:[a-zA-Z0-9_]{1,4})?",
        at in any::<prop::sample::Index>(),
    ) {
        let image = Image::parse(&image, PREFIX).unwrap();
        prop_assert!(list(&[image.as_str()]).allows(&image));
        prop_assert!(list(&[image.repository()]).allows(&image));
        // One character of the name, which is no part of the registry, becomes any.
        let at = image.registry().len() + 1 + at.index(image.repository().len() - image.registry().len() - 1);
        let mut pattern = image.as_str().to_owned();
        if !pattern[at..].starts_with('/') {
            pattern.replace_range(at..=at, "*");
            prop_assert!(list(&[&*pattern]).allows(&image), "{}", pattern);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_and_never_panics(pattern in r"\PC*", image in r"\PC*", tag in r"\PC*") {
        if let Ok(list) = AllowedImages::parse(&[pattern], PREFIX) {
            let _ = list.check(&image, &tag);
        }
    }

    #[test]
    fn more_patterns_allow_more(
        patterns in prop::collection::vec("[a-c*]{1,3}(/[a-c*]{1,3}){0,2}(:[a*]{1,2})?", 2..4),
        image in "[a-c]{1,2}(/[a-c]{1,2}){0,2}(:a{1,2})?",
    ) {
        let readable: Vec<_> = patterns.iter().filter(|p| AllowedImages::parse(&[p], PREFIX).is_ok()).collect();
        let single = readable.iter().any(|p| AllowedImages::parse(&[p], PREFIX).unwrap().check(&image, "").is_ok());
        let all = AllowedImages::parse(&readable, PREFIX).unwrap();
        prop_assert_eq!(all.check(&image, "").is_ok(), single || readable.is_empty());
    }
}
