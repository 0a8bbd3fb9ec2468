//! Tests of the module's rules: examples of each rule, and a property test with random histories.

use proptest::prelude::*;

use super::*;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn nobody(_: &str) -> bool {
    false
}

fn everybody(_: &str) -> bool {
    true
}

/// The addresses in a text. Each letter is one address.
fn letters(addresses: &str) -> impl Iterator<Item = &str> {
    addresses.split("").filter(|letter| !letter.is_empty())
}

/// Applies lists of addresses, each at its time in seconds. Unlisted addresses do not answer.
fn after_lists(lists: &[(u64, &str)]) -> Membership {
    let mut membership = Membership::default();
    for (at, addresses) in lists {
        membership.update(letters(addresses), nobody, secs(*at));
    }
    membership
}

/// The addresses that have joined, a `/`, and the addresses that cool down.
fn states(membership: &Membership) -> String {
    let cooling: String =
        membership.members().filter(|address| membership.is_cooling_down(address)).collect();
    let joined: String = membership.members().filter(|address| !cooling.contains(address)).collect();
    format!("{joined}/{cooling}")
}

fn usable(membership: &Membership) -> String {
    membership.usable().collect()
}

#[test]
fn arrivals_join_together_and_an_address_that_returns_cools_down() {
    // Lists with their times; members and the next timer after the lists; members after that timer.
    for (what, lists, members, timer, after) in [
        ("the first addresses join at once", &[(0, "ba")][..], "ab/", None, "ab/"),
        ("later addresses wait", &[(0, "a"), (10, "ab"), (11, "abc")], "a/", Some(12), "abc/"),
        (
            "the same list again starts no new wait",
            &[(0, "a"), (10, "ab"), (11, "ab")],
            "a/",
            Some(12),
            "ab/",
        ),
        ("leaving is immediate", &[(0, "ab"), (5, "a")], "a/", None, "a/"),
        ("a return is not", &[(0, "ab"), (5, "a"), (6, "ab")], "a/b", Some(38), "ab/"),
        (
            "each absence starts a cooldown",
            &[(0, "ab"), (5, "a"), (6, "ab"), (35, "a"), (36, "ab")],
            "a/b",
            Some(68),
            "ab/",
        ),
        (
            "an arrival that leaves early also cools down",
            &[(0, "a"), (10, "ab"), (11, "a"), (12, "ab")],
            "a/b",
            Some(44),
            "ab/",
        ),
        (
            "an arrival joins with the end of a cooldown",
            &[(0, "ab"), (0, "a"), (0, "ab"), (29, "abc")],
            "a/b",
            Some(31),
            "abc/",
        ),
        ("without members, arrivals do not wait", &[(0, "a"), (10, "ab"), (11, "b")], "b/", None, "b/"),
        ("without members, a cooldown still lasts", &[(0, "a"), (12, ""), (13, "a")], "/a", Some(43), "a/"),
        ("a new set replaces the old one", &[(0, "ab"), (10, "bc"), (11, "d")], "d/", None, "d/"),
        (
            "an address that left long ago is forgotten",
            &[(0, "ab"), (1, "a"), (601, "ab")],
            "a/",
            Some(603),
            "ab/",
        ),
        ("before that it is remembered", &[(0, "ab"), (1, "a"), (600, "ab")], "a/b", Some(632), "ab/"),
    ] {
        let mut membership = after_lists(lists);
        assert_eq!((&*states(&membership), membership.next_timer()), (members, timer.map(secs)), "{what}");
        if let Some(timer) = timer {
            membership.tick(secs(timer).saturating_sub(Duration::from_nanos(1)));
            assert_eq!(states(&membership), members, "{what}: too early");
            membership.tick(secs(timer));
            assert_eq!((&*states(&membership), membership.next_timer()), (after, None), "{what}");
        }
    }
    let mut many = Membership::default();
    for pod in 0..1_000_u64 {
        many.update([&*pod.to_string()], nobody, secs(10_000 + 10 * pod));
    }
    assert!(many.entries.len() <= 62, "{} addresses are remembered", many.entries.len());
}

#[test]
fn addresses_that_cool_down_are_used_if_they_are_half_of_the_fleet() {
    let back = [(0, "abc"), (10, ""), (20, "a"), (21, "ab"), (22, "abc")];
    for (what, lists, then, expected) in [
        ("the whole fleet returns", &back[..], None, "abc"),
        ("the first that has joined is not used alone", &back, Some(50), "abc"),
        ("nor is a new address", &[&back[..], &[(25, "abcd")]].concat(), None, "abcd"),
        ("one of three is not", &[(0, "abc"), (5, "ac"), (6, "abc")], None, "ac"),
        ("two of three are used", &[(0, "abc"), (5, "ac"), (6, "abc"), (7, "ab"), (8, "abc")], None, "abc"),
        ("two of four are used", &[(0, "abcd"), (5, "ab"), (6, "abcd")], None, "abcd"),
        ("one of two is not", &[(0, "abcd"), (5, "ab"), (6, "abcd"), (12, "ac")], None, "a"),
    ] {
        let mut membership = after_lists(lists);
        if let Some(then) = then {
            membership.tick(secs(then));
        }
        assert_eq!(usable(&membership), expected, "{what}");
    }
}

#[test]
fn a_member_that_answers_stays_when_it_is_not_listed() {
    // Lists with their times; the next timer; the usable addresses before it and after it.
    for (what, lists, timer, before, after) in [
        ("5 minutes when none is listed", &[(0, "ab"), (10, ""), (100, "")][..], 310, "ab", ""),
        ("30 s when others are", &[(0, "ab"), (10, "a"), (20, "a")], 40, "ab", "a"),
        ("one is listed again", &[(0, "ab"), (10, ""), (200, "b")], 230, "ab", "b"),
        (
            "a list gets shorter until it is empty",
            &[(0, ""), (0, "abc"), (1, "bc"), (20, "c"), (29, "")],
            329,
            "abc",
            "",
        ),
    ] {
        let mut membership = Membership::default();
        for (at, addresses) in lists {
            membership.update(letters(addresses), everybody, secs(*at));
        }
        assert_eq!((membership.next_timer(), &*usable(&membership)), (Some(secs(timer)), before), "{what}");
        membership.tick(secs(timer));
        assert_eq!(usable(&membership), after, "{what}");
    }
    let mut membership = Membership::default();
    membership.update(letters("abc"), everybody, secs(0));
    membership.update([], |address| address != "c", secs(10));
    assert_eq!(usable(&membership), "ab");
    assert!(membership.is_unlisted("a") && !membership.is_unlisted("c"));
    // A listed member stays. An unlisted member leaves as soon as it no longer answers.
    membership.update(letters("a"), everybody, secs(20));
    membership.retain_unlisted(nobody, secs(21));
    assert_eq!((&*states(&membership), membership.next_timer()), ("a/", None), "the listed member stays");
}

proptest! {
    /// The times between lists are mostly close to `COALESCE`, sometimes much longer.
    #[test]
    fn the_rules_hold_for_any_history(
        events in prop::collection::vec(
            (prop_oneof![4 => 0..3_000_u64, 2 => 0..40_000_u64, 1 => 0..700_000_u64], 0..6_usize, any::<[bool; 6]>(), 0..8_u8),
            1..60,
        ),
    ) {
        let mut membership = Membership::default();
        let (mut listed, mut addresses, mut now) = ([false; 6], String::new(), Duration::ZERO);
        for (wait, one, all, which) in events {
            let next = now + Duration::from_millis(wait);
            // Run all timers that are due before the next list.
            while let Some(timer) = membership.next_timer().filter(|timer| *timer <= next) {
                prop_assert!(timer >= now, "a timer in the past: {timer:?} at {now:?}");
                let before = states(&membership);
                membership.tick(timer.saturating_sub(Duration::from_nanos(1)));
                prop_assert_eq!(&states(&membership), &before, "before its time");
                now = timer;
                membership.tick(now);
                prop_assert_ne!(states(&membership), before, "the timer changed nothing");
            }
            now = next;
            match which {
                0 => listed = all,
                _ => listed[one] = !listed[one],
            }
            addresses = ('a'..).zip(listed).filter(|(_, listed)| *listed).map(|(letter, _)| letter).collect();
            membership.update(letters(&addresses), nobody, now);
            prop_assert!(membership.members().all(|member| addresses.contains(member)), "unlisted addresses have left");
            prop_assert!(2 * membership.usable().count() >= membership.members().count());
        }
        while let Some(timer) = membership.next_timer() {
            membership.tick(timer);
        }
        prop_assert_eq!(states(&membership), format!("{addresses}/"), "all join in the end");
    }
}
