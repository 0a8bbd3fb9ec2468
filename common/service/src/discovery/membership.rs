//! Who takes part: presence, smoothed.
//!
//! An address is present when discovery lists it and health does not speak against it; the caller says so by
//! [`Membership::present`] and [`Membership::absent`]. Each change of the members moves images between
//! runners, so arrivals are gathered for a moment, and an address that left and came back must first stay
//! for a while. Leaving is never delayed.
//!
//! ```text
//!             present                   COALESCE later, with all that arrived meanwhile
//!  unknown ───────────────► Arriving ────────────────────────────────────► Joined
//!     ▲                        │              ▲                              │
//!     │ FORGET_AFTER           │ absent       │ HOLD_DOWN later, then        │ absent
//!     │                        ▼              │ gathered like an arrival     │
//!     └────────────────────── Gone ◄──────────┼──────────────────────────────┘
//!                              │    absent    │
//!                              └─────────► HeldDown
//!                                present
//! ```
//! While nobody is joined, arrivals join at once: there is nothing to protect, and calls wait.
//!
//! The cooldown (`HeldDown`) is for one address that flaps. When half of a fleet cools down, something
//! else is wrong, and sending all calls to the few that are left would make it worse: then those that
//! cool down are usable as well. See [`held_down_count`].
//!
//! An address that discovery no longer lists, but that answers health checks, stays what it is for a
//! while: discovery is wrong more often than a server that answers. See [`Membership::update`].
//!
//! Pure: time is an argument, as a duration since any fixed moment.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Arrivals within this time of the first one join together.
pub const COALESCE: Duration = Duration::from_secs(2);

/// How long an address that left must be present again before it joins.
pub const HOLD_DOWN: Duration = Duration::from_secs(30);

/// An address that was gone for this long counts as a new one. Longer than Kubernetes' longest wait between
/// two starts of a crashing container (5 minutes), so that a crash loop is never taken for new.
pub const FORGET_AFTER: Duration = Duration::from_mins(10);

/// How long an address that answers stays when discovery lists none at all.
pub const KEPT_BY_EMPTY: Duration = Duration::from_mins(5);

/// How long an address that answers stays when discovery lists others, but not this one.
pub const KEPT_BY_PARTIAL: Duration = Duration::from_secs(30);

/// Whether those that are held down are used as well as those in order: while they are more than
/// those, or as many and several. One that is held down beside one in order may be what flaps.
pub fn held_down_count(in_order: usize, held_down: usize) -> bool {
    in_order < held_down || (in_order == held_down && held_down > 1)
}

/// What is known about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Present for the first time; joins at `by` at the latest.
    Arriving {
        /// When it joins.
        by: Duration,
    },
    /// A member.
    Joined,
    /// Present again after it left. Joins within [`COALESCE`] of `until` if it stays.
    HeldDown {
        /// When it has been present for long enough.
        until: Duration,
    },
    /// Not present, or never seen.
    Gone,
}

/// What one event did. Each list is sorted; an address is in one of them at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Members from now on.
    pub joined: Vec<String>,
    /// Present again, but held down.
    pub held_down: Vec<String>,
    /// Not usable any more, whatever they were before.
    pub left: Vec<String>,
}

/// The addresses of a tier and their states.
#[derive(Debug, Clone, Default)]
pub struct Membership {
    entries: BTreeMap<String, Entry>,
    /// Those that are not listed any more and stay because they answer, and until when.
    unlisted: BTreeMap<String, Duration>,
    /// The last [`Membership::update`] listed none.
    none_listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Arriving { since: Duration },
    Joined,
    HeldDown { until: Duration },
    Gone { since: Duration },
}

// === impl Membership ===

impl Membership {
    /// Nobody is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// `address` is there. Repeating it changes nothing.
    pub fn present(&mut self, address: &str, now: Duration) -> Changes {
        let mut changes = Changes::default();
        self.note_present(address, now, &mut changes);
        self.settle(now, &mut changes);
        changes
    }

    /// `address` is not there. Repeating it changes nothing.
    pub fn absent(&mut self, address: &str, now: Duration) -> Changes {
        let mut changes = Changes::default();
        self.note_absent(address, now, &mut changes);
        self.settle(now, &mut changes);
        changes
    }

    /// Discovery lists exactly `addresses`. Of the others those stay for which `answers` holds: up to
    /// [`KEPT_BY_EMPTY`] while none is listed, and up to [`KEPT_BY_PARTIAL`] otherwise.
    pub fn update<'a>(
        &mut self,
        addresses: impl IntoIterator<Item = &'a str>,
        answers: impl Fn(&str) -> bool,
        now: Duration,
    ) -> Changes {
        let addresses: BTreeSet<&str> = addresses.into_iter().collect();
        let others: Vec<String> =
            self.entries.keys().filter(|known| !addresses.contains(known.as_str())).cloned().collect();
        let none_listed = addresses.is_empty();
        let emptied = !std::mem::replace(&mut self.none_listed, none_listed) && none_listed;
        let mut changes = Changes::default();
        for address in others {
            let kept = matches!(self.entries.get(&address), Some(Entry::Joined | Entry::HeldDown { .. }));
            if kept && answers(&address) {
                let (empty, partial) =
                    (now.saturating_add(KEPT_BY_EMPTY), now.saturating_add(KEPT_BY_PARTIAL));
                let until = self.unlisted.entry(address).or_insert(empty);
                if emptied {
                    *until = empty;
                } else if !none_listed {
                    *until = partial.min(*until);
                }
            } else {
                self.note_absent(&address, now, &mut changes);
            }
        }
        for address in addresses {
            self.note_present(address, now, &mut changes);
        }
        self.settle(now, &mut changes);
        changes
    }

    /// Of the addresses that are not listed any more, those leave for which `answers` does not hold.
    pub fn retain_unlisted(&mut self, answers: impl Fn(&str) -> bool, now: Duration) -> Changes {
        let mut changes = Changes::default();
        let silent: Vec<String> = self.unlisted.keys().filter(|address| !answers(address)).cloned().collect();
        for address in silent {
            self.note_absent(&address, now, &mut changes);
        }
        self.settle(now, &mut changes);
        changes
    }

    /// Whether `address` is there although discovery does not list it any more.
    pub fn is_unlisted(&self, address: &str) -> bool {
        self.unlisted.contains_key(address)
    }

    /// Time has passed: to be called at [`Membership::next_timer`].
    pub fn tick(&mut self, now: Duration) -> Changes {
        let mut changes = Changes::default();
        self.settle(now, &mut changes);
        changes
    }

    /// When [`Membership::tick`] has something to do; `None` if only another event can change anything.
    pub fn next_timer(&self) -> Option<Duration> {
        self.next_join().into_iter().chain(self.unlisted.values().copied()).min()
    }

    fn next_join(&self) -> Option<Duration> {
        let first = self.entries.values().filter_map(Entry::ready_at).min()?;
        Some(if self.has_members() { first.saturating_add(COALESCE) } else { first })
    }

    /// What is known about `address`.
    pub fn state(&self, address: &str) -> State {
        match self.entries.get(address) {
            Some(Entry::Arriving { since }) => {
                State::Arriving { by: self.next_join().unwrap_or(since.saturating_add(COALESCE)) }
            }
            Some(Entry::Joined) => State::Joined,
            Some(Entry::HeldDown { until }) => State::HeldDown { until: *until },
            Some(Entry::Gone { .. }) | None => State::Gone,
        }
    }

    /// All that are present, sorted, but for those that are arriving.
    pub fn joined_or_held_down(&self) -> impl Iterator<Item = &str> {
        self.with(|entry| matches!(entry, Entry::Joined | Entry::HeldDown { .. }))
    }

    /// The members, sorted.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.with(|entry| matches!(entry, Entry::Joined))
    }

    /// Those that are present but held down, sorted.
    pub fn held_down(&self) -> impl Iterator<Item = &str> {
        self.with(|entry| matches!(entry, Entry::HeldDown { .. }))
    }

    /// Those to use now, sorted: the members, and those that are held down while they count.
    pub fn usable(&self) -> impl Iterator<Item = &str> {
        let with_held_down = held_down_count(self.members().count(), self.held_down().count());
        self.with(move |entry| match entry {
            Entry::Joined => true,
            Entry::HeldDown { .. } => with_held_down,
            Entry::Arriving { .. } | Entry::Gone { .. } => false,
        })
    }

    fn with(&self, wanted: impl Fn(&Entry) -> bool) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(move |(_, entry)| wanted(entry)).map(|(address, _)| address.as_str())
    }

    fn has_members(&self) -> bool {
        self.entries.values().any(|entry| *entry == Entry::Joined)
    }

    fn note_present(&mut self, address: &str, now: Duration, changes: &mut Changes) {
        self.unlisted.remove(address);
        match self.entries.get_mut(address) {
            Some(Entry::Gone { since }) if now < since.saturating_add(FORGET_AFTER) => {
                let until = now.saturating_add(HOLD_DOWN);
                self.entries.insert(address.to_owned(), Entry::HeldDown { until });
                changes.held_down.push(address.to_owned());
            }
            Some(Entry::Gone { .. }) | None => {
                self.entries.insert(address.to_owned(), Entry::Arriving { since: now });
            }
            Some(_) => {}
        }
    }

    fn note_absent(&mut self, address: &str, now: Duration, changes: &mut Changes) {
        self.unlisted.remove(address);
        if let Some(entry) = self.entries.get_mut(address)
            && !matches!(entry, Entry::Gone { .. })
        {
            *entry = Entry::Gone { since: now };
            changes.left.push(address.to_owned());
        }
    }

    /// Lets those leave and join whose time has come, and forgets those that are long gone.
    fn settle(&mut self, now: Duration, changes: &mut Changes) {
        let over: Vec<String> = self
            .unlisted
            .iter()
            .filter(|(_, until)| **until <= now)
            .map(|(address, _)| address.clone())
            .collect();
        for address in over {
            self.note_absent(&address, now, changes);
        }
        self.entries.retain(|_, entry| match entry {
            Entry::Gone { since } => now < since.saturating_add(FORGET_AFTER),
            _ => true,
        });
        if self.next_join().is_none_or(|at| now < at) {
            return;
        }
        for (address, entry) in &mut self.entries {
            if entry.ready_at().is_some_and(|at| at <= now) {
                *entry = Entry::Joined;
                changes.joined.push(address.clone());
            }
        }
    }
}

// === impl Entry ===

impl Entry {
    /// From when on it may join.
    fn ready_at(&self) -> Option<Duration> {
        match self {
            Self::Arriving { since } => Some(*since),
            Self::HeldDown { until } => Some(*until),
            Self::Joined | Self::Gone { .. } => None,
        }
    }
}

// === impl Changes ===

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.joined.is_empty() && self.held_down.is_empty() && self.left.is_empty()
    }
}
