//! How many calls may be sent a second time.
//!
//! Each call is retried at most once after it was sent, which alone could still double the load of a
//! cluster that is failing. The budget lets a burst through (a runner that dies takes all of its calls in
//! flight with it), and then a share of the calls.

use std::time::Duration;

/// Retries that may come at once after a quiet time.
const RESERVE: f64 = 1000.0;
/// Retries per second that are always allowed.
const PER_SECOND: f64 = 10.0;
/// Retries per call.
const PER_CALL: f64 = 0.2;

/// A token bucket. Times are durations since an origin of the caller's choice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryBudget {
    tokens: f64,
    updated: Duration,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { tokens: RESERVE, updated: Duration::ZERO }
    }
}

impl RetryBudget {
    /// Counts a call.
    pub(crate) fn deposit(&mut self) {
        self.earn(PER_CALL);
    }

    /// A runner is lost with so many calls in flight: each of them may be retried.
    pub(crate) fn reserve(&mut self, calls: usize) {
        self.tokens = self.tokens.max(calls as f64);
    }

    /// Takes one retry out, or says no.
    pub(crate) fn withdraw(&mut self, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.updated).as_secs_f64();
        self.earn(elapsed * PER_SECOND);
        self.updated = self.updated.max(now);
        let granted = self.tokens >= 1.0;
        if granted {
            self.tokens -= 1.0;
        }
        granted
    }

    /// Up to the reserve. What is above it was reserved for the calls of a lost runner.
    fn earn(&mut self, tokens: f64) {
        self.tokens = self.tokens.max((self.tokens + tokens).min(RESERVE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(budget: &mut RetryBudget, asked: usize, now: Duration) -> usize {
        (0..asked).filter(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn a_burst_passes_and_a_lasting_failure_does_not_double_the_load() {
        let mut budget = RetryBudget::default();
        assert_eq!(granted(&mut budget, 2000, Duration::ZERO), 1000);
        assert_eq!(granted(&mut budget, 50, Duration::from_secs(1)), 10, "the floor");
        for _ in 0..500 {
            budget.deposit();
        }
        // 100 by share of calls; floating point may cost one.
        assert!((99..=100).contains(&granted(&mut budget, 500, Duration::from_secs(1))));
        assert_eq!(granted(&mut budget, 5000, Duration::from_hours(1)), 1000, "the reserve is a cap");
    }

    #[test]
    fn all_calls_of_a_lost_runner_may_be_retried_once() {
        let mut budget = RetryBudget::default();
        budget.reserve(5000);
        budget.deposit();
        assert_eq!(granted(&mut budget, 6000, Duration::ZERO), 5000);
        budget.reserve(3);
        assert_eq!(granted(&mut budget, 10, Duration::ZERO), 3);
    }
}
