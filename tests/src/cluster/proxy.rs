//! A proxy in front of the API server that injects faults like those of networks, load balancers
//! and a busy API server. A runner gets the proxy's kubeconfig; the test itself bypasses the proxy.
//!
//! The proxy completes each forwarded request, even if the client has disconnected. So the API
//! server may execute a write late, or without the client learning of it.

mod faulty_watch;
mod rules;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, DATE, HOST, RETRY_AFTER, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use kube::{Client, client};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinHandle, JoinSet};

use super::Cluster;
use crate::process::Sandbox;
pub use rules::{Fault, RequestKind, Rule};
use rules::{Rules, Stage};

/// A proxy to the API server. Without rules it injects no fault.
pub struct ApiProxy {
    address: SocketAddr,
    /// Reserves the port while the proxy refuses connections.
    _port: TcpSocket,
    shared: Arc<Shared>,
    /// Accepts connections. All connections end with this task.
    serving: Option<JoinHandle<()>>,
}

struct Shared {
    upstream: Client,
    /// Seconds by which the `Date` header of forwarded responses is ahead of the real time.
    ahead: AtomicI64,
    rules: Rules,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, BoxError>;

// === impl ApiProxy ===

impl ApiProxy {
    /// Listens on a free port. The seed determines the random decisions of the rules.
    pub async fn start(cluster: &Cluster, seed: u64) -> Self {
        let mut config = cluster.config.clone();
        // The proxy must not retry or time out, because its clients do that themselves.
        config.default_retry = false;
        config.read_timeout = None;
        let upstream = Client::try_from(config).expect("a client of the cluster");
        let shared = Arc::new(Shared { upstream, ahead: AtomicI64::new(0), rules: Rules::new(seed) });
        let port = bind((Ipv4Addr::LOCALHOST, 0).into());
        let address = port.local_addr().expect("it is bound");
        let mut proxy = Self { address, _port: port, shared, serving: None };
        proxy.open().await;
        proxy
    }

    /// Writes a kubeconfig for the proxy into the sandbox. Clients of the proxy have all rights,
    /// because the proxy uses the test's own credentials.
    pub fn kubeconfig(&self, sandbox: &Sandbox) -> PathBuf {
        sandbox.kubeconfig(&format!("http://{}", self.address))
    }

    /// Sets the `Date` header of forwarded responses ahead. Responses that the proxy itself creates
    /// have the real date.
    pub fn set_clock_ahead(&self, seconds: i64) {
        self.shared.ahead.store(seconds, Ordering::Relaxed);
    }

    /// Replaces the rules. A stalled watch stays stalled until its client closes the connection.
    pub fn set(&self, rules: impl IntoIterator<Item = Rule>) {
        self.shared.rules.set(rules.into_iter().collect());
    }

    /// The injected fault, if any, of each request, and each fault in an open watch.
    pub fn outcomes(&self) -> Vec<Option<Fault>> {
        self.shared.rules.outcomes()
    }

    /// Closes all connections and refuses new ones.
    pub async fn close(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            // The result is always an error: the task was cancelled.
            let _ = serving.await;
        }
    }

    /// Accepts connections again at the same address.
    pub async fn open(&mut self) {
        self.close().await;
        let listener = bind(self.address).listen(1024).expect("the port is reserved");
        self.serving = Some(tokio::spawn(serve(listener, Arc::clone(&self.shared))));
    }
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

/// Binds a socket with `SO_REUSEPORT`, so that the socket that reserves the port and the listener
/// can share the address.
fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseport(true).and_then(|()| socket.bind(address)).expect("a free port");
    socket
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let answer = service_fn(move |request| answer(Arc::clone(&shared), request));
            // The client handles a lost connection; the proxy ignores it.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// Answers a request. If this returns an error, hyper closes the connection without a response.
async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, BoxError> {
    let kind = RequestKind::of(request.method(), request.uri());
    let fault = shared.rules.choose(kind, Stage::Received);
    let refused = match fault {
        Some(Fault::Conflict) => Some((StatusCode::CONFLICT, "Conflict")),
        Some(Fault::RefuseWatch) => Some((StatusCode::GONE, "Expired")),
        Some(Fault::TooManyRequests) => Some((StatusCode::TOO_MANY_REQUESTS, "TooManyRequests")),
        Some(Fault::ServerError) => Some((StatusCode::INTERNAL_SERVER_ERROR, "InternalError")),
        _ => None,
    };
    if let Some((code, reason)) = refused {
        shared.rules.record(fault);
        return Ok(failure(code, reason));
    }
    let delay = if let Some(Fault::Slow(delay)) = fault { delay } else { Duration::ZERO };
    let forwarded = tokio::spawn({
        let shared = Arc::clone(&shared);
        async move {
            tokio::time::sleep(delay).await;
            let answered = forward(&shared, request).await;
            shared.rules.record(fault);
            answered
        }
    });
    let answered = forwarded.await??;
    match fault {
        Some(Fault::LoseAnswer) => Ok(failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError")),
        Some(Fault::LoseConnection) => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        _ if kind == RequestKind::Watch && answered.status().is_success() => {
            let (head, body) = answered.into_parts();
            Ok(Response::from_parts(head, faulty_watch::body(shared, body)))
        }
        _ => Ok(answered.map(|body| body.map_err(BoxError::from).boxed_unsync())),
    }
}

async fn forward(shared: &Shared, request: Request<Incoming>) -> Result<Response<client::Body>, BoxError> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    // `upstream` adds the API server's address.
    head.uri = head.uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    for header in [HOST, CONNECTION, TRANSFER_ENCODING] {
        head.headers.remove(header);
    }
    let mut answered = shared.upstream.send(Request::from_parts(head, client::Body::from(body))).await?;
    for header in [CONNECTION, TRANSFER_ENCODING] {
        answered.headers_mut().remove(header);
    }
    *answered.version_mut() = http::Version::HTTP_11;
    let ahead = SignedDuration::from_secs(shared.ahead.load(Ordering::Relaxed));
    let date = jiff::fmt::rfc2822::DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&(Timestamp::now() + ahead))?;
    answered.headers_mut().insert(DATE, date.parse()?);
    Ok(answered)
}

/// A failure as the Kubernetes object `Status`, like the API server reports it.
pub fn status(code: StatusCode, reason: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "a fault of the test", "reason": reason, "code": code.as_u16(),
    })
}

fn failure(code: StatusCode, reason: &str) -> Response<Body> {
    let mut response = Response::new(Full::from(status(code, reason).to_string()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    if code == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(RETRY_AFTER, http::HeaderValue::from_static("1"));
    }
    response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
}

// === impl RequestKind ===

impl RequestKind {
    fn of(method: &Method, uri: &http::Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        let watch = query.split('&').any(|part| matches!(part, "watch=true" | "watch=1" | "watch"));
        match *method {
            Method::GET if watch => Self::Watch,
            Method::GET => Self::Read,
            _ => Self::Write,
        }
    }
}
