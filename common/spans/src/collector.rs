//! The way to the collector: HTTP/1.1, with TLS if its address says so.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use parking_lot::Mutex;
use porch_fn_telemetry::Causes;
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 << 10;
/// How often the log says that spans are not taken.
const SAY_EVERY: Duration = Duration::from_mins(1);

/// Sends batches, which come from a thread of the SDK's, in the runtime.
#[derive(Debug)]
pub(crate) struct Collector {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    timeout: Duration,
    said: Mutex<Pace>,
}

/// Lets something happen now and then.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<Instant>,
}

// === impl Pace ===

impl Pace {
    /// Whether it is time again.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= SAY_EVERY);
        if due {
            self.last = Some(now);
        }
        due
    }
}

// === impl Collector ===

impl Collector {
    /// One that waits for each answer as long as `timeout`.
    pub(crate) fn new(timeout: Duration, runtime: Handle) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        // Without any, addresses without TLS are still good.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = rustls::crypto::ring::default_provider();
        let config = ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, runtime, timeout, said: Mutex::default() })
    }

    /// Says that `host` did not take spans, unless it was said a short time ago.
    fn say(&self, host: &str, problem: &str) {
        if self.said.lock().is_due(Instant::now()) {
            tracing::warn!(
                host,
                problem,
                "the collector does not take spans: those that do not fit into the queue meanwhile are lost"
            );
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        let (client, within) = (self.client.clone(), self.timeout);
        // Whoever asks has no runtime of its own.
        let sent = self.runtime.spawn(async move {
            timeout(within, send(client, request)).await.unwrap_or_else(|_| Err("no answer in time".into()))
        });
        let answer = sent.await?;
        match &answer {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => self.say(&host, response.status().as_str()),
            Err(error) => self.say(&host, &Causes(&**error).to_string()),
        }
        answer
    }
}

async fn send(
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_is_away_does_not_flood_the_log() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let second = Duration::from_secs(1);
        let due: Vec<_> = (0..180).filter(|&passed| pace.is_due(start + passed * second)).collect();
        assert_eq!(due, [0, 60, 120]);
    }
}
