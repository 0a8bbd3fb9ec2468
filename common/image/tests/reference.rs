//! Image references: a table of spellings and errors, and the properties of the canonical form.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use porch_fn_image::{AllowedImages, Image, MAX_REFERENCE_LEN, ReferenceError, shard_key};
use proptest::prelude::*;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";
const SHA256: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn canonical(image: &str) -> String {
    Image::parse(image, PREFIX).map_or_else(|error| format!("error: {error}"), |image| image.to_string())
}

#[test]
fn spellings_of_one_image_have_one_canonical_form() {
    for (image, expected) in [
        ("set-image", "ghcr.io/kptdev/krm-functions-catalog/set-image:latest"),
        ("set-image:v0.4.1", "ghcr.io/kptdev/krm-functions-catalog/set-image:v0.4.1"),
        (
            "ghcr.io/kptdev/krm-functions-catalog/set-image:v0.4.1",
            "ghcr.io/kptdev/krm-functions-catalog/set-image:v0.4.1",
        ),
        ("GHCR.io/a/b", "ghcr.io/a/b:latest"),
        ("gcr.io/kpt-fn/set-image:v0.1.1", "gcr.io/kpt-fn/set-image:v0.1.1"),
        ("foo/bar", "docker.io/foo/bar:latest"),
        ("foo/bar/baz:1", "docker.io/foo/bar/baz:1"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/busybox:1.36", "docker.io/library/busybox:1.36"),
        ("index.docker.io/foo/bar", "docker.io/foo/bar:latest"),
        ("localhost/fn", "localhost/fn:latest"),
        ("localhost:5000/fn:dev", "localhost:5000/fn:dev"),
        ("registry:5000/team/fn", "registry:5000/team/fn:latest"),
        ("10.0.0.1/fn", "10.0.0.1/fn:latest"),
        ("[::1]:5000/fn", "[::1]:5000/fn:latest"),
        ("[2001:DB8::1]/fn", "[2001:db8::1]/fn:latest"),
        ("a.b/c.d/e_f__g---h:T_.-x", "a.b/c.d/e_f__g---h:T_.-x"),
        ("localhost:5000", "ghcr.io/kptdev/krm-functions-catalog/localhost:5000"),
    ] {
        assert_eq!(canonical(image), expected, "{image}");
    }
    assert_eq!(canonical(&format!("fn@{SHA256}")), format!("{PREFIX}/fn@{SHA256}"));
    assert_eq!(canonical(&format!("a.b/fn:v1@{SHA256}")), format!("a.b/fn:v1@{SHA256}"));
}

#[test]
fn the_prefix_is_for_bare_names_only() {
    for (prefix, expected) in [
        ("", "docker.io/library/fn:latest"),
        ("a.b/c/", "a.b/c/fn:latest"),
        ("team", "docker.io/team/fn:latest"),
        ("localhost:5000", "localhost:5000/fn:latest"),
    ] {
        assert_eq!(Image::parse("fn", prefix).unwrap().as_str(), expected);
    }
    assert_eq!(Image::parse("x/fn", "a.b/c").unwrap().registry(), "docker.io");
}

#[test]
fn errors_name_the_part_and_what_is_accepted() {
    let hex = "0123456789abcdef0123456789abcdef";
    let digests = format!(" sha256:abc sha256:{hex} md5_:{hex} x:{}", hex.to_uppercase());
    for (kind, parts) in [
        ("registry", "a_b.c a..b -a.b a.b: a.b:0 a.b:+1 a.b:65536 [::1 [::1]x [::1]:"),
        ("repository part", " -c c_ c..d c___d größe Foo"),
        ("tag", " .x -x x+y"),
        ("digest", &*digests),
    ] {
        for part in parts.split(' ') {
            let image = match kind {
                "registry" => format!("{part}/c"),
                "repository part" => format!("a.b/{part}"),
                "tag" => format!("a.b/c:{part}"),
                _ => format!("a.b/c@{part}"),
            };
            let start = format!("error: image reference {image:?} has a malformed {kind} {part:?}: write ");
            assert!(canonical(&image).starts_with(&start), "{start}");
        }
    }
    for (image, expected) in [
        ("", r#"image reference "" has no name: write [registry/]name[:tag][@digest]"#),
        (":v1", r#"":v1" has no name"#),
        (
            "Set-Image",
            r#"krm-functions-catalog/Set-Image" has a malformed repository part "Set-Image": write"#,
        ),
        ("a.b/c//d", r#"repository part """#),
        ("/a", r#"repository part """#),
        ("a b", r#"repository part "a b""#),
    ] {
        assert!(canonical(image).contains(expected), "{image}: {}", canonical(image));
    }
}

#[test]
fn lengths_are_limited() {
    let text = |parsed: Result<Image, ReferenceError>| parsed.unwrap_err().to_string();
    let tag = |length| Image::parse(&format!("a.b/c:{}", "t".repeat(length)), "");
    assert!(tag(128).is_ok());
    assert!(text(tag(129)).contains(" has a malformed tag "));
    let name = |length: usize| Image::parse(&format!("a.b/{}", "n".repeat(length - 4)), "");
    assert_eq!(name(255).unwrap().repository().len(), 255);
    assert!(text(name(256)).ends_with(" has a name of 256 bytes: it may have 255"));
    assert!(
        text(name(255).unwrap().with_tag("a b")).contains(" has a malformed tag \"a b\": write up to 128 ")
    );
    let huge = "n".repeat(MAX_REFERENCE_LEN + 1);
    let too_long = "image reference of 1025 bytes is too long: the name may have 255 bytes and the tag 128";
    assert_eq!(text(Image::parse(&huge, "")), too_long);
    assert!(Image::parse("fn", &huge).is_err());
}

#[test]
fn shard_keys() {
    let digest = format!("fn@{SHA256}");
    for (image, tag, expected) in [
        ("fn:v1", "", format!("{PREFIX}/fn:v1")),
        ("ghcr.io/kptdev/krm-functions-catalog/fn:v1", "", format!("{PREFIX}/fn:v1")),
        // A constraint overrides the tag.
        ("fn", "~0.4", format!("{PREFIX}/fn")),
        ("fn:v0.4.1", "0.4.x", format!("{PREFIX}/fn")),
        // A version is a literal tag, if it is a valid tag.
        ("fn:v1", "v0.4.1", format!("{PREFIX}/fn:v0.4.1")),
        ("fn:v1", "v0.4.1+x", format!("{PREFIX}/fn:v1")),
        // Nothing overrides a digest.
        (&digest, "~0.4", format!("{PREFIX}/{digest}")),
        // These are not constraints.
        ("fn:v1", "latest", format!("{PREFIX}/fn:v1")),
        ("Not a reference", "", "Not a reference".to_owned()),
        ("Not a reference", "1.x", "Not a reference".to_owned()),
        ("", "", String::new()),
    ] {
        assert_eq!(shard_key(image, tag, PREFIX), expected, "{image} {tag:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parsing_never_panics(text in r"\PC*", likely in r"[a-zA-Z0-9:/@._\[\]*^~<>=| ,+-]{0,40}") {
        for text in [&text, &likely] {
            let _ = shard_key(text, text, PREFIX);
            let _ = shard_key("fn", text, text);
            let _ = AllowedImages::parse(&[text], text).map(|list| list.check(text, text));
        }
    }

    #[test]
    fn the_parts_make_up_the_canonical_form(
        registry in r"(([a-zA-Z0-9]{1,5}\.[a-z]{2}|localhost|docker\.io|index\.docker\.io|\[::1\])(:[1-9][0-9]{0,3})?/)?",
        // The first part has no dot: with a dot, it would be a registry.
        path in r"[a-z0-9]{1,6}((_|__|-{1,3})[a-z0-9]{1,6}){0,2}(/[a-z0-9]{1,6}((\.|__|-)[a-z0-9]{1,6})?){0,2}",
        tag in proptest::option::of("[A-Za-z0-9_][A-Za-z0-9._-]{0,20}"),
        digest in proptest::option::of(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}"),
        prefix in r"[a-z0-9]{1,5}(\.[a-z]{2})?(/[a-z]{1,3})?|",
    ) {
        let part = |sign: char, part: Option<&str>| part.map(|part| format!("{sign}{part}")).unwrap_or_default();
        let (tag, digest) = (tag.as_deref(), digest.as_deref());
        let text = format!("{registry}{path}{}{}", part(':', tag), part('@', digest));
        let image = Image::parse(&text, &prefix).unwrap();
        let again = Image::parse(image.as_str(), "another.example/prefix").unwrap();
        prop_assert_eq!(&again, &image);

        prop_assert_eq!(image.digest(), digest);
        prop_assert_eq!(image.tag(), tag.or(digest.is_none().then_some("latest")));
        let whole = image.repository().to_owned() + &part(':', image.tag()) + &part('@', digest);
        prop_assert_eq!(whole, image.as_str());
        let (before, after) = (format!("{}/", image.registry()), format!("/{}", image.name()));
        prop_assert!(image.repository().starts_with(&before) && image.repository().ends_with(&after));
        // The registry is only the first part, and the name is only the last part.
        prop_assert!(!image.registry().contains('/') && !image.name().contains('/'));
        prop_assert_eq!(image.with_tag("v2").unwrap().to_string(), format!("{}:v2", image.repository()));
    }
}
