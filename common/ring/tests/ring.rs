//! Properties of the ring: order, agreement, movement on a change of membership, balance.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::sync::Arc;

use porch_fn_ring::{FULL_LIST_NODES, MAX_NODES, Ring, SUCCESSORS, fingerprint};
use proptest::prelude::*;

fn runner(seed: usize, n: usize) -> Arc<str> {
    format!("10.{seed}.{}.{}:9445", n >> 8, n & 255).into()
}

fn runners(seed: usize, count: usize) -> Vec<Arc<str>> {
    (0..count).map(|n| runner(seed, n)).collect()
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("ghcr.io/kptdev/krm-functions-catalog/function-{n}:v0.4.1")).collect()
}

/// A preference order by name, which can be compared between rings.
fn order<'a>(ring: &'a Ring, key: &str) -> Vec<&'a str> {
    ring.preference(key).iter().map(|&n| &*ring.nodes()[usize::from(n)]).collect()
}

#[test]
fn a_fingerprint_depends_only_on_the_runners() {
    assert_eq!(fingerprint(&[]), 0);
    let three = runners(0, 3);
    let known = fingerprint(Ring::new(three.iter().rev().cloned()).nodes());
    assert!(known == fingerprint(&three) && known > 0 && known < 1 << 48);
    for other in [runners(0, 2), runners(0, 4), runners(1, 3)] {
        assert_ne!(fingerprint(&other), known);
    }
}

#[test]
fn preference_orders_are_whole_up_to_the_limit_and_distinct() {
    let (full, more) = (FULL_LIST_NODES, FULL_LIST_NODES + 1);
    for (count, length) in [(0, 0), (1, 1), (full, full), (more, SUCCESSORS)] {
        let ring = Ring::new(runners(1, count));
        for key in keys(50).iter().map(String::as_str).chain([""]) {
            let order = order(&ring, key);
            let distinct: HashSet<_> = order.iter().collect();
            assert_eq!((order.len(), distinct.len()), (length, length), "{count} runners, {key}");
            assert_eq!(ring.owner(key), order.first().copied());
        }
    }
    let many = (0..=MAX_NODES).map(|n| n.to_string());
    assert_eq!(Ring::new(many).nodes().len(), MAX_NODES);
}

/// 10 rings grow from 1 to 21 runners: 200 joins. In reverse order, these are 200 leaves.
#[test]
fn a_join_moves_its_share_and_only_to_the_newcomer() {
    const KEYS: usize = 1000;
    let keys = keys(KEYS);
    let (mut sum, mut worst) = (0.0, 0.0_f64);
    for seed in 0..10 {
        let mut before = Ring::new(runners(seed, 1));
        for count in 1..=20 {
            let newcomer = runner(seed, count);
            let after = Ring::new(runners(seed, count + 1));
            let mut moved = 0;
            for key in keys.iter().filter(|key| before.owner(key) != after.owner(key)) {
                assert_eq!(after.owner(key), Some(&*newcomer), "{key} moved between survivors");
                moved += 1;
            }
            let ratio = f64::from(moved) * (count + 1) as f64 / KEYS as f64;
            (sum, worst) = (sum + ratio, worst.max(ratio));
            before = after;
        }
    }
    let mean = sum / 200.0;
    println!("moved / (K/(N+1)) over 200 joins: mean {mean:.3}, worst {worst:.3}");
    assert!((0.9..=1.1).contains(&mean) && worst <= 1.5, "mean {mean}, worst {worst}");
}

#[test]
fn keys_are_balanced() {
    const PER_RUNNER: usize = 2000;
    for (count, bound) in [(5, 1.2), (50, 1.25)] {
        let ring = Ring::new(runners(4, count));
        let mut owned = vec![0; count];
        for key in keys(PER_RUNNER * count) {
            owned[usize::from(ring.preference(&key)[0])] += 1;
        }
        let peak = *owned.iter().max().unwrap() as f64 / PER_RUNNER as f64;
        println!("{count} runners: peak/mean {peak:.3}");
        assert!(peak <= bound, "{count} runners: peak/mean {peak}");
        assert!(owned.iter().all(|&keys| keys >= PER_RUNNER / 2), "{owned:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn input_order_and_duplicates_do_not_matter(
        nodes in prop::collection::vec("[a-z]{1,3}", 1..12),
        shuffled in any::<prop::sample::Index>(),
        key in ".*",
    ) {
        let mut other: Vec<_> = nodes.iter().rev().cloned().collect();
        let middle = shuffled.index(other.len());
        other.rotate_left(middle);
        other.push(other[middle].clone());
        let (one, two) = (Ring::new(nodes), Ring::new(other));
        prop_assert_eq!(one.nodes(), two.nodes());
        prop_assert_eq!(one.preference(&key), two.preference(&key));
    }

    #[test]
    fn skipping_runners_equals_removing_them(
        present in prop_oneof![
            prop::collection::vec(any::<bool>(), 1..20),
            // With so many runners, the order is truncated.
            prop::collection::vec(prop::bool::weighted(0.85), 75..85),
        ],
        key in ".*",
    ) {
        let all = runners(5, present.len());
        let kept = all.iter().zip(&present).filter(|&(_, &present)| present);
        let kept: Vec<_> = kept.map(|(node, _)| node.clone()).collect();
        let (full, smaller) = (Ring::new(all), Ring::new(kept.clone()));
        let skipped: Vec<_> = order(&full, &key).into_iter().filter(|node| kept.iter().any(|kept| **kept == **node)).collect();
        prop_assert_eq!(&skipped[..], &order(&smaller, &key)[..skipped.len()]);
    }
}
