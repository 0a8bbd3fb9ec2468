//! The metrics of bytes in flight. They are read at each scrape.

use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Inflight, Why};

impl Inflight {
    /// Registers the metrics of held bytes, limit and refusals in `registry`.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        registry.register_collector(Box::new(Arc::clone(self)));
    }
}

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
        for why in Why::ALL {
            let reason = match why {
                Why::Limit => "limit",
                Why::Share => "share",
                Why::Answer => "answer",
                Why::Slow => "slow",
            };
            let counter = ConstCounter::new(refused[why as usize]);
            counter.encode(family.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}
