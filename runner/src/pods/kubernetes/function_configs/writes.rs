//! When something is written to the API server: one request at a time, and none twice in short succession. Another
//! writer of the same field would answer each of ours with one of its own, for ever. Pure.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::work::Work;

/// Pauses between writes of the same to the same object, doubling.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_mins(5);

/// Which objects are to be looked at, and what was tried with them.
#[derive(Debug, Default)]
pub(super) struct Writes {
    due: BTreeSet<String>,
    later: BTreeSet<(Instant, String)>,
    tried: HashMap<String, Tried>,
}

#[derive(Debug)]
struct Tried {
    work: Work,
    at: Instant,
    pause: Duration,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Write this to this object, then say how it went: [`Writes::tried`].
    Write(String, Work),
    /// Nothing before then, unless something changes.
    At(Instant),
    /// Nothing unless something changes.
    Nothing,
}

// === impl Writes ===

impl Writes {
    /// Something about the object has changed.
    pub(super) fn look_at(&mut self, name: &str) {
        if !self.due.contains(name) {
            self.due.insert(name.to_owned());
        }
    }

    /// There is no such object any more.
    pub(super) fn forget(&mut self, name: &str) {
        self.tried.remove(name);
    }

    /// What to do now; `work` says what is to be written to an object.
    pub(super) fn next(&mut self, now: Instant, work: impl Fn(&str) -> Option<Work>) -> Next {
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            self.due.extend(self.later.pop_first().map(|(_, name)| name));
        }
        while let Some(name) = self.due.pop_first() {
            let Some(work) = work(&name) else { continue };
            match self.tried.get(&name).filter(|tried| tried.work == work).map(Tried::again_at) {
                Some(again) if again > now => drop(self.later.insert((again, name))),
                _ => return Next::Write(name, work),
            }
        }
        self.later.first().map_or(Next::Nothing, |(at, _)| Next::At(*at))
    }

    /// What came of a write. One that failed is tried again; one that did not is followed by the object as it is then.
    pub(super) fn tried(&mut self, name: String, work: Work, succeeded: bool, now: Instant) {
        let before = self.tried.remove(&name).filter(|before| before.work == work);
        let pause = match before {
            Some(before) if now < before.at + 2 * LAST_PAUSE => (before.pause * 2).min(LAST_PAUSE),
            _ => FIRST_PAUSE,
        };
        let tried = Tried { work, at: now, pause };
        if !succeeded {
            self.later.insert((tried.again_at(), name.clone()));
        }
        self.tried.insert(name, tried);
    }
}

// === impl Tried ===

impl Tried {
    fn again_at(&self) -> Instant {
        self.at + self.pause
    }
}
