//! The HTTP client for the collector: HTTP/1.1, with TLS for an address with `https`.

use std::time::Duration;

use async_trait::async_trait;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use parking_lot::Mutex;
use porch_fn_telemetry::Causes;
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Minimum time between warnings that the collector does not accept spans.
const BETWEEN_WARNINGS: Duration = Duration::from_mins(1);

/// Sends batches of spans. The SDK calls this outside of `runtime`, so requests are spawned there.
#[derive(Debug)]
pub(crate) struct Collector {
    client: HyperClient<HttpsConnector<HttpConnector>>,
    runtime: Handle,
    warned: Mutex<Option<Instant>>,
}

impl Collector {
    /// A client that waits for each answer for at most `timeout`.
    pub(crate) fn new(timeout: Duration, runtime: Handle) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        // Errors are ignored: if no CA certificate is found, `http` addresses still work.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = rustls::crypto::ring::default_provider();
        let config = ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build();
        Ok(Self { client: HyperClient::new(connector, timeout, None), runtime, warned: Mutex::default() })
    }

    fn warn(&self, host: &str, problem: &str) {
        let mut warned = self.warned.lock();
        if warned.is_none_or(|last| last.elapsed() >= BETWEEN_WARNINGS) {
            *warned = Some(Instant::now());
            tracing::warn!(
                host,
                error = problem,
                "the collector does not accept spans; spans that do not fit into the queue are lost"
            );
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        let client = self.client.clone();
        let answer = self.runtime.spawn(async move { client.send_bytes(request).await }).await?;
        match &answer {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => self.warn(&host, response.status().as_str()),
            Err(error) => self.warn(&host, &Causes(&**error).to_string()),
        }
        answer
    }
}
