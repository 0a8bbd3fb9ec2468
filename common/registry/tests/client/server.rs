//! An HTTP server whose answers a test sets, and which records its requests.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

const CHUNK: usize = 64 << 10;

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn authorization(&self) -> Option<&str> {
        self.headers.get("authorization").map(|value| value.to_str().unwrap())
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    Full(Bytes),
    /// Zeros, endlessly.
    Endless,
    /// Never answers.
    Never,
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Body,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Bytes>) -> Self {
        Self { status, headers: Vec::new(), body: Body::Full(body.into()) }
    }

    pub(crate) fn json(body: &serde_json::Value) -> Self {
        Self::new(200, body.to_string()).with("content-type", "application/json")
    }

    pub(crate) fn redirect(place: impl Into<String>) -> Self {
        Self::new(307, "").with("location", place)
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

type Answer = dyn Fn(&Seen) -> Reply + Send + Sync;

#[derive(Default)]
struct State {
    seen: Mutex<Vec<Seen>>,
    sent: AtomicU64,
}

/// A server on loopback, stopped on drop.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    accepting: AbortHandle,
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::bind(None, answer).await
    }

    /// Starts a TLS server with this certificate and key of the fixtures.
    pub(crate) async fn start_tls(
        certificate: &str,
        key: &str,
        answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let certificate = CertificateDer::from_pem_file(fixture(certificate)).unwrap();
        let key = PrivateKeyDer::from_pem_file(fixture(key)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self::bind(Some(TlsAcceptor::from(Arc::new(config))), answer).await
    }

    async fn bind(tls: Option<TlsAcceptor>, answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let answer: Arc<Answer> = Arc::new(answer);
        let of_task = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, state, answer) = (tls.clone(), Arc::clone(&of_task), Arc::clone(&answer));
                tokio::spawn(async move {
                    let service =
                        service_fn(move |request| reply(request, Arc::clone(&state), Arc::clone(&answer)));
                    match tls {
                        None => {
                            let http = hyper::server::conn::http1::Builder::new();
                            let _ = http.serve_connection(TokioIo::new(stream), service).await;
                        }
                        Some(tls) => {
                            // A client that does not trust the certificate ends the handshake.
                            let Ok(stream) = tls.accept(stream).await else { return };
                            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                            let _ = http.serve_connection(TokioIo::new(stream), service).await;
                        }
                    }
                });
            }
        });
        Self { address, state, accepting: accepting.abort_handle() }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().clone()
    }

    /// Takes the methods and paths of the requests since the previous `take`.
    pub(crate) fn take(&self) -> Vec<String> {
        let seen = std::mem::take(&mut *self.state.seen.lock());
        seen.iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect()
    }

    /// Sent bytes of endless bodies.
    pub(crate) fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

type ReplyBody = UnsyncBoxBody<Bytes, std::convert::Infallible>;

async fn reply(
    request: Request<Incoming>,
    state: Arc<State>,
    answer: Arc<Answer>,
) -> Result<Response<ReplyBody>, std::convert::Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let path = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let seen = Seen {
        method: parts.method,
        path,
        version: parts.version,
        headers: parts.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    state.seen.lock().push(seen.clone());
    let reply = answer(&seen);
    let mut response = Response::builder().status(StatusCode::from_u16(reply.status).unwrap());
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    let body = match reply.body {
        Body::Full(bytes) => Full::new(bytes).boxed_unsync(),
        Body::Never => std::future::pending().await,
        Body::Endless => {
            let of_body = Arc::clone(&state);
            let chunks = stream::repeat_with(move || {
                of_body.sent.fetch_add(CHUNK as u64, Ordering::Relaxed);
                Ok(Frame::data(Bytes::from(vec![0; CHUNK])))
            });
            StreamBody::new(chunks.boxed()).boxed_unsync()
        }
    };
    Ok(response.body(body).unwrap())
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// `Authorization: Basic`.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}
