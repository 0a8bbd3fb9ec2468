//! Accepts HTTP/2 connections and drains them.
//!
//! Porch never closes its connection, so connections have a maximum age. At that age the server
//! sends GOAWAY. The caller dials again, which spreads callers over routers. Calls in flight
//! continue.

mod connections;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, OptionFuture};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use porch_fn_backoff::spread;
use porch_fn_lifecycle::drain;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::io::InspectReader;
use tracing::Instrument;

use self::connections::Connections;
use crate::streams::{Activity, Streams};
use crate::{Body, MAX_HEADER_LIST_BYTES};

/// Maximum calls at once on one connection. Porch and routers send all of their calls over one
/// connection. Calls above this limit wait at the sender, where this server cannot order or refuse
/// them. So the limit of bytes in flight must take effect first. This number is the default limit
/// of bytes in flight, 512 MiB, divided by 16 KiB per call.
const MAX_CONCURRENT_STREAMS: u32 = 32 * 1024;
/// Flow-control window of a stream. Messages are held whole before they are used, so a small window
/// would only add round trips. The connection has its own window, which limits all of its streams.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// HTTP/2 ping interval. A lost peer is noticed after this time plus hyper's ping timeout, 20
/// seconds. A new peer that sends nothing is disconnected after this time.
const KEEP_ALIVE: Duration = Duration::from_mins(1);
/// Length of the HTTP/2 client preface in bytes (RFC 9113, section 3.4).
const PREFACE_LEN: u64 = 24;
/// A caller that cancels all of its calls at once is normal here, not an attack.
const MAX_PENDING_RESETS: usize = MAX_CONCURRENT_STREAMS as usize;
/// Each reason for refused connections is logged once per interval, for at most [`MAX_LOGGED`]
/// reasons.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
const MAX_LOGGED: usize = 10;
/// Pause after accept fails, for example because the process has no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Age after which the server sends GOAWAY, so that the caller dials again.
    pub max_age: Option<Duration>,
    /// Maximum connections at once (`--max-connections`). For a new connection above the limit, the
    /// server closes the one idle for longest. If all are busy, it refuses the new connection.
    pub max_connections: usize,
}

/// A byte stream: plain TCP or TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The handshake of a connection before HTTP/2 begins, such as TLS.
pub type Acceptor = Arc<dyn Fn(TcpStream) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> + Send + Sync>;

/// Serves connections of `listener` with `handler` until the drain begins. Then sends GOAWAY on
/// each connection, and returns when the last connection has finished. Without `accept`,
/// connections are plain text. Dropping the future ends them at once.
pub async fn serve<H, F>(
    listener: TcpListener,
    accept: Option<Acceptor>,
    options: Options,
    handler: H,
    mut drain: drain::Watch,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut open = Connections::new(options.max_connections);
    let refusals = Arc::new(Refusals::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = drain.draining() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                if !open.make_room() {
                    if refusals.may_log("busy".to_owned()) {
                        tracing::warn!(%peer, "refused a connection: all --max-connections connections have calls");
                    }
                    continue;
                }
                let span = tracing::debug_span!("connection", %peer);
                // The age is random, so that connections that were opened together do not end
                // together.
                let age = options.max_age.map(|age| spread(age, 0.9..1.1));
                let activity = Activity::new();
                let (accept, handler, drain) = (accept.clone(), handler.clone(), drain.clone());
                let (refusals, watched) = (Arc::clone(&refusals), Arc::clone(&activity));
                let served = async move {
                    match admit(stream, accept, drain.clone()).await {
                        Ok(Some(stream)) => connection(stream, age, watched, handler, drain).await,
                        Ok(None) => {}
                        Err(error) => refusals.log_tls(peer, &error),
                    }
                };
                open.push(activity, connections.spawn(served.instrument(span)));
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                // Most likely no file descriptors are left, so close the idle connections.
                open.end_idle();
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// The reasons for refused connections that were logged in the last [`LOG_INTERVAL`], and when.
#[derive(Debug, Default)]
struct Refusals(Mutex<BTreeMap<String, Instant>>);

impl Refusals {
    fn log_tls(&self, peer: SocketAddr, error: &io::Error) {
        // The error text for an expired certificate contains the current time. Without digits, the
        // texts of repeated errors are equal.
        if self.may_log(error.to_string().replace(|letter: char| letter.is_ascii_digit(), "")) {
            tracing::warn!(%peer, %error, "refused a connection: TLS failed; check --tls-client-ca and the peer's certificate");
        } else {
            tracing::debug!(%peer, %error, "refused a connection: TLS failed");
        }
    }

    /// Whether to log this reason now. If so, it is recorded as logged.
    fn may_log(&self, reason: String) -> bool {
        let mut logged = self.0.lock();
        logged.retain(|_, at| at.elapsed() < LOG_INTERVAL);
        let may_log = logged.len() < MAX_LOGGED && !logged.contains_key(&reason);
        if may_log {
            logged.insert(reason, Instant::now());
        }
        may_log
    }
}

/// Returns the connection when it is ready for HTTP/2; `None` if the peer sent nothing or the drain
/// begins.
async fn admit(
    stream: TcpStream,
    accept: Option<Acceptor>,
    mut drain: drain::Watch,
) -> io::Result<Option<Box<dyn Stream>>> {
    // In every answer, a small frame with the trailers follows a large one. Nagle's algorithm would
    // delay the small frame.
    let _ = stream.set_nodelay(true);
    // A peer that closes without sending a byte (a TCP probe) is not counted as a TLS failure.
    let mut first = [0];
    tokio::select! {
        read = stream.peek(&mut first) => if !matches!(read, Ok(1..)) { return Ok(None) },
        () = drain.draining() => return Ok(None),
        () = sleep(KEEP_ALIVE) => return Ok(None),
    }
    let Some(accept) = accept else { return Ok(Some(Box::new(stream))) };
    tokio::select! {
        accepted = accept(stream) => accepted.map(Some),
        () = drain.draining() => Ok(None),
    }
}

async fn connection<H, F>(
    stream: Box<dyn Stream>,
    age: Option<Duration>,
    activity: Arc<Activity>,
    handler: H,
    mut drain: drain::Watch,
) where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let received = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&received);
    let stream = InspectReader::new(stream, move |bytes| {
        count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    });
    let has_preface = || received.load(Ordering::Relaxed) >= PREFACE_LEN;
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http2::Builder::new(Streams(Arc::clone(&activity)))
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(None)
        .keep_alive_interval(KEEP_ALIVE)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let old = OptionFuture::from(age.map(sleep));
    let silent = async {
        sleep(KEEP_ALIVE).await;
        if has_preface() {
            pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = silent => return,
        () = async { tokio::select! { () = drain.draining() => (), Some(()) = old => () } } => {
            // hyper cannot drain a connection before the client preface, so end it at once.
            if !has_preface() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = activity.idle_for_long() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
