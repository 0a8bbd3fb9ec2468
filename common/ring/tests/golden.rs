//! Golden vectors: routers and runners of different processes and versions must agree on the ring.
//!
//! When this test fails, the hash scheme has changed: an upgrade would move every image, and
//! meanwhile old and new routers would disagree. If you intend this, raise `HASH_SCHEME` and run
//! the test once with `WRITE_GOLDEN=1`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use porch_fn_ring::{HASH_SCHEME, Ring};

const KEYS: [&str; 12] = [
    "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1",
    "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.2",
    "ghcr.io/kptdev/krm-functions-catalog/set-namespace",
    "ghcr.io/kptdev/krm-functions-catalog/apply-replacements:latest",
    "ghcr.io/kptdev/krm-functions-catalog/starlark:v0.5.0",
    "ghcr.io/kptdev/krm-functions-catalog/kubeconform:v0.1.1",
    "docker.io/library/busybox:1.36",
    "localhost:5000/team/fn_a:dev",
    "[::1]:5000/fn@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "Not a reference",
    "größe",
    "x",
];

#[test]
fn preference_orders_match_the_golden_file() {
    let mut text =
        String::from("# Written by golden.rs; see there. Tab separated: key, its runners best first.\n");
    writeln!(text, "scheme\t{HASH_SCHEME}").unwrap();
    let sixty = (1..=60).map(|n| format!("r{n:02}")).collect::<Vec<_>>().join(" ");
    for names in [
        "10.0.0.1:9445 10.0.0.2:9445 10.0.0.3:9445 10.0.0.4:9445 10.0.0.5:9445",
        "[2001:db8::1]:9445 [2001:db8::2]:9445 runner-a.example:9445",
        &sixty,
    ] {
        let ring = Ring::new(names.split(' '));
        writeln!(text, "ring\t{names}").unwrap();
        for key in KEYS {
            let order = ring.preference(key).iter().map(|&node| &*ring.nodes()[usize::from(node)]);
            writeln!(text, "{key}\t{}", order.collect::<Vec<_>>().join(" ")).unwrap();
        }
    }
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt"), &text).unwrap();
    }
    assert_eq!(text, include_str!("golden.txt"));
}
