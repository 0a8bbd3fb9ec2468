//! OpenTelemetry spans of calls, sent to a collector by OTLP. Only this crate needs OpenTelemetry's
//! SDK, which the wrapper-server must do without: every function pod gets a copy of that.
//!
//! The SDK reads most of OpenTelemetry's environment variables itself: sampler, resource, limits,
//! size and interval of batches. A collector that is slow or away costs calls nothing: what does
//! not fit into the queue is dropped.

mod collector;
mod otel;

use std::error::Error;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::SdkTracerProvider;
use porch_fn_telemetry::span::Tracer;
use prometheus_client::registry::Registry;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::collector::Collector;

pub use crate::otel::Otel;

/// How long a server that ends waits for its last spans to be taken.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Starts what OpenTelemetry's variables request of a server: reads them, warns of what cannot be
/// met, registers the server's name and version, and starts its spans, if any, in the current
/// runtime. `name` is used when no variable names the service.
pub fn start(name: &'static str, version: &'static str, registry: &mut Registry) -> (Otel, Option<Spans>) {
    // A value that is not UTF-8 names nothing that is known here.
    let otel = Otel::read(|name| std::env::var(name).ok());
    for warning in &otel.warnings {
        tracing::warn!("{warning}");
    }
    otel.register(registry, name, version);
    let spans = Spans::start(&otel, name, version);
    (otel, spans)
}

/// The spans of one server. A drop loses spans that are not sent yet; [`flush`](Self::flush) sends
/// them.
#[derive(Debug)]
pub struct Spans {
    provider: SdkTracerProvider,
}

impl Spans {
    /// `None` unless `otel` asks for spans. A failure is logged.
    fn start(otel: &Otel, name: &'static str, version: &'static str) -> Option<Self> {
        if !otel.traces {
            return None;
        }
        let exporter = exporter(otel.traces_timeout)
            .inspect_err(|error| tracing::warn!("no spans are sent: {error}"))
            .ok()?;
        // Its own thread makes batches and sends them; its queue is bounded.
        let provider = SdkTracerProvider::builder()
            .with_resource(resource(otel.service_name.as_deref(), name, version))
            .with_batch_exporter(exporter)
            .build();
        Some(Self { provider })
    }

    /// What makes a server's spans.
    pub fn tracer(&self) -> Tracer {
        Tracer::new(self.provider.tracer("porch-fn"))
    }

    /// Sends what is left. Takes two seconds at most; spans that are made later are not sent.
    pub async fn flush(self) {
        let provider = self.provider.clone();
        let (done, ended) = oneshot::channel();
        // A thread that nobody waits for: it blocks, and a second signal means now.
        let flush = move || done.send(provider.shutdown_with_timeout(FLUSH_WITHIN).is_ok());
        let started = std::thread::Builder::new().name("flush-spans".to_owned()).spawn(flush);
        let sent = started.is_ok() && matches!(timeout(FLUSH_WITHIN, ended).await, Ok(Ok(true)));
        if !sent {
            tracing::warn!("the last spans were not sent: the collector did not take them within 2s");
        }
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        // Otherwise the provider would wait for several seconds. That it is shut down already is no
        // error.
        drop(self.provider.shutdown_with_timeout(Duration::ZERO));
    }
}

fn exporter(timeout: Duration) -> Result<SpanExporter, Box<dyn Error>> {
    let collector = Collector::new(timeout, Handle::current()).map_err(|error| format!("TLS: {error}"))?;
    let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
    Ok(exporter.with_timeout(timeout).with_http_client(collector).build()?)
}

/// Whose spans these are. What `OTEL_SERVICE_NAME` says comes before `OTEL_RESOURCE_ATTRIBUTES`,
/// and that before `name`.
fn resource(given: Option<&str>, name: &'static str, version: &'static str) -> Resource {
    let defaults = [KeyValue::new("service.name", name), KeyValue::new("service.version", version)];
    let variable = Box::new(EnvResourceDetector::new());
    let mut resource = Resource::builder().with_attributes(defaults).with_detector(variable);
    if let Some(given) = given {
        resource = resource.with_service_name(given.to_owned());
    }
    resource.build()
}

#[cfg(test)]
mod tests;
