//! The outcomes of a load's calls.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

/// The number of failures whose text is kept.
const KEPT_FAILURES: usize = 5;

#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Calls whose answer was OK and equal to their input.
    pub succeeded: usize,
    /// The number of other calls, by failure.
    pub failed: BTreeMap<String, usize>,
    pub slowest: Duration,
    /// All calls, in no defined order.
    pub calls: Vec<Call>,
    /// The texts of the first failures.
    pub texts: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub began: Instant,
    pub took: Duration,
    pub failure: Option<Failure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Status(Code),
    /// The answer was not equal to the input.
    OtherAnswer,
    NoStatus,
    /// The call was not sent, because too many were in flight.
    Unsent,
}

/// Sorted durations of calls.
#[derive(Debug, Clone, Default)]
pub struct Latencies(Vec<Duration>);

// === impl Report ===

impl Report {
    pub(super) fn add(&mut self, call: Call, text: &str) {
        self.calls.push(call);
        self.slowest = self.slowest.max(call.took);
        match call.failure {
            None => self.succeeded += 1,
            Some(failure) => {
                *self.failed.entry(failure.to_string()).or_default() += 1;
                if self.texts.len() < KEPT_FAILURES {
                    self.texts.push(text.to_owned());
                }
            }
        }
    }

    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.succeeded += other.succeeded;
        for (kind, count) in other.failed {
            *self.failed.entry(kind).or_default() += count;
        }
        self.slowest = self.slowest.max(other.slowest);
        self.calls.extend(other.calls);
        self.texts.extend(other.texts);
        self.texts.truncate(KEPT_FAILURES);
        self
    }

    /// The durations of the calls for which `counted` returns true.
    pub fn latencies(&self, counted: impl Fn(&Call) -> bool) -> Latencies {
        let mut took: Vec<_> = self.calls.iter().filter(|call| counted(call)).map(|call| call.took).collect();
        took.sort_unstable();
        Latencies(took)
    }

    #[track_caller]
    pub fn assert_all_succeeded(&self) {
        assert!(self.succeeded > 0, "there was no load");
        assert!(
            self.failed.is_empty(),
            "{:?} failed, {} succeeded: {:?}",
            self.failed,
            self.succeeded,
            self.texts
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed: usize = self.failed.values().sum();
        write!(f, "{failed} failed of {}", self.latencies(|_| true))?;
        if failed > 0 {
            write!(f, ", {:?}: {:?}", self.failed, self.texts)?;
        }
        Ok(())
    }
}

// === impl Failure ===

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(code) => write!(f, "{code:?}"),
            Self::OtherAnswer => f.write_str("wrong answer"),
            Self::NoStatus => f.write_str("no status"),
            Self::Unsent => f.write_str("not sent"),
        }
    }
}

// === impl Latencies ===

impl Latencies {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the percentile of the durations for a part such as 0.99. Zero if there are no calls.
    pub fn percentile(&self, part: f64) -> Duration {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank is at most a few millions"
        )]
        let rank = (part * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).copied().unwrap_or_default()
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, p99, slowest] = [0.5, 0.99, 1.0].map(|part| self.percentile(part));
        write!(f, "{} calls, p50 {median:.1?}, p99 {p99:.1?}, slowest {slowest:.1?}", self.count())
    }
}
