//! Accepts HTTP/2 connections and ends them in order.
//!
//! Porch holds one connection for ever, so connections are given a maximum age: a GOAWAY makes the
//! caller dial again, which spreads callers over routers. Calls in flight are not touched by it.

mod connections;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::either::Either;
use tokio_util::io::InspectReader;
use tracing::Instrument;

use self::connections::Connections;
use crate::streams::{Activity, Streams};
use crate::{Body, MAX_HEADER_LIST_BYTES};
use porch_fn_lifecycle::drain;

/// Calls at once on one connection: Porch sends all of its calls over one, and a router those of all its callers. More
/// would wait on the other side, unseen and in no fair order, so this is no less than what bytes in flight bound by
/// default: 512 MiB of calls that are charged 16 KiB at least.
const MAX_CONCURRENT_STREAMS: u32 = 32 * 1024;
/// Flow-control window of a stream: messages are held whole before they are used, so a small window
/// would only add round trips. What a connection may have in flight is bounded by its own window.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// A peer that is gone, or that never sends anything, is noticed after this long.
const KEEP_ALIVE: Duration = Duration::from_mins(1);
/// Bytes of what a client begins HTTP/2 with (RFC 9113, section 3.4).
const PREFACE_LEN: u64 = 24;
/// Callers that give up on many calls at once are not an attack here.
const MAX_PENDING_RESETS: usize = MAX_CONCURRENT_STREAMS as usize;
/// Connections are refused for want of TLS as often as their peers try; the log is told this often of each reason, and of
/// so many reasons.
const TELL_INTERVAL: Duration = Duration::from_secs(10);
const MAX_TOLD: usize = 10;
/// Pause after accept fails, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What bounds connections.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Age after which a connection is asked to dial again.
    pub max_age: Option<Duration>,
    /// Connections at once (`--max-connections`). For one more the one that has been idle for
    /// longest ends; when all are busy, the new one is refused.
    pub max_connections: usize,
}

/// What a connection goes through before HTTP/2.
pub trait Accept: Clone + Send + 'static {
    /// The connection after it.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Goes through it.
    fn accept(&self, stream: TcpStream) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Nothing: HTTP/2 in plain text.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl Accept for Plain {
    type Stream = TcpStream;

    async fn accept(&self, stream: TcpStream) -> io::Result<TcpStream> {
        Ok(stream)
    }
}

/// Goes through it if there is one.
impl<A: Accept + Sync> Accept for Option<A> {
    type Stream = Either<TcpStream, A::Stream>;

    async fn accept(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        match self {
            Some(accept) => Ok(Either::Right(accept.accept(stream).await?)),
            None => Ok(Either::Left(stream)),
        }
    }
}

/// Serves connections of `listener`, each after `accept`, with `handler` until the drain begins, then sends GOAWAY on each and
/// returns when the last has finished. Dropping the future cuts them off.
pub async fn serve<A, H, F>(
    listener: TcpListener,
    accept: A,
    options: Options,
    handler: H,
    mut drain: drain::Watch,
) where
    A: Accept,
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut open = Connections::new(options.max_connections);
    let origin = Instant::now();
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
                    refusals.note_busy(peer);
                    continue;
                }
                let span = tracing::debug_span!("connection", %peer);
                let age = options.max_age.map(jittered);
                let activity = Activity::new(origin);
                let (accept, handler, drain) = (accept.clone(), handler.clone(), drain.clone());
                let (refusals, watched) = (Arc::clone(&refusals), Arc::clone(&activity));
                let served = async move {
                    if let Some(stream) = admit(stream, accept, drain.clone(), &refusals, peer).await {
                        connection(stream, age, watched, handler, drain).await;
                    }
                };
                open.push(activity, connections.spawn(served.instrument(span)));
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                // Most likely there are no file descriptors left.
                open.end_idle();
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// What was refused of late and why, for the log.
#[derive(Debug, Default)]
struct Refusals(Mutex<BTreeMap<String, Instant>>);

impl Refusals {
    fn note(&self, peer: SocketAddr, error: &io::Error) {
        // The text of an expired certificate contains the time.
        let reason = error.to_string().replace(|letter: char| letter.is_ascii_digit(), "");
        if self.is_news(reason) {
            tracing::warn!(%peer, %error, "refused a connection: TLS failed; see --tls-client-ca and the peer's certificate");
        } else {
            tracing::debug!(%peer, %error, "refused a connection: TLS failed");
        }
    }

    fn note_busy(&self, peer: SocketAddr) {
        if self.is_news("busy".to_owned()) {
            tracing::warn!(%peer, "refused a connection: all of --max-connections have calls");
        }
    }

    fn is_news(&self, reason: String) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, at| at.elapsed() < TELL_INTERVAL);
        let news = told.len() < MAX_TOLD && !told.contains_key(&reason);
        if news {
            told.insert(reason, Instant::now());
        }
        news
    }
}

/// The connection once it may speak HTTP/2.
async fn admit<A: Accept>(
    stream: TcpStream,
    accept: A,
    mut drain: drain::Watch,
    refusals: &Refusals,
    peer: SocketAddr,
) -> Option<A::Stream> {
    // Small frames follow large ones in every answer; Nagle would hold the trailers back.
    let _ = stream.set_nodelay(true);
    // A peer that closes without sending a byte (a TCP probe) is not counted as a TLS failure.
    let mut first = [0];
    tokio::select! {
        read = stream.peek(&mut first) => if !matches!(read, Ok(1..)) { return None },
        () = drain.draining() => return None,
        () = sleep(KEEP_ALIVE) => return None,
    }
    let accepted = tokio::select! {
        accepted = accept.accept(stream) => accepted,
        () = drain.draining() => return None,
    };
    accepted.inspect_err(|error| refusals.note(peer, error)).ok()
}

async fn connection<S, H, F>(
    stream: S,
    age: Option<Duration>,
    activity: Arc<Activity>,
    handler: H,
    mut drain: drain::Watch,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
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
    let connection = http2::Builder::new(Streams::new(Arc::clone(&activity)))
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
    let old = async {
        match age {
            Some(age) => sleep(age).await,
            None => pending().await,
        }
    };
    let silent = async {
        sleep(KEEP_ALIVE).await;
        if has_preface() {
            pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = silent => return,
        () = async { tokio::select! { () = drain.draining() => (), () = old => () } } => {
            // hyper ends a connection in order only after that.
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

/// Within a tenth of `age` either way, so that connections opened together do not end together.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * fastrand::f64())
}
