//! Decides whether a runner may be picked. This is a pure state machine; its inputs are the results
//! of health checks and calls.
//!
//! ```text
//!              serving                       calls fail
//!   Starting ───────────► Healthy ────────────────────────────► Ejected
//!                         ▲     ▲                                │   ▲
//!                         │     └────────────────────────────────┘   │
//!           cooldown over │       ejection over, probe answered      │
//!                         │                                          │
//!   Unavailable ──────► CoolingDown ─────────────────────────────────┘
//!               serving                       calls fail
//!
//!   any state ── draining, unreachable ──► Unavailable (Draining or Unreachable)
//! ```
//!
//! A runner that becomes unavailable is not picked from that moment on. When it is back, it is
//! healthy only after a cooldown. Without the cooldown, a flapping runner would move its images
//! back and forth, each time onto cold pods. A runner that has never been healthy (a new runner, or
//! every runner when the router starts) needs no cooldown, unless discovery dropped it and lists it
//! again.
//!
//! Health checks are not sufficient: a runner may report SERVING while its calls fail or stall.
//! Such a runner is ejected, each time for longer. It is healthy again when the ejection is over
//! and it answers a probe. If it becomes unavailable meanwhile, it cools down instead, at least
//! until the end of the ejection.

use std::collections::BTreeSet;
use std::time::Duration;

use strum::{IntoStaticStr, VariantArray};

/// How long a runner must be available without interruption before it is healthy again.
const COOLDOWN: Duration = Duration::from_secs(30);
/// The longest ejection. The first ejection lasts [`COOLDOWN`].
const MAX_EJECTION: Duration = Duration::from_mins(5);
/// This long after a runner last became healthy, its earlier ejections no longer count.
const FORGIVEN_AFTER: Duration = Duration::from_mins(10);
/// Streams lost in a row after which a runner is ejected.
const MAX_LOST_STREAMS: u32 = 5;
/// A runner that cannot reach the pods of this many images, for this long without a success, is
/// ejected.
const MAX_IMAGES: usize = 3;
const MAX_UNREACHABLE: Duration = Duration::from_secs(30);
/// Consecutive unanswered probes after which the runner counts as stalled. A single probe may be
/// late because the machine is busy.
const MAX_FAILED_PROBES: u32 = 2;

/// Whether a runner may be picked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum HealthState {
    /// May be picked.
    Healthy,
    /// Usually picked only when no healthy runner can take the call. Picked like a healthy runner
    /// when many runners cool down (see `View::usable`).
    CoolingDown,
    /// Its calls fail. May be picked only when every runner is ejected or unavailable.
    Ejected,
    /// Unavailable: it has not answered any health check yet.
    #[default]
    Starting,
    /// Unavailable: it cannot be dialled, or its connection broke.
    Unreachable,
    /// Unavailable: it reports `NOT_SERVING`, because it starts or drains.
    Draining,
}

/// An event that may change a runner's health state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observation {
    /// A health check reported SERVING.
    Serving,
    /// A health check reported something else.
    Draining,
    /// A health check failed, or a call found that the connection is lost.
    Unreachable,
    /// The runner's calls fail or get no answer, although its health checks succeed.
    Failing,
    /// The runner answered a probe.
    ProbeAnswered,
}

/// How a call failed, if the runner may be the cause. Failures of functions and registries are not
/// among them: with another runner, such a call fails too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallFailure<'a> {
    /// The stream was refused or reset.
    Stream,
    /// The runner refused a call of this image, because it cannot reach the pods. A single function
    /// may crash its pods.
    Pods(&'a str),
}

/// The failures of one runner since its last success.
#[derive(Debug, Default)]
struct Failures {
    lost_streams: u32,
    /// When the first call found no pods.
    since: Option<Duration>,
    /// Images without pods, at most [`MAX_IMAGES`].
    images: BTreeSet<String>,
}

/// The health of one runner. Times are durations since an origin of the caller's choice.
#[derive(Debug, Default)]
pub(crate) struct RunnerHealth {
    state: HealthState,
    /// The runner needs a cooldown, because it has been healthy before, or discovery dropped it and
    /// lists it again.
    is_known: bool,
    cooldown_until: Duration,
    /// Number of ejections. An ejection that begins [`FORGIVEN_AFTER`] or longer after the runner
    /// last became healthy is counted as the first.
    ejections: u32,
    /// End of the ejection. An outage of the runner does not shorten the ejection.
    ejected_until: Duration,
    healthy_since: Duration,
    failures: Failures,
    /// Unanswered probes since the runner last answered a call or a probe.
    failed_probes: u32,
}

// === impl HealthState ===

impl HealthState {
    /// Whether a runner in this state is never picked.
    pub(crate) fn is_unavailable(self) -> bool {
        matches!(self, Self::Starting | Self::Unreachable | Self::Draining)
    }

    /// Whether a change from this state to `next` is logged as a warning. A drain is normal.
    /// After a drain the runner becomes unreachable, which is normal too, because its process ends.
    pub(crate) fn is_unexpected_before(self, next: Self) -> bool {
        next == Self::Ejected || (next == Self::Unreachable && self != Self::Draining)
    }

    /// The state's old name, for the labels of `porch_fn_router_shards`. The next version removes
    /// that metric.
    pub(crate) fn as_old_str(self) -> &'static str {
        match self {
            Self::Healthy => "well",
            Self::CoolingDown => "held down",
            Self::Ejected => "passed over",
            state => state.into_str(),
        }
    }
}

// === impl RunnerHealth ===

impl RunnerHealth {
    /// A runner before its first observation. A runner that discovery lists again (`is_known`)
    /// cools down first.
    pub(crate) fn new(is_known: bool) -> Self {
        Self { is_known, ..Self::default() }
    }

    /// The current health state.
    pub(crate) fn state(&self) -> HealthState {
        self.state
    }

    /// Applies an observation. Returns the new state if it changed.
    pub(crate) fn observe(&mut self, observation: Observation, now: Duration) -> Option<HealthState> {
        let next = match (observation, self.state) {
            (Observation::Draining, _) => HealthState::Draining,
            (Observation::Unreachable, _) => HealthState::Unreachable,
            (Observation::Serving, state) if !state.is_unavailable() => state,
            (Observation::Serving, _) if self.is_known => {
                self.cooldown_until = self.ejected_until.max(now + COOLDOWN);
                HealthState::CoolingDown
            }
            (Observation::Serving, _) => HealthState::Healthy,
            (Observation::Failing, HealthState::Healthy | HealthState::CoolingDown) => {
                let forgiven = now.saturating_sub(self.healthy_since) >= FORGIVEN_AFTER;
                self.ejections = if forgiven { 1 } else { self.ejections.saturating_add(1) };
                self.ejected_until = now + ejection_time(self.ejections);
                HealthState::Ejected
            }
            (Observation::Failing, HealthState::Ejected) => {
                self.ejected_until = now + ejection_time(self.ejections);
                HealthState::Ejected
            }
            (Observation::ProbeAnswered, _) if self.is_probe_due(now) => HealthState::Healthy,
            (_, state) => state,
        };
        self.change(next, now)
    }

    /// Ends the cooldown if its time is over. Returns the new state if it changed.
    pub(crate) fn tick(&mut self, now: Duration) -> Option<HealthState> {
        let over = self.state == HealthState::CoolingDown && self.cooldown_until <= now;
        if over { self.change(HealthState::Healthy, now) } else { None }
    }

    /// Whether the runner is ejected and due for a probe that may end the ejection.
    pub(crate) fn is_probe_due(&self, now: Duration) -> bool {
        self.state == HealthState::Ejected && now >= self.ejected_until
    }

    /// Counts a failed call. Returns true if the runner must be ejected.
    pub(crate) fn record_failure(&mut self, failure: CallFailure<'_>, now: Duration) -> bool {
        let Failures { lost_streams, since, images } = &mut self.failures;
        match failure {
            CallFailure::Stream => *lost_streams = lost_streams.saturating_add(1),
            CallFailure::Pods(image) if images.len() < MAX_IMAGES => {
                images.insert(image.to_owned());
            }
            CallFailure::Pods(_) => {}
        }
        let lasts = now.saturating_sub(*since.get_or_insert(now));
        *lost_streams >= MAX_LOST_STREAMS || (images.len() >= MAX_IMAGES && lasts >= MAX_UNREACHABLE)
    }

    /// Counts an unanswered probe. Returns true if the runner has stalled.
    pub(crate) fn record_failed_probe(&mut self) -> bool {
        self.failed_probes = self.failed_probes.saturating_add(1);
        self.failed_probes >= MAX_FAILED_PROBES
    }

    /// Records that the runner answered a call or a probe, with success or with an error.
    pub(crate) fn record_answer(&mut self) {
        self.failed_probes = 0;
    }

    /// Records a successful call.
    pub(crate) fn record_success(&mut self) {
        self.failures = Failures::default();
    }

    fn change(&mut self, next: HealthState, now: Duration) -> Option<HealthState> {
        if std::mem::replace(&mut self.state, next) == next {
            return None;
        }
        // Failures of the previous state do not count in the next one.
        self.failures = Failures::default();
        if next == HealthState::Healthy {
            self.is_known = true;
            self.healthy_since = now;
            self.failed_probes = 0;
        }
        Some(next)
    }
}

/// The duration of the ejection with this number, from 1. Each ejection lasts twice as long as the
/// one before.
fn ejection_time(ejections: u32) -> Duration {
    COOLDOWN.saturating_mul(2_u32.saturating_pow(ejections.saturating_sub(1))).min(MAX_EJECTION)
}

#[cfg(test)]
mod tests {
    use super::HealthState::{CoolingDown, Draining, Ejected, Healthy, Starting, Unreachable};
    use super::*;

    /// Steps: the time in seconds, an observation (`None`: only time passes), and the state after
    /// the step.
    type Script<'a> = &'a [(u64, Option<Observation>, HealthState)];

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_runner_leaves_at_once_and_returns_late() {
        let (serving, failing, answered) =
            (Observation::Serving, Observation::Failing, Observation::ProbeAnswered);
        let (draining, down) = (Observation::Draining, Observation::Unreachable);
        let scripts: [(&str, bool, Script<'_>); 6] = [
            (
                "a new runner is healthy at once",
                false,
                &[(1, Some(down), Unreachable), (2, Some(serving), Healthy)],
            ),
            (
                "a runner that was unavailable cools down",
                false,
                &[
                    (0, Some(serving), Healthy),
                    (10, Some(down), Unreachable),
                    (20, Some(serving), CoolingDown),
                    (49, None, CoolingDown),
                    (50, None, Healthy),
                ],
            ),
            (
                "a runner that was listed before cools down, again after each interruption",
                true,
                &[
                    (0, Some(serving), CoolingDown),
                    (20, Some(draining), Draining),
                    (31, None, Draining),
                    (40, Some(serving), CoolingDown),
                    (60, Some(serving), CoolingDown),
                    (70, None, Healthy),
                ],
            ),
            (
                "an ejected runner returns after an answered probe, and a failed probe extends the ejection",
                false,
                &[
                    (0, Some(serving), Healthy),
                    (10, Some(failing), Ejected),
                    (20, Some(serving), Ejected),
                    (39, Some(answered), Ejected),
                    (100, None, Ejected),
                    (100, Some(failing), Ejected),
                    (129, Some(answered), Ejected),
                    (130, Some(answered), Healthy),
                ],
            ),
            ("an unavailable runner is not ejected", true, &[(0, Some(failing), Starting)]),
            (
                "an outage does not shorten an ejection (here the second)",
                true,
                &[
                    (0, Some(serving), CoolingDown),
                    (10, Some(failing), Ejected),
                    (40, Some(answered), Healthy),
                    (50, Some(failing), Ejected),
                    (51, Some(down), Unreachable),
                    (52, Some(answered), Unreachable),
                    (53, Some(serving), CoolingDown),
                    (109, None, CoolingDown),
                    (110, None, Healthy),
                ],
            ),
        ];
        for (what, known, script) in scripts {
            let mut runner = RunnerHealth::new(known);
            for &(at, observation, state) in script {
                let before = runner.state();
                let changed = match observation {
                    Some(observation) => runner.observe(observation, s(at)),
                    None => runner.tick(s(at)),
                };
                assert_eq!(
                    (runner.state(), changed),
                    (state, (state != before).then_some(state)),
                    "{what}: {at}"
                );
            }
        }
    }

    #[test]
    fn a_runner_is_ejected_for_longer_each_time_until_it_is_forgiven() {
        let mut runner = RunnerHealth::new(false);
        runner.observe(Observation::Serving, s(0));
        let mut now = s(0);
        for ejected in [30, 60, 120, 240, 300, 300] {
            assert_eq!(runner.observe(Observation::Failing, now), Some(Ejected));
            assert!(!runner.is_probe_due(now + s(ejected - 1)));
            now += s(ejected);
            assert_eq!(runner.observe(Observation::ProbeAnswered, now), Some(Healthy));
        }
        now += FORGIVEN_AFTER;
        runner.observe(Observation::Failing, now);
        assert!(runner.is_probe_due(now + COOLDOWN));
    }

    #[test]
    fn lost_streams_eject_a_runner_and_so_do_several_images_without_pods_that_last() {
        use CallFailure::{Pods, Stream};
        for (failures, expected) in [
            (&[(0, Stream); 6][..], "....xx"),
            (&[(0, Pods("a")), (40, Pods("b")), (99, Pods("a"))], "..."),
            (&[(0, Pods("a")), (1, Pods("b")), (2, Pods("c")), (29, Pods("d")), (30, Pods("a"))], "....x"),
            (&[(0, Stream), (0, Stream), (0, Pods("a")), (1, Pods("b")), (30, Pods("c"))], "....x"),
        ] {
            let mut runner = RunnerHealth::new(false);
            let ejects = failures.iter().map(
                |&(at, failure)| {
                    if runner.record_failure(failure, s(at)) { 'x' } else { '.' }
                },
            );
            assert_eq!(ejects.collect::<String>(), expected);
            runner.record_success();
            assert!(!runner.record_failure(Stream, s(100)), "a success resets the count");
        }
    }

    #[test]
    fn failed_probes_count_consecutively() {
        let mut runner = RunnerHealth::new(false);
        runner.observe(Observation::Serving, s(0));
        let resets: [fn(&mut RunnerHealth); 2] = [RunnerHealth::record_answer, |runner| {
            runner.observe(Observation::Unreachable, s(1));
            runner.observe(Observation::Serving, s(2));
            runner.tick(s(60));
        }];
        for reset in resets {
            assert!(!runner.record_failed_probe());
            reset(&mut runner);
        }
        assert!(!runner.record_failed_probe() && runner.record_failed_probe());
    }
}
