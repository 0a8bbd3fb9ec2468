//! Asks admin ports for their pages.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Where an admin port is unless told otherwise.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:9464";
/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest page that is read, in bytes.
const MAX_PAGE: usize = 64 * 1024 * 1024;

/// Whose admin port is asked.
#[derive(Debug)]
pub(crate) struct Server {
    /// `router` or `runner`.
    pub(crate) kind: &'static str,
    pub(crate) address: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    #[error("cannot reach the {kind}'s admin port at {address}: {source}")]
    Connect { kind: &'static str, address: String, source: std::io::Error },
    #[error("no answer from {0} in 10 s")]
    Timeout(String),
    #[error("{address} is not a {kind}'s admin port ({reason})")]
    Other { kind: &'static str, address: String, reason: String },
}

/// What an admin port said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Gets `path`, query included.
pub(crate) async fn fetch(server: &Server, path: &str) -> Result<Answer, AdminError> {
    let fetched = timeout(TIMEOUT, fetch_slowly(server, path)).await;
    fetched.unwrap_or_else(|_| Err(AdminError::Timeout(server.address.clone())))
}

async fn fetch_slowly(server: &Server, path: &str) -> Result<Answer, AdminError> {
    let address = &server.address;
    let stream = TcpStream::connect(address).await.map_err(|source| AdminError::Connect {
        kind: server.kind,
        address: address.clone(),
        source,
    })?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| server.other(error.to_string()))?;
    let request = Request::get(path)
        .header(header::HOST, address)
        .body(Empty::<Bytes>::new())
        .map_err(|error| server.other(error.to_string()))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| server.other(error.to_string()))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_PAGE).collect().await;
        let body = body.map_err(|error| server.other(error.to_string()))?.to_bytes();
        Ok(Answer { status, body })
    };
    let mut answer = pin!(answer);
    // The connection makes progress only while it is polled. A server may close it right after its answer, of which
    // the rest is then still to be read.
    tokio::select! {
        answer = &mut answer => answer,
        _ = connection => answer.await,
    }
}

// === impl Server ===

impl Server {
    fn other(&self, reason: String) -> AdminError {
        AdminError::Other { kind: self.kind, address: self.address.clone(), reason }
    }
}

// === impl Answer ===

impl Answer {
    /// The page at `path` as text, and what it says.
    pub(crate) fn page<T: DeserializeOwned>(
        &self,
        server: &Server,
        path: &str,
    ) -> Result<(String, T), AdminError> {
        if self.status != StatusCode::OK {
            return Err(server.other(format!("{path} is {}", self.status)));
        }
        let page = serde_json::from_slice(&self.body).map_err(|error| server.other(error.to_string()))?;
        Ok((String::from_utf8_lossy(&self.body).into_owned(), page))
    }
}
