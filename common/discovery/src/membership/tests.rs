//! Membership by value, and by property against the rules as the module states them.

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

/// The addresses of a text, one letter each.
fn letters(addresses: &str) -> impl Iterator<Item = &str> {
    addresses.split("").filter(|letter| !letter.is_empty())
}

/// Applies lists of addresses, each at its second; nobody who is not listed answers.
fn listed(lists: &[(u64, &str)]) -> Membership {
    let mut membership = Membership::default();
    for (at, addresses) in lists {
        membership.update(letters(addresses), nobody, secs(*at));
    }
    membership
}

/// The addresses that have joined, `/`, and those that cool down.
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
fn arrivals_are_gathered_and_returns_cool_down() {
    // Lists with their seconds; members and the next timer then; members after that timer.
    for (what, lists, members, timer, after) in [
        ("the first ones join at once", &[(0, "ba")][..], "ab/", None, "ab/"),
        ("later ones wait", &[(0, "a"), (10, "ab"), (11, "abc")], "a/", Some(12), "abc/"),
        ("repeating it starts nothing anew", &[(0, "a"), (10, "ab"), (11, "ab")], "a/", Some(12), "ab/"),
        ("leaving is immediate", &[(0, "ab"), (5, "a")], "a/", None, "a/"),
        ("coming back is not", &[(0, "ab"), (5, "a"), (6, "ab")], "a/b", Some(38), "ab/"),
        (
            "each absence starts a cooldown",
            &[(0, "ab"), (5, "a"), (6, "ab"), (35, "a"), (36, "ab")],
            "a/b",
            Some(68),
            "ab/",
        ),
        (
            "an arrival that goes was there",
            &[(0, "a"), (10, "ab"), (11, "a"), (12, "ab")],
            "a/b",
            Some(44),
            "ab/",
        ),
        ("both join together", &[(0, "ab"), (0, "a"), (0, "ab"), (29, "abc")], "a/b", Some(31), "abc/"),
        ("without members nobody waits", &[(0, "a"), (10, "ab"), (11, "b")], "b/", None, "b/"),
        ("but for the cooldown", &[(0, "a"), (12, ""), (13, "a")], "/a", Some(43), "a/"),
        ("a new set replaces the old one", &[(0, "ab"), (10, "bc"), (11, "d")], "d/", None, "d/"),
        ("long gone is forgotten", &[(0, "ab"), (1, "a"), (601, "ab")], "a/", Some(603), "ab/"),
        ("and before that it is not", &[(0, "ab"), (1, "a"), (600, "ab")], "a/b", Some(632), "ab/"),
    ] {
        let mut membership = listed(lists);
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
fn those_that_cool_down_are_used_when_they_are_half_of_the_fleet() {
    let back = [(0, "abc"), (10, ""), (20, "a"), (21, "ab"), (22, "abc")];
    for (what, lists, then, expected) in [
        ("a fleet that is back", &back[..], None, "abc"),
        ("its first one does not stand alone", &back, Some(50), "abc"),
        ("nor does a new one", &[&back[..], &[(25, "abcd")]].concat(), None, "abcd"),
        ("one that flaps is not used", &[(0, "abc"), (5, "ac"), (6, "abc")], None, "ac"),
        ("two of three are", &[(0, "abc"), (5, "ac"), (6, "abc"), (7, "ab"), (8, "abc")], None, "abc"),
        ("two of four are", &[(0, "abcd"), (5, "ab"), (6, "abcd")], None, "abcd"),
        ("one of two is not", &[(0, "abcd"), (5, "ab"), (6, "abcd"), (12, "ac")], None, "a"),
    ] {
        let mut membership = listed(lists);
        if let Some(then) = then {
            membership.tick(secs(then));
        }
        assert_eq!(usable(&membership), expected, "{what}");
    }
}

#[test]
fn a_member_that_answers_stays_when_it_is_not_listed() {
    // Lists; the next timer; usable at it, and what is left after it.
    for (what, lists, timer, before, after) in [
        ("5 minutes when none is listed", &[(0, "ab"), (10, ""), (100, "")][..], 310, "ab", ""),
        ("30 s when others are", &[(0, "ab"), (10, "a"), (20, "a")], 40, "ab", "a"),
        ("listed again one by one", &[(0, "ab"), (10, ""), (200, "b")], 230, "ab", "b"),
        (
            "a list that gets shorter until it is empty",
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
    // It is a member still when it is listed again, and leaves at once when it stops to answer.
    membership.update(letters("a"), everybody, secs(20));
    membership.retain_unlisted(nobody, secs(21));
    assert_eq!((&*states(&membership), membership.next_timer()), ("a/", None), "the listed one stays");
}

proptest! {
    /// Lists come after some time: mostly around the coalescing time, sometimes around the others.
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
            // A driver wakes at each timer on the way.
            while let Some(timer) = membership.next_timer().filter(|timer| *timer <= next) {
                prop_assert!(timer >= now, "a timer in the past: {timer:?} at {now:?}");
                let before = states(&membership);
                membership.tick(timer.saturating_sub(Duration::from_nanos(1)));
                prop_assert_eq!(&states(&membership), &before, "before its time");
                now = timer;
                membership.tick(now);
                prop_assert_ne!(states(&membership), before, "the timer did nothing");
            }
            now = next;
            match which {
                0 => listed = all,
                _ => listed[one] = !listed[one],
            }
            addresses = ('a'..).zip(listed).filter(|(_, listed)| *listed).map(|(letter, _)| letter).collect();
            membership.update(letters(&addresses), nobody, now);
            prop_assert!(membership.members().all(|member| addresses.contains(member)), "others have left");
            prop_assert!(2 * membership.usable().count() >= membership.members().count());
        }
        while let Some(timer) = membership.next_timer() {
            membership.tick(timer);
        }
        prop_assert_eq!(states(&membership), format!("{addresses}/"), "all join in the end");
    }
}
