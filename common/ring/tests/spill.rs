//! Tests the width rule with example values: cap, width, demand, and the order of attempts.

use std::time::Duration;

use porch_fn_ring::spill::{Demand, Limits, choose};
use proptest::prelude::*;

/// Returns the runners in the order in which one request tries them. `loads` has the load of each
/// runner.
fn order(preference: &[u16], loads: &[usize], limits: Limits, down: &[u16]) -> Vec<u16> {
    let mut tried = Vec::new();
    let next = |tried: &[u16]| {
        let usable = |node| !down.contains(&node) && !tried.contains(&node);
        choose(preference, loads.len(), limits, |node| loads[usize::from(node)], usable)
    };
    while let Some(node) = next(&tried) {
        tried.push(node);
    }
    tried
}

#[test]
fn cap_is_eight_or_a_quarter_above_the_mean() {
    for (in_flight, nodes, cap) in [
        (0, 0, 8),
        (31, 5, 8), // 1.25 * 32 / 5 = 8 exactly
        (32, 5, 9), // 1.25 * 33 / 5 = 8.25
        (79, 5, 20),
        (usize::MAX, 2, usize::MAX.div_ceil(8)),
    ] {
        assert_eq!(Limits::new(in_flight, nodes, 0.0, 3).cap, cap, "{in_flight} {nodes}");
    }
}

#[test]
fn width_grows_by_one_for_each_quarter_of_the_cap() {
    let width = |routers, in_flight, demand| Limits::new(in_flight, 5, demand, routers).width;
    for (demand, expected) in [(0.0, 1), (1.99, 1), (2.0, 2), (3.99, 2), (4.0, 3), (8.0, 5)] {
        assert_eq!(width(1, 0, demand), expected, "{demand}");
    }
    assert_eq!([f64::INFINITY, f64::NAN, -1.0].map(|demand| width(1, 0, demand)), [usize::MAX, 1, 1]);
    assert_eq!([0.6, 0.7, 2.0].map(|demand| width(3, 0, demand)), [1, 2, 4], "one of three routers");
    assert_eq!(width(1, 79, 4.0), 1, "a cap of 20 needs more demand for the same width");
}

#[test]
fn demand_is_the_mean_over_time_of_requests_in_flight_or_half_of_a_burst() {
    const START: fn(&mut Demand, Duration) -> Option<f64> = |demand, now| Some(demand.start(now));
    const END: fn(&mut Demand, Duration) -> Option<f64> = |demand, now| {
        demand.end(now);
        None
    };
    let kept = (-1.0_f64).exp(); // remaining share of the mean after the time constant, 5 s
    // Time in seconds, event, and the demand that `start` must return. For END it has no meaning.
    for (what, events) in [
        ("it grows", &[(100, START, 0.0), (100, START, 0.0), (105, START, 2.0 * (1.0 - kept))][..]),
        ("it reaches the number in flight", &[(0, START, 0.0), (0, START, 0.0), (1000, START, 2.0)]),
        (
            "it decays",
            &[(0, START, 0.0), (1000, END, 0.0), (1005, START, kept), (1005, END, 0.0), (2000, START, 0.0)],
        ),
        ("an earlier time counts as the latest time", &[(9, START, 0.0), (5, START, 0.0), (9, START, 0.0)]),
        ("an end without a start is ignored", &[(1, END, 0.0), (1, START, 0.0), (1000, START, 1.0)]),
        (
            "half of a burst counts at once",
            &[
                (1, START, 0.0),
                (1, START, 0.0),
                (1, START, 0.0),
                (1, START, 0.0),
                (1, START, 0.0),
                (1, START, 0.0),
                (1, START, 0.0),
                (1, START, 0.0),
                (1, START, 4.0),
                (1_000_000, START, 9.0),
            ],
        ),
    ] {
        let mut demand = Demand::default();
        for (number, &(second, event, expected)) in events.iter().enumerate() {
            if let Some(before) = event(&mut demand, Duration::from_secs(second)) {
                assert!((before - expected).abs() < 1e-9, "{what}, event {number}: {before}");
            }
        }
    }
}

#[test]
fn attempts_go_to_the_runners_of_the_width_rule() {
    let all = &[3, 1, 4, 0, 2][..];
    for (preference, loads, width, down, expected) in [
        (all, &[0, 0, 0, 9, 0][..], 1, &[][..], &[3][..]),
        (all, &[0, 0, 0, 10, 0], 2, &[], &[1]),
        // With width 1, an image stays on its owner.
        (all, &[0, 0, 0, 10, 0], 1, &[], &[3]),
        // All are full: the least loaded runner is chosen, and the first one among equals.
        (all, &[0, 11, 0, 12, 0], 2, &[], &[1]),
        (all, &[0, 12, 0, 12, 0], 2, &[], &[3]),
        (all, &[10, 10, 10, 10, 10], usize::MAX, &[], &[3]),
        // Unusable runners do not count towards the width.
        (all, &[0, 10, 0, 10, 0], 2, &[], &[3, 4, 0, 2, 1]),
        (all, &[0, 10, 0, 10, 0], 2, &[3], &[4, 0, 2, 1]),
        // A truncated order (here 2, 0) is followed by the other runners, the least loaded first.
        (&[2, 0], &[5, 0, 3, 0, 4, 3], 1, &[], &[2, 0, 3, 1, 5, 4]),
        (&[2, 0], &[5, 0, 3, 0, 4, 3], 1, &[2, 0, 3], &[1, 5, 4]),
        // If the width exceeds a truncated order of full runners, runners beyond it are chosen, too.
        (&[2, 0], &[12, 11, 12, 30, 30, 30], 2, &[], &[2]),
        (&[2, 0], &[12, 11, 12, 30, 30, 30], 3, &[], &[1]),
    ] {
        let order = order(preference, loads, Limits { cap: 10, width }, down);
        assert!(order.starts_with(expected), "{preference:?} {loads:?} {width}: {order:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_usable_runner_is_tried_once_as_if_the_others_were_removed(
        loads in prop::collection::vec(0_usize..20, 1..12),
        down in prop::collection::vec(any::<bool>(), 12),
        shuffle in any::<prop::sample::Index>(),
        listed in any::<prop::sample::Index>(),
        cap in 1_usize..20,
        width in 1_usize..14,
    ) {
        let nodes = loads.len() as u16;
        let mut preference: Vec<u16> = (0..nodes).collect();
        preference.rotate_left(shuffle.index(loads.len()));
        preference.truncate(1 + listed.index(loads.len()));
        let (down, up): (Vec<u16>, Vec<u16>) = (0..nodes).partition(|&node| down[usize::from(node)]);
        let limits = Limits { cap, width };

        let chosen = order(&preference, &loads, limits, &down);
        let mut sorted = chosen.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, up);
        if preference.len() == loads.len() {
            preference.retain(|node| !down.contains(node));
            prop_assert_eq!(chosen, order(&preference, &loads, limits, &down));
        }
    }
}
