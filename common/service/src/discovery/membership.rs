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
//! Those that are held down are not members, but usable when no member is left.
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

    /// Exactly `addresses` are there.
    pub fn update<'a>(&mut self, addresses: impl IntoIterator<Item = &'a str>, now: Duration) -> Changes {
        let addresses: BTreeSet<&str> = addresses.into_iter().collect();
        let others: Vec<String> =
            self.entries.keys().filter(|known| !addresses.contains(known.as_str())).cloned().collect();
        let mut changes = Changes::default();
        for address in others {
            self.note_absent(&address, now, &mut changes);
        }
        for address in addresses {
            self.note_present(address, now, &mut changes);
        }
        self.settle(now, &mut changes);
        changes
    }

    /// Time has passed: to be called at [`Membership::next_timer`].
    pub fn tick(&mut self, now: Duration) -> Changes {
        let mut changes = Changes::default();
        self.settle(now, &mut changes);
        changes
    }

    /// When [`Membership::tick`] has something to do; `None` if only another event can change anything.
    pub fn next_timer(&self) -> Option<Duration> {
        let first = self.entries.values().filter_map(Entry::ready_at).min()?;
        Some(if self.has_members() { first.saturating_add(COALESCE) } else { first })
    }

    /// What is known about `address`.
    pub fn state(&self, address: &str) -> State {
        match self.entries.get(address) {
            Some(Entry::Arriving { since }) => {
                State::Arriving { by: self.next_timer().unwrap_or(since.saturating_add(COALESCE)) }
            }
            Some(Entry::Joined) => State::Joined,
            Some(Entry::HeldDown { until }) => State::HeldDown { until: *until },
            Some(Entry::Gone { .. }) | None => State::Gone,
        }
    }

    /// The members, sorted.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.with(|entry| matches!(entry, Entry::Joined))
    }

    /// Those that are present but held down, sorted: for use when no member is left.
    pub fn held_down(&self) -> impl Iterator<Item = &str> {
        self.with(|entry| matches!(entry, Entry::HeldDown { .. }))
    }

    /// Those to use now, sorted.
    pub fn usable(&self) -> impl Iterator<Item = &str> {
        let fallback = !self.has_members();
        self.with(move |entry| match entry {
            Entry::Joined => true,
            Entry::HeldDown { .. } => fallback,
            _ => false,
        })
    }

    fn with(&self, wanted: impl Fn(&Entry) -> bool) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(move |(_, entry)| wanted(entry)).map(|(address, _)| address.as_str())
    }

    fn has_members(&self) -> bool {
        self.entries.values().any(|entry| *entry == Entry::Joined)
    }

    fn note_present(&mut self, address: &str, now: Duration, changes: &mut Changes) {
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
        if let Some(entry) = self.entries.get_mut(address)
            && !matches!(entry, Entry::Gone { .. })
        {
            *entry = Entry::Gone { since: now };
            changes.left.push(address.to_owned());
        }
    }

    /// Lets those join whose time has come, and forgets those that are long gone.
    fn settle(&mut self, now: Duration, changes: &mut Changes) {
        self.entries.retain(|_, entry| match entry {
            Entry::Gone { since } => now < since.saturating_add(FORGET_AFTER),
            _ => true,
        });
        if self.next_timer().is_none_or(|at| now < at) {
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
