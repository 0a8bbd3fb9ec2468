//! Decides which of the addresses from discovery are members.
//!
//! Each change of the members moves images between runners. So new addresses are collected for
//! [`COALESCE`] and join together. An address that left and came back must first be listed for
//! [`COOLDOWN`]. An address that discovery no longer lists leaves at once, unless its server passes
//! health checks.
//!
//! ```text
//!             listed                    after COALESCE, with all that arrived meanwhile
//!  unknown ───────────────► Arriving ────────────────────────────────────► Joined
//!     ▲                        │              ▲                              │
//!     │ FORGET_AFTER           │ left         │ after COOLDOWN, then         │ left
//!     │                        ▼              │ collected like an arrival    │
//!     └────────────────────── Gone ◄──────────┼──────────────────────────────┘
//!                              │    left      │
//!                              └─────────► CoolingDown
//!                                listed
//! ```
//! While no address has joined, new addresses join at once, because calls wait for them.
//!
//! The cooldown is meant for a single address that flaps. If at least half of all addresses cool
//! down, the cause is a different one, and the calls would overload the remaining addresses. In
//! this case, addresses that cool down are usable as well. See [`cooling_down_count`].
//!
//! If discovery no longer lists an address but its server passes health checks, the address stays
//! for a limited time. In this case the fault is more often in discovery than in the server. See
//! [`Membership::update`].
//!
//! No I/O and no clock: time is an argument, as a duration since any fixed moment.
//! [`LiveMembership`] adds the clock.

mod live;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use self::live::LiveMembership;

/// How long the first new address waits for others. Then all of them join together.
pub const COALESCE: Duration = Duration::from_secs(2);

/// How long an address that left must be listed again before it joins.
pub const COOLDOWN: Duration = Duration::from_secs(30);

/// An address that was gone for this long counts as new. This is longer than Kubernetes' longest
/// pause between restarts of a crashing container (5 minutes). So a container in a crash loop never
/// counts as new.
const FORGET_AFTER: Duration = Duration::from_mins(10);

/// How long an address that passes health checks stays when discovery lists no address at all.
const KEPT_BY_EMPTY: Duration = Duration::from_mins(5);

/// How long an address that passes health checks stays when discovery lists only other addresses.
const KEPT_BY_PARTIAL: Duration = Duration::from_secs(30);

/// Whether servers that cool down are used like healthy servers: true if at least half of all
/// servers cool down. Exception: if one server is healthy and one cools down, the latter is not
/// used, because it may flap.
pub fn cooling_down_count(healthy: usize, cooling_down: usize) -> bool {
    healthy < cooling_down || (healthy == cooling_down && cooling_down > 1)
}

/// The addresses of one target and their states.
#[derive(Debug, Clone, Default)]
pub struct Membership {
    entries: BTreeMap<String, Entry>,
    /// Whether the list in the last [`Membership::update`] was empty.
    none_listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    presence: Presence,
    /// Time at which the address leaves, although its server passes health checks. `None` while
    /// discovery lists the address.
    unlisted_until: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Arriving { since: Duration },
    Joined,
    CoolingDown { until: Duration },
    Gone { since: Duration },
}

// === impl Membership ===

impl Membership {
    /// Applies discovery's current list. A member that is not in `listed` stays while `answers`
    /// returns true for it: up to 5 minutes if `listed` is empty, and up to 30 s otherwise.
    pub fn update<'a>(
        &mut self,
        listed: impl IntoIterator<Item = &'a str>,
        answers: impl Fn(&str) -> bool,
        now: Duration,
    ) {
        let listed: BTreeSet<&str> = listed.into_iter().collect();
        let none_listed = listed.is_empty();
        let emptied = !std::mem::replace(&mut self.none_listed, none_listed) && none_listed;
        let (empty, partial) = (now.saturating_add(KEPT_BY_EMPTY), now.saturating_add(KEPT_BY_PARTIAL));
        for (address, entry) in &mut self.entries {
            if listed.contains(address.as_str()) {
                continue;
            }
            if entry.is_member() && answers(address) {
                let until = entry.unlisted_until.filter(|_| !emptied).unwrap_or(empty);
                entry.unlisted_until = Some(if none_listed { until } else { until.min(partial) });
            } else {
                entry.leave(now);
            }
        }
        for address in listed {
            let arrived = Entry { presence: Presence::Arriving { since: now }, unlisted_until: None };
            let entry = self.entries.entry(address.to_owned()).or_insert(arrived);
            entry.unlisted_until = None;
            match entry.presence {
                Presence::Gone { since } if now < since.saturating_add(FORGET_AFTER) => {
                    entry.presence = Presence::CoolingDown { until: now.saturating_add(COOLDOWN) };
                }
                Presence::Gone { .. } => *entry = arrived,
                _ => {}
            }
        }
        self.tick(now);
    }

    /// Removes unlisted members for which `answers` returns false.
    pub fn retain_unlisted(&mut self, answers: impl Fn(&str) -> bool, now: Duration) {
        for (address, entry) in &mut self.entries {
            if entry.unlisted_until.is_some() && !answers(address) {
                entry.leave(now);
            }
        }
        self.tick(now);
    }

    /// Applies the passage of time; call it at [`Membership::next_timer`]. Removes unlisted members
    /// after their time limit, adds addresses that may join, and forgets addresses that left long
    /// ago.
    pub fn tick(&mut self, now: Duration) {
        for entry in self.entries.values_mut() {
            if entry.unlisted_until.is_some_and(|until| until <= now) {
                entry.leave(now);
            }
        }
        self.entries.retain(|_, entry| match entry.presence {
            Presence::Gone { since } => now < since.saturating_add(FORGET_AFTER),
            _ => true,
        });
        if self.next_join().is_some_and(|at| at <= now) {
            for entry in self.entries.values_mut() {
                if entry.may_join_at().is_some_and(|at| at <= now) {
                    entry.presence = Presence::Joined;
                }
            }
        }
    }

    /// When to call [`Membership::tick`] next; `None` if no timer is pending.
    pub fn next_timer(&self) -> Option<Duration> {
        let unlisted = self.entries.values().filter_map(|entry| entry.unlisted_until);
        unlisted.chain(self.next_join()).min()
    }

    fn next_join(&self) -> Option<Duration> {
        let first = self.entries.values().filter_map(Entry::may_join_at).min()?;
        let has_joined = self.entries.values().any(Entry::is_joined);
        Some(if has_joined { first.saturating_add(COALESCE) } else { first })
    }

    /// Whether `address` is a member although discovery does not list it any more.
    pub fn is_unlisted(&self, address: &str) -> bool {
        self.entries.get(address).is_some_and(|entry| entry.unlisted_until.is_some())
    }

    /// Whether `address` left and came back a short time ago.
    pub fn is_cooling_down(&self, address: &str) -> bool {
        self.entries.get(address).is_some_and(|entry| entry.is_member() && !entry.is_joined())
    }

    /// All addresses that have joined or cool down, sorted.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.with(Entry::is_member)
    }

    /// The members to use now, sorted: all that have joined. Members that cool down are included if
    /// [`cooling_down_count`] is true.
    pub fn usable(&self) -> impl Iterator<Item = &str> {
        let joined = self.entries.values().filter(|entry| entry.is_joined()).count();
        let all = cooling_down_count(joined, self.members().count() - joined);
        self.with(move |entry| if all { entry.is_member() } else { entry.is_joined() })
    }

    fn with(&self, wanted: impl Fn(&Entry) -> bool) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(move |(_, entry)| wanted(entry)).map(|(address, _)| address.as_str())
    }
}

// === impl Entry ===

impl Entry {
    fn is_joined(&self) -> bool {
        self.presence == Presence::Joined
    }

    fn is_member(&self) -> bool {
        matches!(self.presence, Presence::Joined | Presence::CoolingDown { .. })
    }

    fn may_join_at(&self) -> Option<Duration> {
        match self.presence {
            Presence::Arriving { since } => Some(since),
            Presence::CoolingDown { until } => Some(until),
            Presence::Joined | Presence::Gone { .. } => None,
        }
    }

    fn leave(&mut self, now: Duration) {
        self.unlisted_until = None;
        if !matches!(self.presence, Presence::Gone { .. }) {
            self.presence = Presence::Gone { since: now };
        }
    }
}
