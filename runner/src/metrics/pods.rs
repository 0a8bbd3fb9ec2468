//! Pods: how many there are, and how they start.

use porch_fn_pool::FunctionStats;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{ReasonLabel, SECONDS, Seconds, StateLabel, gauge};
use crate::pods::Step;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug)]
pub(super) struct PodMetrics {
    pods: Family<StateLabel, Gauge>,
    functions: Gauge,
    start: Histogram,
    phases: Seconds<PhaseLabel>,
    failures: Family<ReasonLabel, Counter>,
    pub(super) hung: Counter,
}

// === impl PodMetrics ===

impl PodMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            pods: Family::default(),
            functions: Gauge::default(),
            start: Histogram::new(SECONDS),
            phases: Seconds::new_with_constructor(|| Histogram::new(SECONDS)),
            failures: Family::default(),
            hung: Counter::default(),
        };
        let help = "Function pods of the images that this runner owns, by state";
        registry.register("pods", help, metrics.pods.clone());
        let help = "Functions that have pods or waiting calls, as this runner sees it";
        registry.register("functions", help, metrics.functions.clone());
        let help = "Time from the order of a pod until it served, of pods that this runner made";
        registry.register_with_unit("pod_start", help, Unit::Seconds, metrics.start.clone());
        let help = "The same by phase: create (the API server's answer, the registry's before it), address (scheduled, pulled, \
                    started), serve (the wrapper-server answers)";
        registry.register_with_unit("pod_start_phase", help, Unit::Seconds, metrics.phases.clone());
        let help = "Pods that this runner ordered and that never served, by why";
        registry.register("pod_start_failures", help, metrics.failures.clone());
        let help = "How often a pod stopped answering while it had calls, which went elsewhere";
        registry.register("pods_hung", help, metrics.hung.clone());
        metrics
    }

    pub(super) fn started(&self, step: Step) {
        match step {
            Step::Took(phase, time) => {
                self.phases.get_or_create(&PhaseLabel { phase }).observe(time.as_secs_f64());
            }
            Step::Serves(time) => self.start.observe(time.as_secs_f64()),
            Step::Failed(reason) => {
                self.failures.get_or_create(&ReasonLabel { reason }).inc();
            }
        }
    }

    pub(super) fn pool(&self, stats: &[FunctionStats]) {
        // Their owner alone asks all of them whether they are ready, and each is counted once by that.
        let owned = || stats.iter().filter(|function| function.owned);
        let sum = |count: fn(&FunctionStats) -> usize| owned().map(count).sum();
        for (state, pods) in [
            ("ready", sum(|function| function.ready)),
            ("starting", sum(|function| function.starting)),
            ("silent", sum(|function| function.silent)),
            ("terminating", sum(|function| function.terminating)),
        ] {
            self.pods.get_or_create(&StateLabel { state }).set(gauge(pods));
        }
        self.functions.set(gauge(stats.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use porch_fn_pool::ImageKey;

    #[test]
    fn pods_count_where_their_image_is_owned() {
        let stats = |image: &str, owned, ready, starting| FunctionStats {
            image: ImageKey::from(image),
            owned,
            ready,
            starting,
            silent: 0,
            terminating: 0,
            in_flight: 0,
            waiting: 0,
        };
        let metrics = PodMetrics::new(&mut Registry::default());
        metrics.pool(&[stats("a", true, 2, 1), stats("b", false, 0, 3), stats("c", true, 1, 0)]);
        let pods = |state| metrics.pods.get_or_create(&StateLabel { state }).get();
        assert_eq!((pods("ready"), pods("starting"), pods("terminating")), (3, 1, 0));
        assert_eq!(metrics.functions.get(), 3);
    }
}
