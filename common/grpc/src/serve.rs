//! Accepts HTTP/2 connections and drains them.
//!
//! Porch never closes its connection, so connections have a maximum age. At that age the server
//! sends GOAWAY. The caller dials again, which spreads callers over routers. Calls in flight
//! continue.

mod connections;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use h2::Reason;
use h2::server::{Builder, Connection};
use http::{Request, Response};
use parking_lot::Mutex;
use porch_fn_backoff::spread;
use porch_fn_lifecycle::drain;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::connections::Connections;
pub use crate::cork::Stream;
use crate::cork::{Cork, Ended};
use crate::heartbeat::silence;
use crate::listen::Listener;
use crate::outgoing::Outgoing;
use crate::streams::{Activity, Open, respond};
use crate::{Body, Incoming, MAX_FRAME_BYTES, MAX_HEADER_LIST_BYTES};

/// Maximum calls at once on one connection of our own hops. A router sends all of its calls to a
/// runner over one connection. Calls above this limit wait at the sender, where this server cannot
/// order or refuse them. `nightly scale` has 10,000 waiting calls.
const STREAMS_BETWEEN_HOPS: u32 = 10 * 1024;
/// Maximum calls at once on one connection of a caller. A change of the window costs a visit of each.
pub const STREAMS_OF_CALLERS: u32 = 4000;
/// Flow-control window of a stream. Messages are held whole before they are used, so a small window
/// would only add round trips. The connection has its own window, which limits all of its streams.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// A peer that sends nothing for this long is pinged. A new peer that does not send HTTP/2's
/// preface in this time is disconnected.
const KEEP_ALIVE: Duration = Duration::from_mins(1);
/// How long a peer may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// After GOAWAY, how long a connection without calls may stay open. HTTP/2 needs a round trip.
const LAST_CALL: Duration = Duration::from_secs(5);
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
    /// Maximum payload of a DATA frame in bytes, such as [`MAX_FRAME_BYTES`]. A part of a frame is
    /// in memory before it counts as bytes in flight, so only our own hops may send large frames.
    pub max_frame_bytes: u32,
    /// Maximum calls at once on one connection.
    pub max_streams: u32,
}

impl Options {
    /// The limits of a server whose callers are our own hops.
    pub const fn between_hops(max_connections: usize) -> Self {
        let (max_frame_bytes, max_streams) = (MAX_FRAME_BYTES, STREAMS_BETWEEN_HOPS);
        Self { max_age: None, max_connections, max_frame_bytes, max_streams }
    }
}

/// The handshake of a connection before HTTP/2 begins, such as TLS.
pub type Acceptor = Arc<dyn Fn(TcpStream) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> + Send + Sync>;

/// Serves connections of `listener` with `handler` until the drain begins. Then sends GOAWAY on
/// each connection, and returns when the last connection has finished. Without `accept`,
/// connections are plain text. Dropping the future ends them at once.
pub async fn serve<H, F>(
    listener: Listener,
    accept: Option<Acceptor>,
    options: Options,
    handler: H,
    mut drain: drain::Watch,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let stop = CancellationToken::new();
    let mut connected = Connections { limit: options.max_connections, open: Vec::new() };
    let refusals = Arc::new(Refusals::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = drain.draining() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                if !connected.make_room() {
                    if refusals.may_log("busy".to_owned()) {
                        tracing::warn!(%peer, "refused a connection: all --max-connections connections have calls");
                    }
                    continue;
                }
                let span = tracing::debug_span!("connection", %peer);
                let activity = Activity::new(stop.child_token());
                let (accept, handler, refusals) = (accept.clone(), handler.clone(), Arc::clone(&refusals));
                let watched = Arc::clone(&activity);
                let served = async move {
                    // A connection cannot be drained before its preface, so it ends at once.
                    match watched.ending.run_until_cancelled(admit(stream, accept)).await {
                        Some(Ok(Some(stream))) => match connection(stream, options, watched, handler).await {
                            Err(flood @ Ended::Flood) if refusals.may_log("flood".to_owned()) => {
                                tracing::warn!(%peer, "ended a connection: {flood}");
                            }
                            Err(error) => tracing::debug!(%error, "connection ended"),
                            Ok(()) => {}
                        },
                        Some(Ok(None)) | None => {}
                        Some(Err(error)) => refusals.log_tls(peer, &error),
                    }
                };
                connected.open.push(activity);
                connections.spawn(served.instrument(span));
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                // Most likely no file descriptors are left, so close the idle connections.
                connected.end_idle();
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    stop.cancel();
    while connections.join_next().await.is_some() {}
}

impl Listener {
    /// Accepts a connection. Returns its peer, which has no address if it is a Unix socket.
    async fn accept(&self) -> io::Result<(Either<TcpStream, UnixStream>, SocketAddr)> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, peer)| (Either::Left(stream), peer)),
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Either::Right(stream), (Ipv4Addr::LOCALHOST, 0).into()))
            }
        }
    }
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

/// Returns the connection when it is ready for HTTP/2; `None` if the peer sent nothing.
async fn admit(
    stream: Either<TcpStream, UnixStream>,
    accept: Option<Acceptor>,
) -> io::Result<Option<Box<dyn Stream>>> {
    let stream = match stream {
        Either::Left(stream) => stream,
        // Only our own processes connect to it, and they need no TLS.
        Either::Right(stream) => return Ok(Some(Box::new(stream))),
    };
    // In every answer, a small frame with the trailers follows a large one. Nagle's algorithm would
    // delay the small frame.
    let _ = stream.set_nodelay(true);
    // A peer that closes without sending a byte (a TCP probe) is not counted as a TLS failure.
    let mut first = [0];
    if !matches!(timeout(KEEP_ALIVE, stream.peek(&mut first)).await, Ok(Ok(1..))) {
        return Ok(None);
    }
    match accept {
        Some(accept) => accept(stream).await.map(Some),
        None => Ok(Some(Box::new(stream))),
    }
}

async fn connection<H, F>(
    stream: Box<dyn Stream>,
    options: Options,
    activity: Arc<Activity>,
    handler: H,
) -> Result<(), Ended>
where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    // The age is random, so that connections that were opened together do not end together.
    let age = options.max_age.map_or(Duration::MAX, |age| spread(age, 0.9..1.1));
    let mut must_end = pin!(timeout(age, activity.ending.cancelled()));
    let cork = Cork::server(stream);
    // In a block of its own, because the task keeps room for each variable of its scope.
    let mut connection = {
        let handshake = timeout(KEEP_ALIVE, handshake(&cork, options));
        let connected = activity.ending.run_until_cancelled(handshake).await;
        let Some(Ok(connected)) = connected else { return Ok(()) };
        connected?
    };
    let mut silent = pin!(silence(&cork, connection.ping_pong(), Some((KEEP_ALIVE, PING_TIMEOUT))));
    let mut ending_since = None;
    loop {
        tokio::select! {
            biased;
            accepted = cork.drive(|context| connection.poll_accept(context).map(Option::transpose)) => match accepted {
                Ok(Some((request, reply))) => {
                    // Boxed, because a spawn moves its future several times.
                    let answer = Box::pin(handler(request.map(Incoming)));
                    tokio::spawn(respond(answer, reply, Open::new(&activity)));
                }
                Err(Ended::Flood) => {
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    // Writes the GOAWAY, if the peer has room for it.
                    let _ = cork.drive(|context| connection.poll_closed(context)).await;
                    return Err(Ended::Flood);
                }
                ended => return ended.map(drop),
            },
            _ = &mut must_end, if ending_since.is_none() => {
                connection.graceful_shutdown();
                ending_since = Some(Instant::now());
            }
            () = async { activity.idle_for(LAST_CALL, ending_since.unwrap_or_else(Instant::now)).await }, if ending_since.is_some() => return Ok(()),
            () = &mut silent => return Ok(()),
        }
    }
}

/// Completes when the peer's preface has arrived.
async fn handshake(
    cork: &Cork,
    Options { max_frame_bytes, max_streams, .. }: Options,
) -> Result<Connection<Cork, Outgoing>, Ended> {
    let mut handshake = pin!(
        Builder::new()
            .max_header_list_size(MAX_HEADER_LIST_BYTES)
            .max_concurrent_streams(max_streams)
            .max_frame_size(max_frame_bytes)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // A caller that cancels all of its calls at once is normal here, not an attack.
            .max_pending_accept_reset_streams(max_streams as usize)
            .max_local_error_reset_streams(None)
            .handshake(cork.clone())
    );
    cork.drive(|context| handshake.as_mut().poll(context)).await
}
