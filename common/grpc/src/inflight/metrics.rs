//! The metrics of bytes in flight. They are read at each scrape.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::Inflight;

/// Values of the label `reason`, in the order of [`super::Why`].
const REASONS: [&str; 4] = ["limit", "share", "answer", "slow"];

impl Collector for Inflight {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (held, refused) = {
            let ledger = self.ledger.lock();
            (ledger.held(), ledger.refused())
        };
        let gauges = [
            ("inflight", "Bytes of messages held, including the overhead of their calls", held),
            ("inflight_limit", "Bytes of messages that may be held before calls are refused", self.limit),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let unit = Some(&Unit::Bytes);
            gauge.encode(encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?)?;
        }
        let help =
            "Calls refused for bytes in flight: limit, an image's share, no room for the answer, too slow";
        let mut family = encoder.encode_descriptor("inflight_refused", help, None, MetricType::Counter)?;
        for (reason, count) in REASONS.into_iter().zip(refused) {
            let counter = ConstCounter::new(count);
            counter.encode(family.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}
