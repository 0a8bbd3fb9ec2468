//! An immutable snapshot of the ring and its runners.
//!
//! Calls read the snapshot without a lock. The membership task replaces it as a whole. Successive
//! snapshots share the [`Runner`] objects, so a runner keeps its connection, load and health.

use std::sync::Arc;

use porch_fn_discovery::cooling_down_count;
use porch_fn_ring::Ring;
use strum::VariantArray;

use crate::health::HealthState::{self, CoolingDown, Ejected, Healthy};
use crate::runner::Runner;
use crate::totals::{States, Totals};

/// The ring and its runners.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) ring: Arc<Ring>,
    /// In the order of the ring's nodes.
    pub(crate) runners: Vec<Arc<Runner>>,
    totals: Arc<Totals>,
}

impl View {
    /// Pairs a ring with its runners, both sorted by address. `totals` are the sums over these
    /// runners.
    pub(crate) fn new(ring: Ring, runners: Vec<Arc<Runner>>, totals: Arc<Totals>) -> Self {
        debug_assert!(ring.nodes().iter().eq(runners.iter().map(|runner| &runner.address)));
        Self { ring: Arc::new(ring), runners, totals }
    }

    /// The view before discovery's first answer.
    pub(crate) fn empty(totals: &Arc<Totals>) -> Self {
        Self::new(Ring::new(None::<&str>), Vec::new(), Arc::clone(totals))
    }

    /// The states in which a runner may be picked now, and how many runners have them.
    ///
    /// Runners that cool down may flap, so usually only healthy runners are used. If
    /// [`cooling_down_count`] returns true, runners that cool down are used too. Ejected runners
    /// are used only when there are no others.
    pub(crate) fn usable(&self) -> (&'static [HealthState], usize) {
        let [healthy, cooling_down, ejected, ..] = self.counts();
        match (healthy, cooling_down) {
            (0, 0) => (&[Ejected], ejected),
            _ if cooling_down_count(healthy, cooling_down) => {
                (&[Healthy, CoolingDown], healthy + cooling_down)
            }
            _ => (&[Healthy], healthy),
        }
    }

    /// Whether one more runner may be ejected. At most half of the available runners may be
    /// ejected: if more fail, the calls are the likely cause.
    pub(crate) fn may_eject(&self) -> bool {
        let [healthy, cooling_down, ejected, ..] = self.counts();
        (ejected + 1) * 2 <= healthy + cooling_down + ejected
    }

    /// The number of runners in each state, in the order of [`HealthState`].
    pub(crate) fn counts(&self) -> States {
        self.totals.states()
    }

    /// Requests in flight on all runners, those of other routers included.
    pub(crate) fn load(&self) -> usize {
        self.totals.load()
    }

    /// A text such as `0 of 3 runners ready: 2 unreachable, 1 draining`. It contains no runner
    /// names, because Porch may commit the text to git.
    pub(crate) fn summary(&self) -> String {
        // Runners that have just left the ring or are about to join it do not have to be in it.
        let known: usize = self.counts().iter().sum();
        if known == 0 {
            return "0 runners known".to_owned();
        }
        let (mut ready, mut reasons) = (known, Vec::new());
        for (state, count) in HealthState::VARIANTS.iter().zip(self.counts()) {
            if state.is_unavailable() && count > 0 {
                ready -= count;
                reasons.push(format!("{count} {}", state.into_str()));
            }
        }
        let why = if reasons.is_empty() { "" } else { ": " };
        format!("{ready} of {known} runners ready{why}{}", reasons.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use porch_fn_grpc_client::conn::Options;

    use super::*;
    use crate::health::Observation;
    use crate::runner::Shared;

    /// What the runners of a test share.
    fn shared(routers: usize) -> Shared {
        let second = Duration::from_secs(1);
        let connections =
            Options { connect_timeout: second, ping: None, user_timeout: second, keepalive: None };
        let (changed, totals) = Default::default();
        Shared { connections, connector: None, changed, totals, routers }
    }

    fn view(shared: &Shared, known: &[bool]) -> View {
        let runner = |(place, &is_known)| {
            let address = format!("10.0.0.{place}:9445").into();
            let runner = Runner::new(address, is_known, shared.clone()).unwrap();
            runner.observe(Observation::Serving);
            Arc::new(runner)
        };
        let runners: Vec<_> = (1..).zip(known).map(runner).collect();
        let ring = Ring::new(runners.iter().map(|runner| runner.address.clone()));
        View::new(ring, runners, Arc::clone(&shared.totals))
    }

    #[tokio::test(start_paused = true)]
    async fn cooldowns_after_discovery_and_after_health_checks_count_together() {
        let view = view(&shared(1), &[false, false, true, false]);
        assert_eq!(view.usable(), (&[Healthy][..], 3));
        view.runners[3].observe(Observation::Unreachable);
        assert_eq!(view.usable(), (&[Healthy][..], 2));
        view.runners[3].observe(Observation::Serving);
        assert_eq!(view.usable(), (&[Healthy, CoolingDown][..], 4));
    }

    #[tokio::test(start_paused = true)]
    async fn the_sums_are_those_of_the_members() {
        let view = view(&shared(3), &[false, false, true]);
        let assert_sums = |members: &[Arc<Runner>]| {
            let mut states = States::default();
            for runner in members {
                states[runner.state() as usize] += 1;
            }
            let load = members.iter().map(|runner| runner.load()).sum::<usize>();
            assert_eq!((view.counts(), view.load()), (states, load));
            load
        };
        let [first, second, third] = &view.runners[..] else { unreachable!() };
        let calls = [first.enter(), first.enter(), second.enter(), third.enter()];
        assert_eq!(assert_sums(&view.runners), 12);
        first.answered(Some(7));
        assert_eq!(assert_sums(&view.runners), 14, "the first has 2 own calls and 6 of other routers");
        second.observe(Observation::Unreachable);
        assert_sums(&view.runners);
        tokio::time::advance(Duration::from_secs(40)).await;
        for runner in &view.runners {
            runner.tick();
        }
        assert_eq!(assert_sums(&view.runners), 12);
        third.leave();
        third.observe(Observation::Serving);
        assert!(third.state().is_unavailable(), "it is not picked, although the ring has it");
        assert_eq!(assert_sums(&view.runners[..2]), 9);
        third.observe(Observation::Unreachable);
        assert!(view.summary().starts_with("1 of 2 runners ready"), "{}", view.summary());
        drop(calls);
        assert_eq!(assert_sums(&view.runners[..2]), 0);
    }
}
