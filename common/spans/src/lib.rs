//! OpenTelemetry spans of calls, sent to a collector by OTLP. Only this crate uses OpenTelemetry's
//! SDK. The wrapper-server does not use it, because every function pod gets a copy of that binary.
//!
//! The SDK reads most of OpenTelemetry's environment variables itself: sampler, resource, limits,
//! size and interval of batches. A slow or missing collector does not delay calls: spans that do
//! not fit into the queue are dropped.

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

/// The longest time that a server waits at its end for the collector to accept the last spans.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Reads OpenTelemetry's environment variables, and logs a warning for each value that is not
/// supported. Registers the metric with the server's name and version. Starts spans in the current
/// runtime if a variable requests them. `name` is used when no variable names the service.
pub fn start(name: &'static str, version: &'static str, registry: &mut Registry) -> (Otel, Option<Spans>) {
    // A value that is not UTF-8 counts as unset.
    let otel = Otel::read(|name| std::env::var(name).ok());
    for warning in &otel.warnings {
        tracing::warn!("{warning}");
    }
    otel.register(registry, name, version);
    let spans = Spans::start(&otel, name, version);
    (otel, spans)
}

/// The spans of one server. [`flush`](Self::flush) sends the last spans; dropping this loses them.
#[derive(Debug)]
pub struct Spans {
    provider: SdkTracerProvider,
}

impl Spans {
    /// Returns `None` if `otel` does not request spans. If the exporter fails, also logs the error.
    fn start(otel: &Otel, name: &'static str, version: &'static str) -> Option<Self> {
        if !otel.traces {
            return None;
        }
        let exporter = exporter(otel.traces_timeout)
            .inspect_err(|error| tracing::warn!("the span exporter cannot start, no spans are sent: {error}"))
            .ok()?;
        // The exporter sends batches in a thread of its own; its queue is bounded.
        let provider = SdkTracerProvider::builder()
            .with_resource(resource(otel.service_name.as_deref(), name, version))
            .with_batch_exporter(exporter)
            .build();
        Some(Self { provider })
    }

    /// Creates the server's spans.
    pub fn tracer(&self) -> Tracer {
        Tracer::new(self.provider.tracer("porch-fn"))
    }

    /// Sends the remaining spans. Takes at most two seconds; spans that end later are not sent.
    pub async fn flush(self) {
        let provider = self.provider.clone();
        let (done, ended) = oneshot::channel();
        // `shutdown_with_timeout` blocks. So it runs in a thread of its own, which does not delay
        // the exit of the process after a second signal.
        let flush = move || done.send(provider.shutdown_with_timeout(FLUSH_WITHIN).is_ok());
        let started = std::thread::Builder::new().name("flush-spans".to_owned()).spawn(flush);
        let sent = started.is_ok() && matches!(timeout(FLUSH_WITHIN, ended).await, Ok(Ok(true)));
        if !sent {
            tracing::warn!("the last spans were not sent: the collector did not accept them within 2s");
        }
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        // Without this call, dropping the provider may wait for several seconds. The call fails
        // after a flush, because the provider is then shut down already.
        drop(self.provider.shutdown_with_timeout(Duration::ZERO));
    }
}

fn exporter(timeout: Duration) -> Result<SpanExporter, Box<dyn Error>> {
    let collector = Collector::new(timeout, Handle::current()).map_err(|error| format!("TLS: {error}"))?;
    let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
    Ok(exporter.with_timeout(timeout).with_http_client(collector).build()?)
}

/// The service that the spans belong to. Its name is `OTEL_SERVICE_NAME`, else the one in
/// `OTEL_RESOURCE_ATTRIBUTES`, else `name`.
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
