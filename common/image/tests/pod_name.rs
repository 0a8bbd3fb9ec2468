//! Pod names: the same in all versions, always valid.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use porch_fn_image::{Image, pod_name};
use proptest::prelude::*;

fn image(text: &str) -> Image {
    Image::parse(text, "ghcr.io/kptdev/krm-functions-catalog").unwrap()
}

/// DNS-1035 as Kubernetes checks it.
fn is_dns_1035(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// If names changed between versions, a new version would not find the pods of the old one.
#[test]
fn names_are_the_same_in_every_version() {
    let sha = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let long = format!("a.b/{}:v1.0.0-{}", "long-name-".repeat(9) + "end", "Alpha.".repeat(9));
    for (reference, slot, expected) in [
        ("set-namespace:v0.4.1", 0, "set-namespace-v041-0-1ab4667a"),
        ("set-namespace:v0.4.1", 1, "set-namespace-v041-1-a71a49de"),
        ("mirror.example/set-namespace:v0.4.1", 0, "set-namespace-v041-0-83e9b31e"),
        ("set-namespace", 0, "set-namespace-latest-0-a8584fcc"),
        ("my_fn.v2:Feature_X.1", 0, "my-fn-v2-feature-x1-0-35e0587d"),
        ("3scale:_.", 7, "fn-3scale-7-ca2512fa"),
        (&format!("fn@{sha}"), 0, "fn-e3b0c44298fc-0-0b50d5b1"),
        (&format!("fn:v1@{sha}"), 0, "fn-v1-0-c69b6f1c"),
        (&long, u32::MAX, "long-name-long-name-lo-v100-alphaalphaalpha-4294967295-833a8776"),
    ] {
        assert_eq!(pod_name(&image(reference), slot, ""), expected, "{reference}");
    }
    assert_eq!(pod_name(&image("fn:v1"), 0, "6c1d4f0e-5b0c-4a53-8a40-0d7f3f3f0f4e"), "fn-v1-0-b075073d");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_are_always_valid(
        path in r"[a-z0-9]{1,30}((\.|_|__|-{1,3}|/)[a-z0-9]{1,20}){0,6}",
        tag in r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?",
        digest in r"(@sha256:[0-9a-f]{64})?",
        slot: u32,
        uid in r"\PC{0,40}",
    ) {
        let image = image(&format!("a.b/{path}{tag}{digest}"));
        for name in [pod_name(&image, slot, ""), pod_name(&image, slot, &uid)] {
            prop_assert!(is_dns_1035(&name), "{}", name);
        }
    }
}
