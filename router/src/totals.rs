//! Sums over the members of the ring. Each runner keeps its own part up to date, so no call
//! iterates over all runners.

use std::sync::atomic::{AtomicUsize, Ordering};

use strum::VariantArray;

use crate::health::HealthState;

/// The number of runners in each health state, in the order of [`HealthState`].
pub(crate) type States = [usize; HealthState::VARIANTS.len()];

/// The sums. While a runner changes its part, a reader may see half of the change.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    states: [AtomicUsize; HealthState::VARIANTS.len()],
    load: AtomicUsize,
}

/// What one runner adds to the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) state: HealthState,
    /// Requests in flight on the runner, those of other routers included.
    pub(crate) load: u32,
}

impl Totals {
    /// Replaces a runner's part. `None` means that the runner is not a member.
    pub(crate) fn replace(&self, before: Option<Part>, after: Option<Part>) {
        if before == after {
            return;
        }
        if let Some(Part { state, load }) = after {
            self.states[state as usize].fetch_add(1, Ordering::Relaxed);
            self.load.fetch_add(load as usize, Ordering::Relaxed);
        }
        if let Some(Part { state, load }) = before {
            self.states[state as usize].fetch_sub(1, Ordering::Relaxed);
            self.load.fetch_sub(load as usize, Ordering::Relaxed);
        }
    }

    /// The number of runners in each state.
    pub(crate) fn states(&self) -> States {
        self.states.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Requests in flight on all runners.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }
}
