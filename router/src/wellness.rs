//! When a runner may be picked: a pure state machine over what health checks and calls showed of it.
//!
//! ```text
//!            serving                    not serving, unreachable, broken
//!   New ───────────────► Well ◄──────────────┬────────────────────┐
//!    │                    │ │               │ (hold-down over)   │ (and a try is answered)
//!    │ bad                │ └────────────────────────────► PassedOver
//!    ▼                    ▼      serving     │  its calls fail
//!   Out ◄────────────── Out ───────────► HeldDown ──► Out (bad)
//! ```
//!
//! A runner leaves at once and returns late: one that comes and goes every minute would otherwise drag
//! its images back and forth, each time onto cold pods. One that has never been well before (a new one,
//! or all of them when the router starts) has nothing to prove.
//!
//! Health is not everything: a runner that says SERVING and fails or stalls its calls is passed over, each time for
//! longer, and comes back only when it answers a try. [`Streak`] says when calls have failed often enough.

use std::time::Duration;

/// How long a runner must be well without a break before it is picked again as a matter of course.
pub(crate) const HOLD_DOWN: Duration = Duration::from_secs(30);
/// The longest that a runner is passed over before it is tried again. The first time it is [`HOLD_DOWN`].
const LONGEST_PASS: Duration = Duration::from_mins(5);
/// A runner that has done well for this long is passed over as if for the first time.
const FORGIVEN: Duration = Duration::from_mins(10);
/// Failures in a row from which on a runner is passed over.
const MAX_STREAK: u32 = 5;

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
    /// Its calls fail, or are not answered, although its health is good.
    Failing,
    /// It answered a try.
    Answering,
}

/// How a call to a runner failed for which the runner may be to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The stream was refused or reset.
    Hop,
    /// A call of the image with this hash was answered UNAVAILABLE, or ran into its deadline. A function can be slow,
    /// and can be what ends its pods: one image alone proves nothing.
    Call(u64),
}

/// Failures of one runner, with no answer in between.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Streak {
    failures: u32,
    hop: bool,
    image: Option<u64>,
    several_images: bool,
}

/// Whether a runner may be picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Yes.
    Well,
    /// Only when no runner is well.
    HeldDown,
    /// Only when all others are out: its calls fail.
    PassedOver,
    /// No.
    Out(Reason),
}

impl Standing {
    /// All of them.
    pub(crate) const ALL: [Standing; 6] = [
        Standing::Well,
        Standing::HeldDown,
        Standing::PassedOver,
        Standing::Out(Reason::Unknown),
        Standing::Out(Reason::Unreachable),
        Standing::Out(Reason::Draining),
    ];

    /// Whether a change from this standing to `next` is a reason to warn. A start is expected, and
    /// so is a drain that ends with the process.
    pub(crate) fn is_unexpected_before(self, next: Standing) -> bool {
        match next {
            Standing::PassedOver => true,
            Standing::Out(Reason::Unreachable) => self != Standing::Out(Reason::Draining),
            _ => false,
        }
    }

    /// The word that stands in `/shards` and metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Standing::Well => "well",
            Standing::HeldDown => "held down",
            Standing::PassedOver => "passed over",
            Standing::Out(reason) => reason.as_str(),
        }
    }
}

/// The state of one runner. Times are durations since an origin of the caller's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wellness {
    standing: Standing,
    /// It has been well at some time, or was here before.
    proven: bool,
    held_until: Duration,
    /// How often it was passed over of late.
    passes: u32,
    /// Until when it is passed over; an outage in between does not shorten it.
    passed_until: Duration,
    /// When it became well the last time.
    well_since: Duration,
}

impl Default for Wellness {
    fn default() -> Self {
        Self {
            standing: Standing::Out(Reason::Unknown),
            proven: false,
            held_until: Duration::ZERO,
            passes: 0,
            passed_until: Duration::ZERO,
            well_since: Duration::ZERO,
        }
    }
}

impl Wellness {
    /// A runner that was here before: it is held down first.
    pub(crate) fn returned() -> Self {
        Self { proven: true, ..Self::default() }
    }

    /// Takes a sign and returns the new standing if it changed.
    pub(crate) fn note(&mut self, sign: Sign, now: Duration) -> Option<Standing> {
        let next = match (sign, self.standing) {
            (Sign::Bad(reason), _) => Standing::Out(reason),
            (Sign::Serving, Standing::Out(_)) if self.proven => {
                self.held_until = self.passed_until.max(now + HOLD_DOWN);
                Standing::HeldDown
            }
            (Sign::Serving, Standing::Out(_)) => Standing::Well,
            (Sign::Failing, Standing::Well | Standing::HeldDown) => {
                let forgiven = now.saturating_sub(self.well_since) >= FORGIVEN;
                self.passes = if forgiven { 1 } else { self.passes.saturating_add(1) };
                self.passed_until = now + pass(self.passes);
                Standing::PassedOver
            }
            (Sign::Failing, Standing::PassedOver) => {
                self.passed_until = now + pass(self.passes);
                Standing::PassedOver
            }
            (Sign::Answering, Standing::PassedOver) if now >= self.passed_until => Standing::Well,
            (_, standing) => standing,
        };
        self.change(next, now)
    }

    /// Ends the hold-down when its time has come.
    pub(crate) fn tick(&mut self, now: Duration) -> Option<Standing> {
        let over = self.standing == Standing::HeldDown && now >= self.held_until;
        if over { self.change(Standing::Well, now) } else { None }
    }

    /// When [`tick`](Self::tick) is due.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        (self.standing == Standing::HeldDown).then_some(self.held_until)
    }

    /// Whether it is passed over and a try is due that may bring it back.
    pub(crate) fn is_try_due(&self, now: Duration) -> bool {
        self.standing == Standing::PassedOver && now >= self.passed_until
    }

    /// Whether it may be picked.
    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    fn change(&mut self, next: Standing, now: Duration) -> Option<Standing> {
        let changed = std::mem::replace(&mut self.standing, next) != next;
        if changed && next == Standing::Well {
            self.proven = true;
            self.well_since = now;
        }
        changed.then_some(next)
    }
}

/// How long a runner is passed over for the `passes`th time of late: twice as long as the time before.
fn pass(passes: u32) -> Duration {
    HOLD_DOWN.saturating_mul(2_u32.saturating_pow(passes.saturating_sub(1))).min(LONGEST_PASS)
}

// === impl Streak ===

impl Streak {
    /// Counts a failure, and says whether the runner is to be passed over for it and those before it.
    pub(crate) fn failed(&mut self, failure: Failure) -> bool {
        self.failures = self.failures.saturating_add(1);
        match failure {
            Failure::Hop => self.hop = true,
            Failure::Call(image) => {
                self.several_images |= self.image.replace(image).is_some_and(|before| before != image);
            }
        }
        self.failures >= MAX_STREAK && (self.hop || self.several_images)
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
        let mut runner = Wellness::returned();
        assert_eq!(runner.note(Sign::Serving, s(0)), Some(Standing::HeldDown));
        assert_eq!(runner.note(Sign::Bad(Reason::Draining), s(20)), Some(Standing::Out(Reason::Draining)));
        assert_eq!(runner.tick(s(31)), None);
        assert_eq!(runner.note(Sign::Serving, s(40)), Some(Standing::HeldDown));
        assert_eq!(runner.note(Sign::Serving, s(60)), None, "a repeated sign does not prolong it");
        assert_eq!(runner.tick(s(70)), Some(Standing::Well));
    }

    #[test]
    fn starts_and_drains_are_expected_and_outages_are_not() {
        use Standing::{HeldDown, Out, PassedOver, Well};
        let (starting, gone, draining) =
            (Out(Reason::Unknown), Out(Reason::Unreachable), Out(Reason::Draining));
        for (before, next, unexpected) in [
            (Well, draining, false),
            (draining, gone, false),
            (starting, draining, false),
            (starting, Well, false),
            (gone, HeldDown, false),
            (gone, draining, false),
            (Well, gone, true),
            (HeldDown, gone, true),
            (PassedOver, gone, true),
            (starting, gone, true),
            (Well, PassedOver, true),
        ] {
            assert_eq!(before.is_unexpected_before(next), unexpected, "{before:?} {next:?}");
        }
    }

    #[test]
    fn a_runner_whose_calls_fail_is_passed_over_until_it_answers_a_try() {
        let mut runner = Wellness::default();
        runner.note(Sign::Serving, s(0));
        assert_eq!(runner.note(Sign::Failing, s(10)), Some(Standing::PassedOver));
        assert_eq!(runner.note(Sign::Serving, s(20)), None, "its health was never in doubt");
        assert_eq!(runner.note(Sign::Answering, s(39)), None, "too early");
        assert!(!runner.is_try_due(s(39)) && runner.is_try_due(s(40)));
        assert_eq!(runner.tick(s(100)), None, "time alone does not bring it back");
        assert_eq!(runner.note(Sign::Failing, s(100)), None);
        assert!(!runner.is_try_due(s(129)), "a try that failed puts the next one off");
        assert_eq!(runner.note(Sign::Answering, s(130)), Some(Standing::Well));
    }

    #[test]
    fn a_runner_is_passed_over_for_longer_each_time_until_it_is_forgiven() {
        let mut runner = Wellness::default();
        runner.note(Sign::Serving, s(0));
        let mut now = s(0);
        for passed in [30, 60, 120, 240, 300, 300] {
            assert_eq!(runner.note(Sign::Failing, now), Some(Standing::PassedOver));
            assert!(!runner.is_try_due(now + s(passed - 1)));
            now += s(passed);
            assert_eq!(runner.note(Sign::Answering, now), Some(Standing::Well));
        }
        now += FORGIVEN;
        runner.note(Sign::Failing, now);
        assert!(runner.is_try_due(now + HOLD_DOWN));
    }

    #[test]
    fn an_outage_does_not_make_a_runner_come_back_sooner() {
        let mut runner = Wellness::returned();
        assert_eq!(runner.note(Sign::Failing, s(0)), None, "out it is already");
        runner.note(Sign::Serving, s(0));
        assert_eq!(
            runner.note(Sign::Failing, s(10)),
            Some(Standing::PassedOver),
            "also one that is held down"
        );
        runner.note(Sign::Answering, s(40));
        runner.note(Sign::Failing, s(50));
        assert_eq!(runner.note(DOWN, s(51)), Some(Standing::Out(Reason::Unreachable)));
        assert_eq!(runner.note(Sign::Answering, s(52)), None, "only its health brings it back");
        assert_eq!(runner.note(Sign::Serving, s(53)), Some(Standing::HeldDown));
        assert_eq!(runner.next_tick(), Some(s(110)), "the second time it is passed over for a minute");
    }

    fn times_to_blame(failures: &[Failure]) -> Vec<bool> {
        let mut streak = Streak::default();
        failures.iter().map(|&failure| streak.failed(failure)).collect()
    }

    #[test]
    fn five_failures_in_a_row_are_the_runners_unless_one_image_may_be_what_fails() {
        use Failure::{Call, Hop};
        assert_eq!(times_to_blame(&[Hop; 6]), [false, false, false, false, true, true]);
        assert_eq!(times_to_blame(&[Call(1); 9]), [false; 9]);
        assert_eq!(times_to_blame(&[Call(1), Call(2), Call(1), Call(1), Call(1)])[3..], [false, true]);
        assert_eq!(times_to_blame(&[Call(1), Call(1), Call(1), Call(1), Hop])[3..], [false, true]);
    }
}
