//! The admin port: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes, and the server's
//! own pages. It speaks HTTP/1.1, changes nothing and shows no secrets.

pub mod client;
pub mod failures;
pub mod function_metrics;
pub mod metrics;
pub mod rpc_metrics;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use porch_fn_lifecycle::health::Health;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::Instrument;

/// Maximum connections at once. A new connection above the limit closes the oldest connection that
/// has sent no request; if all have sent one, the oldest connection. So probes are always served.
const MAX_CONNECTIONS: usize = 256;
/// Minimum time that each connection is kept, so that a burst of new connections does not close it
/// before its request arrives. While no client closes its connection, the server accepts at most
/// [`MAX_CONNECTIONS`] in this time: 2,560 per second.
const GRACE: Duration = Duration::from_millis(100);
/// How long a client may take to send a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may last. It serves one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Content type of `/metrics`.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of JSON pages.
pub const JSON: &str = "application/json";
/// Content type of pages for people.
pub const HTML: &str = "text/html; charset=utf-8";

/// The Content-Security-Policy that forbids a browser to load or run anything. A page for people
/// has its own policy.
const NOTHING: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

/// A page of the server. Its content is created for each request.
pub struct Page {
    /// Its path.
    pub path: &'static str,
    /// Its content type, such as [`JSON`].
    pub content_type: &'static str,
    /// Its Content-Security-Policy. `None`: the browser may load and run nothing.
    pub policy: Option<HeaderValue>,
    /// Creates the content for a request's query, which may be empty. An error means that the query
    /// is not valid: the server answers 400 with the error's text, in the same content type.
    pub content: Content,
}

/// The value of a parameter in a page's query, decoded. `None` if it is missing or empty.
pub fn query_value(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    let value = percent_decode_str(value).decode_utf8_lossy();
    Some(value.into_owned()).filter(|value| !value.is_empty())
}

/// The type of [`Page::content`].
pub type Content = Box<dyn Fn(&str) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// The content of the admin port.
pub struct Admin {
    health: Health,
    registry: Option<Registry>,
    pages: Vec<Page>,
}

impl Admin {
    /// Serves probes from `health`, metrics from `registry` if there is one, and `pages`.
    pub fn new(health: Health, registry: impl Into<Option<Registry>>, pages: Vec<Page>) -> Arc<Self> {
        Arc::new(Self { health, registry: registry.into(), pages })
    }

    async fn answer(&self, method: &Method, path: &str, query: &str) -> Response<Full<Bytes>> {
        if method != Method::GET && method != Method::HEAD {
            return respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
        }
        match path {
            "/healthz" => respond(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" if self.health.is_serving() => respond(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, "starting or draining\n"),
            "/metrics" => {
                let Some(registry) = &self.registry else {
                    let text = "metrics are turned off by OTEL_METRICS_EXPORTER=none\n";
                    return respond(StatusCode::NOT_FOUND, TEXT, text);
                };
                let mut text = String::new();
                match encode(&mut text, registry) {
                    Ok(()) => respond(StatusCode::OK, OPENMETRICS, text),
                    Err(_) => respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "encoding failed\n"),
                }
            }
            path => {
                if let Some(page) = self.pages.iter().find(|page| page.path == path) {
                    let mut response = match (page.content)(query).await {
                        Ok(content) => respond(StatusCode::OK, page.content_type, content),
                        Err(wrong) => respond(StatusCode::BAD_REQUEST, page.content_type, wrong),
                    };
                    if let Some(policy) = &page.policy {
                        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy.clone());
                    }
                    response
                } else {
                    let mut known = vec!["/metrics", "/healthz", "/readyz"];
                    known.extend(self.pages.iter().map(|page| page.path));
                    respond(StatusCode::NOT_FOUND, TEXT, format!("pages: {}\n", known.join(" ")))
                }
            }
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

fn respond(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Full<Bytes>>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    // Pages contain callers' input: a browser must not interpret it.
    headers.insert(header::CONTENT_SECURITY_POLICY, NOTHING);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Serves the admin port until the future is dropped. Keep the future running during a drain, when
/// probes and metrics matter most.
pub async fn serve(listener: TcpListener, admin: Arc<Admin>) {
    let mut connections = JoinSet::new();
    let mut open: VecDeque<Open> = VecDeque::new();
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                make_room(&mut open).await;
                let (admin, requested) = (Arc::clone(&admin), Arc::new(AtomicBool::new(false)));
                let served = connection(stream, admin, Arc::clone(&requested));
                let span = tracing::debug_span!("admin", %peer);
                let task = connections.spawn(served.instrument(span));
                open.push_back(Open { since: Instant::now(), requested, task });
                // Lets the connection's task read a request that has already arrived, before the
                // next connection is accepted.
                yield_now().await;
            }
            Err(error) => {
                tracing::warn!(%error, "accepting an admin connection failed");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// An open connection, and whether it has received a request.
struct Open {
    since: Instant,
    requested: Arc<AtomicBool>,
    task: AbortHandle,
}

/// Closes connections until there is room for one more. Waits if the connection to close is younger
/// than [`GRACE`].
async fn make_room(open: &mut VecDeque<Open>) {
    loop {
        open.retain(|open| !open.task.is_finished());
        if open.len() < MAX_CONNECTIONS {
            return;
        }
        let silent = open.iter().position(|open| !open.requested.load(Ordering::Relaxed)).unwrap_or(0);
        let may_end = open[silent].since + GRACE;
        if Instant::now() < may_end {
            sleep_until(may_end).await;
        } else if let Some(oldest) = open.remove(silent) {
            oldest.task.abort();
        }
    }
}

async fn connection(stream: TcpStream, admin: Arc<Admin>, requested: Arc<AtomicBool>) {
    let service = service_fn(move |request: Request<Incoming>| {
        requested.store(true, Ordering::Relaxed);
        let admin = Arc::clone(&admin);
        async move {
            let uri = request.uri();
            let answer = admin.answer(request.method(), uri.path(), uri.query().unwrap_or_default()).await;
            Ok::<_, Infallible>(answer)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIMEOUT, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "admin connection ended"),
        Err(_) => tracing::debug!("an admin connection took too long"),
    }
}
