//! When a runner may be picked: a pure state machine over what health checks and calls showed of it.
//!
//! ```text
//!            serving                    not serving, unreachable, broken
//!   New ───────────────► Well ◄──────────────┐
//!    │                    │                  │ (hold-down over)
//!    │ bad                │ bad              │
//!    ▼                    ▼      serving     │
//!   Out ◄────────────── Out ───────────► HeldDown ──► Out (bad)
//! ```
//!
//! A runner leaves at once and returns late: one that comes and goes every minute would otherwise drag
//! its images back and forth, each time onto cold pods. One that has never been well before (a new one,
//! or all of them when the router starts) has nothing to prove.

use std::time::Duration;

/// How long a runner must be well without a break before it is picked again as a matter of course.
pub(crate) const HOLD_DOWN: Duration = Duration::from_secs(30);

/// Why a runner is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reason {
    /// It has not answered a first health check yet.
    Unknown,
    /// It cannot be dialled, or its connection broke.
    Unreachable,
    /// It says `NOT_SERVING`: it starts or drains.
    Draining,
}

impl Reason {
    /// The word that stands in errors, `/shards` and metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Reason::Unknown => "starting",
            Reason::Unreachable => "unreachable",
            Reason::Draining => "draining",
        }
    }
}

/// What was seen of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// A health check said SERVING.
    Serving,
    /// A health check said something else or failed, or a call found no connection.
    Bad(Reason),
}

/// Whether a runner may be picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Yes.
    Well,
    /// Only when no runner is well.
    HeldDown,
    /// No.
    Out(Reason),
}

impl Standing {
    /// All of them.
    pub(crate) const ALL: [Standing; 5] = [
        Standing::Well,
        Standing::HeldDown,
        Standing::Out(Reason::Unknown),
        Standing::Out(Reason::Unreachable),
        Standing::Out(Reason::Draining),
    ];

    /// The word that stands in `/shards` and metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Standing::Well => "well",
            Standing::HeldDown => "held down",
            Standing::Out(reason) => reason.as_str(),
        }
    }
}

/// The state of one runner. Times are durations since an origin of the caller's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wellness {
    standing: Standing,
    /// It has been well at some time.
    proven: bool,
    held_until: Duration,
}

impl Default for Wellness {
    fn default() -> Self {
        Self { standing: Standing::Out(Reason::Unknown), proven: false, held_until: Duration::ZERO }
    }
}

impl Wellness {
    /// Takes a sign and returns the new standing if it changed.
    pub(crate) fn note(&mut self, sign: Sign, now: Duration) -> Option<Standing> {
        let next = match (sign, self.standing) {
            (Sign::Bad(reason), _) => Standing::Out(reason),
            (Sign::Serving, Standing::Out(_)) if self.proven => {
                self.held_until = now + HOLD_DOWN;
                Standing::HeldDown
            }
            (Sign::Serving, Standing::Out(_)) => Standing::Well,
            (Sign::Serving, standing) => standing,
        };
        self.change(next)
    }

    /// Ends the hold-down when its time has come.
    pub(crate) fn tick(&mut self, now: Duration) -> Option<Standing> {
        let over = self.standing == Standing::HeldDown && now >= self.held_until;
        if over { self.change(Standing::Well) } else { None }
    }

    /// When [`tick`](Self::tick) is due.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        (self.standing == Standing::HeldDown).then_some(self.held_until)
    }

    /// Whether it may be picked.
    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    fn change(&mut self, next: Standing) -> Option<Standing> {
        self.proven |= next == Standing::Well;
        (std::mem::replace(&mut self.standing, next) != next).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }
    const DOWN: Sign = Sign::Bad(Reason::Unreachable);

    #[test]
    fn a_new_runner_is_well_at_once() {
        let mut runner = Wellness::default();
        assert_eq!(runner.standing(), Standing::Out(Reason::Unknown));
        assert_eq!(runner.note(DOWN, s(1)), Some(Standing::Out(Reason::Unreachable)));
        assert_eq!(runner.note(Sign::Serving, s(2)), Some(Standing::Well));
        assert_eq!(runner.note(Sign::Serving, s(3)), None);
    }

    #[test]
    fn a_runner_that_was_out_is_held_down() {
        let mut runner = Wellness::default();
        runner.note(Sign::Serving, s(0));
        assert_eq!(runner.note(DOWN, s(10)), Some(Standing::Out(Reason::Unreachable)));
        assert_eq!(runner.note(Sign::Serving, s(20)), Some(Standing::HeldDown));
        assert_eq!(runner.next_tick(), Some(s(50)));
        assert_eq!(runner.tick(s(49)), None);
        assert_eq!(runner.tick(s(50)), Some(Standing::Well));
        assert_eq!(runner.next_tick(), None);
    }

    #[test]
    fn the_hold_down_starts_again_after_each_break() {
        let mut runner = Wellness { proven: true, ..Wellness::default() };
        assert_eq!(runner.note(Sign::Serving, s(0)), Some(Standing::HeldDown));
        assert_eq!(runner.note(Sign::Bad(Reason::Draining), s(20)), Some(Standing::Out(Reason::Draining)));
        assert_eq!(runner.tick(s(31)), None);
        assert_eq!(runner.note(Sign::Serving, s(40)), Some(Standing::HeldDown));
        assert_eq!(runner.note(Sign::Serving, s(60)), None, "a repeated sign does not prolong it");
        assert_eq!(runner.tick(s(70)), Some(Standing::Well));
    }
}
