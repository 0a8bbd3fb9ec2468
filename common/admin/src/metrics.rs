//! Registers metrics in the forms that router and runner share.

use std::sync::OnceLock;

use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};
use tonic::Code;

/// gRPC's codes are the numbers from 0 to 16.
const CODES: usize = 17;

/// Buckets from warm calls (milliseconds) and cold starts (seconds) up to the default deadline.
const SECONDS: [f64; 12] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// Registers a new metric.
pub fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Registers `metric` with the unit of seconds.
pub fn in_seconds<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

/// A histogram of seconds.
pub fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

/// The value of a gauge.
pub fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// One metric for each gRPC code. A lookup in a family hashes the labels, which costs more than
/// the metric itself, so each metric is looked up once.
#[derive(Debug)]
pub struct ByCode<M>([OnceLock<M>; CODES]);

impl<M> ByCode<M> {
    /// The metric of `code`. `create` creates it, at the first call with this code.
    pub fn get_or_create(&self, code: Code, create: impl FnOnce() -> M) -> &M {
        // The index is in range, because a `Code` is one of the 17 codes.
        self.0[code as usize].get_or_init(create)
    }
}

impl<M> Default for ByCode<M> {
    fn default() -> Self {
        Self([const { OnceLock::new() }; CODES])
    }
}
