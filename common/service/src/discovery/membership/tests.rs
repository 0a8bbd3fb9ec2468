//! Membership by value, and by property against the rules as the module states them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;

use super::*;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn changes(joined: &[&str], held_down: &[&str], left: &[&str]) -> Changes {
    let owned = |all: &[&str]| all.iter().map(ToString::to_string).collect();
    Changes { joined: owned(joined), held_down: owned(held_down), left: owned(left) }
}

/// Nobody that is not listed answers.
fn nobody(_: &str) -> bool {
    false
}

fn everybody(_: &str) -> bool {
    true
}

fn members(membership: &Membership) -> Vec<&str> {
    membership.members().collect()
}

#[test]
fn the_first_ones_join_at_once() {
    let mut membership = Membership::new();
    assert_eq!(membership.next_timer(), None);
    assert_eq!(membership.update(["b", "a"], nobody, secs(0)), changes(&["a", "b"], &[], &[]));
    assert_eq!(members(&membership), ["a", "b"]);
    assert_eq!(membership.next_timer(), None);
}

#[test]
fn later_ones_are_gathered_from_the_first_arrival() {
    let mut membership = Membership::new();
    membership.present("a", secs(0));
    assert!(membership.present("b", secs(10)).is_empty());
    assert_eq!(membership.state("b"), State::Arriving { by: secs(12) });
    assert!(membership.present("c", secs(11)).is_empty());
    assert!(membership.present("b", secs(11)).is_empty(), "repeating it does not start anew");
    assert_eq!(membership.next_timer(), Some(secs(12)));
    assert!(membership.tick(Duration::from_nanos(11_999_999_999)).is_empty());
    assert_eq!(membership.tick(secs(12)), changes(&["b", "c"], &[], &[]));
    assert_eq!(membership.state("b"), State::Joined);
    assert_eq!(membership.next_timer(), None);
}

#[test]
fn leaving_is_immediate_and_coming_back_takes_a_while() {
    let mut membership = Membership::new();
    membership.update(["a", "b"], nobody, secs(0));
    assert_eq!(membership.absent("b", secs(5)), changes(&[], &[], &["b"]));
    assert_eq!(membership.state("b"), State::Gone);
    assert!(membership.absent("b", secs(5)).is_empty());

    assert_eq!(membership.present("b", secs(6)), changes(&[], &["b"], &[]));
    assert_eq!(membership.state("b"), State::HeldDown { until: secs(36) });
    assert_eq!(membership.held_down().collect::<Vec<_>>(), ["b"]);
    assert_eq!(members(&membership), ["a"]);
    assert!(membership.tick(secs(37)).is_empty());
    assert_eq!(membership.next_timer(), Some(secs(38)));
    assert_eq!(membership.tick(secs(38)), changes(&["b"], &[], &[]));
    assert_eq!(membership.held_down().count(), 0);
}

#[test]
fn a_hold_down_starts_again_with_each_absence() {
    let mut membership = Membership::new();
    membership.update(["a", "b"], nobody, secs(0));
    membership.absent("b", secs(5));
    membership.present("b", secs(6));
    assert_eq!(membership.absent("b", secs(35)), changes(&[], &[], &["b"]));
    membership.present("b", secs(36));
    assert_eq!(membership.state("b"), State::HeldDown { until: secs(66) });
    assert!(membership.tick(secs(60)).is_empty());
}

#[test]
fn an_arrival_that_goes_again_is_held_down_next_time() {
    let mut membership = Membership::new();
    membership.present("a", secs(0));
    membership.present("b", secs(10));
    assert_eq!(membership.absent("b", secs(11)), changes(&[], &[], &["b"]));
    assert_eq!(membership.next_timer(), None);
    assert_eq!(membership.present("b", secs(12)), changes(&[], &["b"], &[]));
}

#[test]
fn a_held_down_one_joins_with_an_arrival_once_its_time_is_over() {
    let mut membership = Membership::new();
    membership.update(["a", "b"], nobody, secs(0));
    membership.absent("b", secs(0));
    membership.present("b", secs(0));
    membership.present("c", secs(29));
    assert_eq!(membership.tick(secs(31)), changes(&["b", "c"], &[], &[]));
}

#[test]
fn without_members_nobody_waits_but_the_held_down() {
    let mut membership = Membership::new();
    membership.present("a", secs(0));
    membership.present("b", secs(10));
    assert_eq!(membership.absent("a", secs(11)), changes(&["b"], &[], &["a"]));
    membership.absent("b", secs(12));
    assert_eq!(membership.present("a", secs(13)), changes(&[], &["a"], &[]));
    assert_eq!(members(&membership), [""; 0]);
    assert_eq!(membership.next_timer(), Some(secs(43)), "nobody else to gather with");
    assert_eq!(membership.tick(secs(43)), changes(&["a"], &[], &[]));
}

#[test]
fn a_whole_new_set_replaces_the_old_one_at_once() {
    let mut membership = Membership::new();
    membership.update(["a", "b"], nobody, secs(0));
    assert_eq!(membership.update(["b", "c"], nobody, secs(10)), changes(&[], &[], &["a"]));
    assert_eq!(membership.update(["d"], nobody, secs(11)), changes(&["d"], &[], &["b", "c"]));
}

#[test]
fn what_was_gone_for_long_counts_as_new_and_is_forgotten() {
    let mut membership = Membership::new();
    membership.update(["a", "b", "c"], nobody, secs(0));
    membership.absent("b", secs(1));
    membership.absent("c", secs(1));
    let before = (secs(1) + FORGET_AFTER).saturating_sub(Duration::from_nanos(1));
    assert_eq!(membership.present("b", before), changes(&[], &["b"], &[]));
    assert!(membership.present("c", secs(1) + FORGET_AFTER).is_empty());
    assert!(matches!(membership.state("c"), State::Arriving { .. }));

    for pod in 0..1_000_u64 {
        membership.present(&pod.to_string(), secs(10_000 + 10 * pod));
        membership.absent(&pod.to_string(), secs(10_005 + 10 * pod));
    }
    let known = format!("{membership:?}").matches("Gone").count();
    assert!(known <= 61, "{known} addresses are remembered");
}

fn usable(membership: &Membership) -> Vec<&str> {
    membership.usable().collect()
}

#[test]
fn the_first_of_a_fleet_that_is_back_does_not_stand_alone() {
    let mut membership = Membership::new();
    membership.update(["a", "b", "c"], nobody, secs(0));
    membership.update([], nobody, secs(10));
    membership.update(["a"], nobody, secs(20));
    membership.update(["a", "b"], nobody, secs(21));
    membership.update(["a", "b", "c"], nobody, secs(22));
    assert_eq!(usable(&membership), ["a", "b", "c"]);
    membership.tick(secs(50));
    assert_eq!(members(&membership), ["a"]);
    assert_eq!(usable(&membership), ["a", "b", "c"]);
    membership.tick(secs(53));
    assert_eq!(usable(&membership), ["a", "b", "c"]);
}

#[test]
fn a_new_one_does_not_stand_alone_beside_a_fleet_that_is_back() {
    let mut membership = Membership::new();
    membership.update(["a", "b", "c"], nobody, secs(0));
    membership.update([], nobody, secs(10));
    membership.update(["a"], nobody, secs(20));
    membership.update(["a", "b"], nobody, secs(21));
    membership.update(["a", "b", "c"], nobody, secs(22));
    membership.update(["a", "b", "c", "d"], nobody, secs(25));
    assert_eq!(usable(&membership), ["a", "b", "c", "d"]);
}

#[test]
fn one_that_flaps_is_not_used_while_most_are_in_order() {
    let mut membership = Membership::new();
    membership.update(["a", "b", "c"], nobody, secs(0));
    membership.absent("b", secs(5));
    membership.present("b", secs(6));
    assert_eq!(usable(&membership), ["a", "c"]);
    membership.absent("c", secs(7));
    membership.present("c", secs(8));
    assert_eq!(usable(&membership), ["a", "b", "c"]);
}

#[test]
fn two_that_are_back_are_used_beside_two_in_order_and_one_beside_one_is_not() {
    let mut membership = Membership::new();
    membership.update(["a", "b", "c", "d"], nobody, secs(0));
    for (address, at) in [("c", 5), ("d", 10)] {
        membership.absent(address, secs(at));
        membership.present(address, secs(at + 1));
    }
    assert_eq!(usable(&membership), ["a", "b", "c", "d"]);
    membership.update(["a", "c"], nobody, secs(12));
    assert_eq!(usable(&membership), ["a"]);
}

#[test]
fn what_answers_stays_for_five_minutes_when_none_is_listed() {
    let mut membership = Membership::new();
    membership.update(["a", "b", "c"], everybody, secs(0));
    assert!(membership.update([], |address| address != "c", secs(10)).left.eq(&["c"]));
    assert_eq!(usable(&membership), ["a", "b"]);
    assert!(membership.is_unlisted("a") && !membership.is_unlisted("c"));
    membership.update([], everybody, secs(100));
    assert_eq!(membership.next_timer(), Some(secs(310)), "saying it again does not prolong it");
    assert_eq!(membership.tick(secs(310)), changes(&[], &[], &["a", "b"]));
    assert_eq!(membership.next_timer(), None);
}

#[test]
fn what_answers_stays_for_half_a_minute_when_others_are_listed() {
    let mut membership = Membership::new();
    membership.update(["a", "b"], everybody, secs(0));
    assert!(membership.update(["a"], everybody, secs(10)).is_empty());
    membership.update(["a", "c"], everybody, secs(20));
    membership.tick(secs(22));
    assert_eq!(usable(&membership), ["a", "b", "c"]);
    assert_eq!(membership.tick(secs(40)), changes(&[], &[], &["b"]));
    assert_eq!(usable(&membership), ["a", "c"]);
}

#[test]
fn what_stayed_is_a_member_when_it_is_listed_again() {
    let mut membership = Membership::new();
    membership.update(["a", "b"], everybody, secs(0));
    membership.update([], everybody, secs(10));
    // One by one: the first to be listed again does not stand alone.
    membership.update(["b"], everybody, secs(200));
    assert_eq!((usable(&membership), membership.next_timer()), (vec!["a", "b"], Some(secs(230))));
    assert!(membership.update(["a", "b"], everybody, secs(201)).is_empty());
    assert_eq!(members(&membership), ["a", "b"]);
    assert_eq!(membership.next_timer(), None);
}

#[test]
fn a_list_that_gets_shorter_until_it_is_empty_loses_nobody_that_answers() {
    let mut membership = Membership::new();
    // Not for the first time.
    membership.update([], everybody, secs(0));
    membership.update(["a", "b", "c"], everybody, secs(0));
    membership.update(["b", "c"], everybody, secs(1));
    membership.update(["c"], everybody, secs(20));
    membership.update([], everybody, secs(29));
    membership.tick(secs(329 - 1));
    assert_eq!(usable(&membership), ["a", "b", "c"]);
    assert_eq!(membership.tick(secs(329)).left.len(), 3);
}

#[test]
fn what_is_not_listed_and_stops_to_answer_leaves_at_once() {
    let mut membership = Membership::new();
    membership.update(["a", "b", "c"], everybody, secs(0));
    membership.update(["a"], everybody, secs(1));
    let changed = membership.retain_unlisted(|address| address != "b", secs(2));
    assert_eq!(changed, changes(&[], &[], &["b"]));
    assert_eq!(usable(&membership), ["a", "c"]);
    // Those that are listed stay: whether they are well is for others to say.
    assert!(membership.retain_unlisted(|address| address != "a", secs(2)).is_empty());
}

#[derive(Debug, Clone)]
enum Event {
    Present(u8),
    Absent(u8),
    Update(Vec<u8>),
    Tick,
}

fn event() -> impl Strategy<Value = (u64, Event)> {
    let event = prop_oneof![
        3 => (0..6_u8).prop_map(Event::Present),
        2 => (0..6_u8).prop_map(Event::Absent),
        1 => prop::collection::vec(0..6_u8, 0..6).prop_map(Event::Update),
        1 => Just(Event::Tick),
    ];
    // Waits in milliseconds: mostly around the coalescing time, some around the others.
    (prop_oneof![4 => 0..3_000_u64, 2 => 0..40_000_u64, 1 => 0..700_000_u64], event)
}

/// What an observer who only sees presence would say.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    present_since: Option<Duration>,
    left_at: Option<Duration>,
    /// It was away within `FORGET_AFTER` before it came.
    returning: bool,
}

impl Seen {
    fn present(&mut self, now: Duration) {
        if self.present_since.is_none() {
            self.present_since = Some(now);
            self.returning = self.left_at.is_some_and(|left| now < left + FORGET_AFTER);
        }
    }

    fn absent(&mut self, now: Duration) {
        if self.present_since.take().is_some() {
            self.left_at = Some(now);
        }
    }

    /// Since when it may join.
    fn ready_at(&self) -> Option<Duration> {
        self.present_since.map(|since| if self.returning { since + HOLD_DOWN } else { since })
    }
}

fn check(membership: &Membership, seen: &BTreeMap<String, Seen>, now: Duration) -> Result<(), TestCaseError> {
    let someone_joined = membership.members().next().is_some();
    for (address, seen) in seen {
        let state = membership.state(address);
        let Some(ready_at) = seen.ready_at() else {
            prop_assert_eq!(state, State::Gone, "{} left", address);
            continue;
        };
        prop_assert_ne!(state, State::Gone, "{} is present", address);
        if ready_at > now {
            prop_assert_eq!(state, State::HeldDown { until: ready_at }, "{} came back", address);
        }
        if now >= ready_at + COALESCE || (now >= ready_at && !someone_joined) {
            prop_assert_eq!(state, State::Joined, "{} has waited long enough at {:?}", address, now);
        }
    }
    Ok(())
}

fn replay(sets: &mut BTreeMap<String, &'static str>, changes: &Changes) -> Result<(), TestCaseError> {
    for address in &changes.left {
        // An arrival is in no list, so what left need not have been in one.
        sets.remove(address);
    }
    for address in &changes.held_down {
        prop_assert_eq!(sets.insert(address.clone(), "held"), None);
    }
    for address in &changes.joined {
        prop_assert_ne!(sets.insert(address.clone(), "joined"), Some("joined"));
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_rules_hold_for_any_history(events in prop::collection::vec(event(), 1..60)) {
        let mut membership = Membership::new();
        let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
        let mut sets = BTreeMap::new();
        let mut now = Duration::ZERO;
        for (wait, event) in events {
            let next = now + Duration::from_millis(wait);
            // A driver wakes at each timer on the way.
            while let Some(timer) = membership.next_timer().filter(|timer| *timer <= next) {
                prop_assert!(timer >= now, "a timer in the past: {timer:?} at {now:?}");
                let early = membership.clone().tick(timer.saturating_sub(Duration::from_nanos(1)));
                prop_assert!(early.is_empty(), "{early:?} before its time");
                now = timer;
                let changes = membership.tick(now);
                prop_assert!(!changes.joined.is_empty(), "the timer at {now:?} did nothing");
                replay(&mut sets, &changes)?;
                check(&membership, &seen, now)?;
            }
            now = next;
            let changes = match event {
                Event::Present(address) => {
                    seen.entry(address.to_string()).or_default().present(now);
                    membership.present(&address.to_string(), now)
                }
                Event::Absent(address) => {
                    seen.entry(address.to_string()).or_default().absent(now);
                    membership.absent(&address.to_string(), now)
                }
                Event::Update(addresses) => {
                    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                    for address in &addresses {
                        seen.entry(address.clone()).or_default().present(now);
                    }
                    for (_, seen) in seen.iter_mut().filter(|(known, _)| !addresses.contains(known)) {
                        seen.absent(now);
                    }
                    membership.update(addresses.iter().map(String::as_str), nobody, now)
                }
                Event::Tick => membership.tick(now),
            };
            replay(&mut sets, &changes)?;
            check(&membership, &seen, now)?;
            let listed = |wanted| sets.iter().filter(move |(_, set)| **set == wanted).map(|(address, _)| address.as_str());
            prop_assert!(membership.members().eq(listed("joined")));
            prop_assert!(membership.held_down().eq(listed("held")));
            let (members, held_down) = (membership.members().count(), membership.held_down().count());
            prop_assert!(2 * membership.usable().count() >= members + held_down);
        }
    }

    #[test]
    fn no_time_makes_it_panic(events in prop::collection::vec((any::<u64>(), any::<bool>(), 0..3_u8), 0..20)) {
        let mut membership = Membership::new();
        for (seconds, present, address) in events {
            let (address, now) = (address.to_string(), secs(seconds));
            if present { membership.present(&address, now) } else { membership.absent(&address, now) };
            let _ = (membership.next_timer(), membership.state(&address));
        }
    }
}

/// Drives a membership through sets of addresses, each at its time in milliseconds, with the timers between them.
/// Returns how often the members changed, and the fewest and the most there were after the first set.
fn drive(sets: &[(u64, Vec<String>)], until: u64) -> (usize, usize, usize) {
    let mut membership = Membership::new();
    let (mut rebuilds, mut sizes) = (0, Vec::new());
    let mut before: Vec<String> = Vec::new();
    let mut look = |membership: &Membership| {
        let now: Vec<_> = membership.members().map(str::to_owned).collect();
        if now != before {
            rebuilds += 1;
            sizes.push(now.len());
            before = now;
        }
    };
    let end = (until, sets.last().expect("a set").1.clone());
    for (at, set) in sets.iter().chain([&end]) {
        let at = Duration::from_millis(*at);
        while let Some(timer) = membership.next_timer().filter(|timer| *timer <= at) {
            membership.tick(timer);
            look(&membership);
        }
        membership.update(set.iter().map(String::as_str), nobody, at);
        look(&membership);
    }
    (rebuilds, *sizes.iter().min().unwrap(), *sizes.iter().max().unwrap())
}

fn pods(names: impl IntoIterator<Item = String>) -> Vec<String> {
    names.into_iter().collect()
}

#[test]
fn scaling_out_rebuilds_once_for_all_that_come_at_about_the_same_time() {
    let two = (0, pods((0..2).map(|pod| format!("pod-{pod}"))));
    let upto = |last: u64| pods((0..=last).map(|pod| format!("pod-{pod}")));
    // 38 more, one each 50 ms.
    let fast: Vec<_> =
        [two.clone()].into_iter().chain((2..40).map(|pod| (1_000 + 50 * pod, upto(pod)))).collect();
    assert_eq!(drive(&fast, 60_000), (2, 2, 40));
    // One each 500 ms.
    let slow: Vec<_> = [two].into_iter().chain((2..40).map(|pod| (1_000 + 500 * pod, upto(pod)))).collect();
    let (rebuilds, fewest, most) = drive(&slow, 60_000);
    assert_eq!(rebuilds, 1 + 38_usize.div_ceil(4));
    assert_eq!((fewest, most), (2, 40));
}

#[test]
fn a_rollout_rebuilds_once_for_each_wave_and_once_for_each_that_leaves() {
    // 20 pods, 5 at a time: each new one is ready 100 ms after the one before, and an old one leaves 50 ms later.
    let mut set: BTreeSet<String> = (0..20).map(|pod| format!("old-{pod:02}")).collect();
    let mut sets = vec![(0, pods(set.clone()))];
    for pod in 0..20_u64 {
        let at = 5_000 + (pod / 5) * 10_000 + (pod % 5) * 100;
        set.insert(format!("new-{pod:02}"));
        sets.push((at, pods(set.clone())));
        set.remove(&format!("old-{pod:02}"));
        sets.push((at + 50, pods(set.clone())));
    }
    let (rebuilds, fewest, most) = drive(&sets, 100_000);
    assert_eq!(rebuilds, 1 + 20 + 20 / 5);
    assert_eq!((fewest, most), (15, 20));
}

#[test]
fn what_returns_in_a_rollout_under_the_same_address_is_held_down() {
    let all = || pods((0..3).map(|pod| format!("pod-{pod}")));
    let mut sets = vec![(0, all())];
    for pod in 0..3 {
        let at = 10_000 + 60_000 * pod;
        sets.push((at, pods((0..3).filter(|other| *other != pod).map(|pod| format!("pod-{pod}")))));
        sets.push((at + 3_000, all()));
    }
    let (rebuilds, fewest, most) = drive(&sets, 200_000);
    assert_eq!((rebuilds, fewest, most), (1 + 2 * 3, 2, 3));
    // The last one is back on the ring only when it has stayed for a while.
    assert_eq!(drive(&sets, 133_000 + HOLD_DOWN.as_millis() as u64).0, 1 + 2 * 3 - 1);
}
