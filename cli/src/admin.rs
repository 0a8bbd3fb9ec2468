//! HTTP client for the admin ports of routers and runners.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::cluster::ClusterArgs;
use crate::failure::Failure;
use crate::output::Output;

/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a page, in bytes.
const MAX_PAGE: usize = 64 * 1024 * 1024;

/// Flags of the commands that print a page of an admin port.
#[derive(Debug, clap::Args)]
pub(crate) struct PageArgs {
    /// Admin address of the router or runner, if it can be reached without port forwarding
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9464", conflicts_with_all = ["namespace", "kubeconfig", "context"])]
    pub(crate) address: String,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// The admin port of a router or runner.
#[derive(Debug)]
pub(crate) struct AdminPort {
    /// `router` or `runner`.
    pub(crate) kind: &'static str,
    pub(crate) address: String,
}

// === impl AdminPort ===

impl AdminPort {
    /// Requests `path`, which may include a query.
    pub(crate) async fn get(&self, path: &str) -> Result<(StatusCode, Bytes), Failure> {
        let Self { kind, address } = self;
        let unreached = |reason: &str| {
            Failure::unreachable(format!("cannot reach the {kind}'s admin port at {address}: {reason}"))
        };
        let answer = async {
            let uri: Uri = format!("http://{address}{path}").parse().map_err(|error| self.other(&error))?;
            // If the address has no port, the client would connect to port 80.
            if uri.port().is_none() {
                return Err(unreached("invalid socket address: give HOST:PORT"));
            }
            let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
            let response = client.get(uri).await.map_err(|error| match root_cause(&error) {
                reason if error.is_connect() => unreached(&reason),
                _ => self.other(&error),
            })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_PAGE).collect().await;
            Ok((status, body.map_err(|error| self.other(&*error))?.to_bytes()))
        };
        let late = |_| Failure::unreachable(format!("no answer from {address} in 10 s"));
        timeout(TIMEOUT, answer).await.map_err(late)?
    }

    /// Requests the page at `path`. Returns its text and its parsed content.
    pub(crate) async fn page<T: DeserializeOwned>(&self, path: &str) -> Result<(String, T), Failure> {
        let (status, body) = self.get(path).await?;
        self.read(path, status, &body)
    }

    /// Parses the page in a response of [`AdminPort::get`].
    pub(crate) fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        status: StatusCode,
        body: &[u8],
    ) -> Result<(String, T), Failure> {
        if status != StatusCode::OK {
            let path = path.split('?').next().unwrap_or_default();
            let mut reason = format!("{path} returned {status}");
            reason.push_str(match status {
                StatusCode::NOT_FOUND => "; it may be a runner's, or its version may be older than 0.2.0",
                StatusCode::FORBIDDEN => "; name its host in the server's --admin-hosts",
                _ => "",
            });
            return Err(self.not_an_admin_port(&reason));
        }
        let page = serde_json::from_slice(body).map_err(|error| self.other(&error))?;
        Ok((String::from_utf8_lossy(body).into_owned(), page))
    }

    fn other(&self, error: &(dyn Error + 'static)) -> Failure {
        self.not_an_admin_port(&root_cause(error))
    }

    fn not_an_admin_port(&self, reason: &str) -> Failure {
        Failure::unreachable(format!("{} is not a {}'s admin port ({reason})", self.address, self.kind))
    }
}

/// Returns the last cause. The causes before it only name layers of the HTTP client.
fn root_cause(mut error: &(dyn Error + 'static)) -> String {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}
