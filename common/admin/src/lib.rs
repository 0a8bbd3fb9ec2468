//! The admin port: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes, and the server's
//! own pages. It speaks HTTP/1.1, changes nothing and shows no secrets.

pub mod client;
pub mod failures;
pub mod function_metrics;
pub mod metrics;
pub mod rpc_metrics;

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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(admin: &Admin, path: &str) -> (u16, String) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let response = admin.answer(&Method::GET, path, query).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_the_answer_is_disconnected() {
        let page = Page {
            path: "/large",
            content_type: JSON,
            policy: None,
            content: Box::new(|_| async { Ok("x".repeat(32 * 1024 * 1024)) }.boxed()),
        };
        let admin = Admin::new(Health::new(), None, vec![page]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        peer.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        timeout(CONNECTION_TIMEOUT * 2, connection(stream, admin, Arc::default())).await.expect("it ends");
        // The request was read, and the answer had begun.
        assert_eq!(peer.read_u8().await.unwrap(), b'H');
    }

    #[tokio::test]
    async fn probes_are_answered_despite_many_silent_clients() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _serving = tokio::spawn(serve(listener, Admin::new(Health::new(), None, Vec::new())));
        let mut silent = Vec::new();
        for _ in 0..3 {
            for _ in 0..MAX_CONNECTIONS {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            let mut probe = TcpStream::connect(address).await.unwrap();
            probe.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            let read = timeout(Duration::from_secs(1), probe.read_to_string(&mut answer)).await;
            read.expect("an answer in time").unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        // The oldest silent connections were closed.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap_or_default(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_clients_closes_no_connection_before_its_minimum_time() {
        let since = Instant::now();
        let mut tasks = JoinSet::new();
        let mut open: VecDeque<_> = (0..MAX_CONNECTIONS)
            .map(|_| Open {
                since,
                requested: Arc::default(),
                task: tasks.spawn(std::future::pending::<()>()),
            })
            .collect();
        open[0].requested.store(true, Ordering::Relaxed);
        make_room(&mut open).await;
        assert_eq!(since.elapsed(), GRACE);
        // Connections with a request are kept longer than connections without one.
        assert_eq!(open.len(), MAX_CONNECTIONS - 1);
        assert!(open[0].requested.load(Ordering::Relaxed));
    }

    #[test]
    fn a_value_of_the_query_is_decoded() {
        for (query, expected) in [
            ("image=a%2Fb:v1%40x%26y&x=1", Some("a/b:v1@x&y")),
            ("x=1&image=f=g", Some("f=g")),
            ("image=", None),
            ("image", None),
            ("images=f", None),
            ("", None),
        ] {
            assert_eq!(query_value(query, "image").as_deref(), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn pages_and_probes() {
        let health = Health::new();
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("calls", "Calls", counter.clone());
        counter.inc();
        let page = Page {
            path: "/shards",
            content_type: JSON,
            policy: None,
            content: Box::new(|query| {
                let content =
                    if query == "no" { Err("not so".to_owned()) } else { Ok(format!("{{{query}}}")) };
                async { content }.boxed()
            }),
        };
        let for_people = Page {
            path: "/",
            content_type: HTML,
            policy: Some(HeaderValue::from_static("script-src 'self'")),
            content: Box::new(|_| async { Ok("<p>".to_owned()) }.boxed()),
        };
        let admin = Admin::new(health.clone(), registry, vec![page, for_people]);
        assert_eq!(get(&admin, "/healthz").await.0, 200);
        assert_eq!(get(&admin, "/readyz").await.0, 503);
        health.set("", true);
        assert_eq!(get(&admin, "/readyz").await.0, 200);
        assert!(get(&admin, "/metrics").await.1.contains("calls_total 1"));
        assert_eq!(get(&admin, "/shards").await, (200, "{}".to_owned()));
        assert_eq!(get(&admin, "/shards?a=b").await, (200, "{a=b}".to_owned()));
        assert_eq!(get(&admin, "/shards?no").await, (400, "not so".to_owned()));
        assert_eq!(get(&admin, "/x").await, (404, "pages: /metrics /healthz /readyz /shards /\n".to_owned()));
        assert_eq!(admin.answer(&Method::POST, "/metrics", "").await.status(), 405);
        assert_eq!(get(&Admin::new(health, None, Vec::new()), "/metrics").await.0, 404);
        // Only a page with its own policy may run anything.
        for (path, policy) in [
            ("/", "script-src 'self'"),
            ("/shards", NOTHING.to_str().unwrap()),
            ("/x", NOTHING.to_str().unwrap()),
        ] {
            let response = admin.answer(&Method::GET, path, "").await;
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], policy, "{path}");
            assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }
}
