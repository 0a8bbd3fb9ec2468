//! The admin port: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes, and the server's
//! own pages. It speaks HTTP/1.1, changes nothing and shows no secrets.
//!
//! It has a thread of its own, so that a page that takes long delays no call.

pub mod client;
pub mod failures;
pub mod function_metrics;
mod hosts;
pub mod metrics;
pub mod rpc_metrics;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
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
use porch_fn_lifecycle::tasks::pass_on_panic;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet, spawn_blocking, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::Instrument;

use self::hosts::Hosts;

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
    /// Creates the content for a request's query, which may be empty. It runs on the thread of the
    /// admin port. Connections and tasks that it creates belong to the runtime that serves calls.
    /// An error is the status and the content of the answer.
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
pub type Content = Box<dyn Fn(&str) -> BoxFuture<'static, Result<Bytes, (StatusCode, String)>> + Send + Sync>;

/// The content of the admin port.
pub struct Admin {
    health: Health,
    registry: Option<Registry>,
    pages: Vec<Page>,
    hosts: Hosts,
    /// The runtime that serves calls.
    serving: Handle,
}

impl Admin {
    /// Serves probes from `health`, metrics from `registry` if there is one, and `pages`. `hosts` are
    /// those of `--admin-hosts`. Call it on the runtime that serves calls.
    pub fn new(health: Health, registry: Option<Registry>, pages: Vec<Page>, hosts: &[String]) -> Arc<Self> {
        let (hosts, serving) = (Hosts::of_pod(hosts), Handle::current());
        Arc::new(Self { health, registry, pages, hosts, serving })
    }

    async fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
        }
        if matches!(path, "/healthz" | "/readyz") {
            // While the threads that serve calls hang, probes have no answer.
            let _ = self.serving.spawn(async {}).await;
        } else if !self.hosts.accept(request.headers()) {
            let text = "not a name of this server: use its address, or add the name to --admin-hosts\n";
            return respond(StatusCode::FORBIDDEN, TEXT, text);
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
                    let mut content = (page.content)(query);
                    let content = poll_fn(|context| {
                        let _serving = self.serving.enter();
                        content.as_mut().poll(context)
                    });
                    let wrong = |(status, text): (_, String)| (status, text.into());
                    let (status, content) = content.await.map_or_else(wrong, |page| (StatusCode::OK, page));
                    let mut response = respond(status, page.content_type, content);
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
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    // Pages contain callers' input: a browser must not interpret it.
    headers.insert(header::CONTENT_SECURITY_POLICY, NOTHING);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Serves the admin port, on a thread of its own, until the future is dropped. Keep the future
/// running during a drain, when probes and metrics matter most.
///
/// The thread ends when the page that it creates is complete. The runtime waits for it.
pub async fn serve(listener: TcpListener, admin: Arc<Admin>) {
    let (_lives, dropped) = oneshot::channel::<Infallible>();
    let run = move || -> io::Result<()> {
        Builder::new_current_thread().enable_all().build()?.block_on(async {
            let serving = accept(TcpListener::from_std(listener.into_std()?)?, admin);
            tokio::select! { _ = dropped => Ok(()), () = serving => Ok(()) }
        })
    };
    match spawn_blocking(run).await {
        Ok(Err(error)) => tracing::error!(%error, "the thread of --admin-port cannot run"),
        ended => pass_on_panic(ended),
    }
}

async fn accept(listener: TcpListener, admin: Arc<Admin>) {
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
        async move { Ok::<_, Infallible>(admin.answer(&request).await) }
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
