//! The width rule by value: cap, width, demand, and the order of choices.

use std::collections::HashSet;
use std::time::Duration;

use porch_fn_ring::spill::{Demand, Limits, Spill, choices};
use proptest::prelude::*;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

/// All choices for a preference order, with loads by node; `nodes` is how many loads there are.
fn order(preference: &[u16], loads: &[usize], limits: Limits, down: &[u16]) -> Vec<u16> {
    choices(preference, loads.len(), limits, |n| loads[usize::from(n)], |n| !down.contains(&n)).collect()
}

#[test]
fn cap_is_the_floor_or_a_quarter_above_the_mean() {
    let cap = |floor, routers, in_flight, nodes| Spill { floor, routers }.limits(in_flight, nodes, 0.0).cap;
    assert_eq!(cap(8, 1, 0, 5), 8);
    assert_eq!(cap(8, 1, 31, 5), 8, "1.25 * 32 / 5 = 8 exactly");
    assert_eq!(cap(8, 1, 32, 5), 9, "1.25 * 33 / 5 = 8.25");
    assert_eq!(cap(8, 1, 79, 5), 20);
    assert_eq!(cap(8, 3, 0, 5), 8, "loads are those of all routers");
    assert_eq!(cap(0, 0, 0, 0), 2, "nonsense gives a usable cap: 1.25 * 1 / 1, rounded up");
    assert_eq!(cap(8, 1, usize::MAX, 2), usize::MAX.div_ceil(8));
}

#[test]
fn width_grows_by_one_for_each_quarter_of_the_cap() {
    let width = |demand| Spill::default().limits(0, 5, demand).width;
    assert_eq!([0.0, 1.99, 2.0, 3.99, 4.0, 8.0].map(width), [1, 1, 2, 2, 3, 5]);
    assert_eq!(width(f64::INFINITY), usize::MAX);
    assert_eq!([f64::NAN, -1.0].map(width), [1, 1]);
    let of_three = |demand| Spill { routers: 3, ..Spill::default() }.limits(0, 5, demand).width;
    assert_eq!([0.6, 0.7, 2.0].map(of_three), [1, 2, 4], "this router sees a third of it");
    // A higher cap needs more demand for the same width.
    assert_eq!(Spill::default().limits(79, 5, 4.0), Limits { cap: 20, width: 1 });
}

#[test]
fn demand_is_the_mean_over_time_of_requests_in_flight() {
    let mut demand = Demand::default();
    assert!(near(demand.estimate(seconds(100.0)), 0.0));
    demand.add(seconds(100.0));
    demand.add(seconds(100.0));
    assert_eq!(demand.in_flight(), 2);
    assert!(near(demand.estimate(seconds(100.0)), 0.0), "a request has no past");
    let one_constant = 1.0 - (-1.0_f64).exp();
    assert!(near(demand.estimate(seconds(105.0)), 2.0 * one_constant));
    assert!(near(demand.estimate(seconds(1000.0)), 2.0));

    // Asked often or seldom, it is the same.
    demand.sub(seconds(105.0));
    let at_sub = 2.0 * one_constant;
    assert!(near(demand.estimate(seconds(110.0)), 1.0 + (at_sub - 1.0) * (1.0 - one_constant)));
    demand.sub(seconds(110.0));
    assert!(demand.estimate(seconds(200.0)) < 1e-6, "an idle image forgets");
}

#[test]
fn a_burst_counts_at_once() {
    let mut demand = Demand::default();
    for _ in 0..7 {
        demand.add(seconds(1.0));
    }
    assert!(near(demand.estimate(seconds(1.0)), 0.0));
    demand.add(seconds(1.0));
    assert!(near(demand.estimate(seconds(1.0)), 4.0), "half of the 8 in flight");
    assert!(near(demand.estimate(seconds(1e6)), 8.0), "the mean, once it is more");
}

#[test]
fn demand_bears_lost_and_late_events() {
    let mut demand = Demand::default();
    demand.sub(seconds(1.0));
    assert_eq!(demand.in_flight(), 0, "a request that an evicted entry took in");
    demand.add(seconds(9.0));
    demand.add(seconds(5.0));
    assert_eq!(demand.in_flight(), 2);
    assert!(near(demand.estimate(seconds(9.0)), 0.0), "time did not run backwards");
}

#[test]
fn the_first_below_cap_within_the_width_takes_it() {
    let limits = |width| Limits { cap: 10, width };
    let preference = [3, 1, 4, 0, 2];
    assert_eq!(order(&preference, &[0, 0, 0, 9, 0], limits(1), &[])[0], 3);
    assert_eq!(order(&preference, &[0, 0, 0, 10, 0], limits(2), &[])[0], 1);
    assert_eq!(order(&preference, &[0, 0, 0, 10, 0], limits(1), &[])[0], 3, "a narrow image stays at home");
    assert_eq!(order(&preference, &[0, 11, 0, 12, 0], limits(2), &[])[0], 1, "all full: the least loaded");
    assert_eq!(order(&preference, &[0, 12, 0, 12, 0], limits(2), &[])[0], 3, "equally full: the first");
    assert_eq!(order(&preference, &[10, 10, 10, 10, 10], limits(usize::MAX), &[])[0], 3);
}

#[test]
fn unusable_runners_do_not_count_towards_the_width() {
    let loads = [0, 10, 0, 10, 0];
    let limits = Limits { cap: 10, width: 2 };
    assert_eq!(order(&[3, 1, 4, 0, 2], &loads, limits, &[]), [3, 4, 0, 2, 1]);
    assert_eq!(order(&[3, 1, 4, 0, 2], &loads, limits, &[3]), [4, 0, 2, 1]);
    assert_eq!(order(&[3, 1, 4, 0, 2], &loads, limits, &[0, 1, 2, 3, 4]), []);
    assert_eq!(order(&[], &[], limits, &[]), []);
}

#[test]
fn past_a_truncated_order_the_least_loaded_of_all_follows() {
    let limits = Limits { cap: 10, width: 1 };
    let loads = [5, 0, 3, 0, 4, 3];
    assert_eq!(order(&[2, 0], &loads, limits, &[]), [2, 0, 3, 1, 5, 4], "ties from behind the owner on");
    assert_eq!(order(&[2, 0], &loads, limits, &[2, 0, 3]), [1, 5, 4]);
    // Wider than the order, all of which is full: also then.
    let full = [12, 11, 12, 30, 30, 30];
    assert_eq!(order(&[2, 0], &full, Limits { cap: 10, width: 2 }, &[])[0], 2);
    assert_eq!(order(&[2, 0], &full, Limits { cap: 10, width: 3 }, &[])[0], 1);
}

#[test]
fn a_later_choice_sees_the_load_and_health_of_its_moment() {
    let down = std::cell::Cell::new(9);
    let limits = Limits { cap: 10, width: 1 };
    let mut choices = choices(&[0, 1, 2], 3, limits, |_| 0, |node| node != down.get());
    assert_eq!(choices.next(), Some(0));
    down.set(1);
    assert_eq!(choices.next(), Some(2));
    down.set(9);
    assert_eq!([choices.next(), choices.next()], [Some(1), None]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_usable_runner_comes_once_and_skipping_is_removing(
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
        let down: Vec<u16> = (0..nodes).filter(|&n| down[usize::from(n)]).collect();
        let limits = Limits { cap, width };

        let chosen = order(&preference, &loads, limits, &down);
        let distinct: HashSet<u16> = chosen.iter().copied().collect();
        prop_assert_eq!(chosen.len(), distinct.len());
        prop_assert!(chosen.iter().all(|node| !down.contains(node)));
        prop_assert_eq!(chosen.len(), loads.len() - down.len());

        if preference.len() == loads.len() {
            let kept: Vec<u16> = preference.iter().copied().filter(|node| !down.contains(node)).collect();
            prop_assert_eq!(chosen, order(&kept, &loads, limits, &down));
        }
    }
}
