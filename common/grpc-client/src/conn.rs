//! One HTTP/2 connection to one peer. It is dialled on demand and shared by all calls to the peer.
//!
//! A router must know whether a request was sent before the connection failed, and when the
//! connection was lost. Pooling clients hide both. With h2's own handle, a call also queues its
//! headers and its message together, and needs no task of its own to send them.

mod address;

use std::path::Path;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};
use h2::client::{self, Builder, ResponseFuture, SendRequest};
use http::uri::Authority;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Collected};
use parking_lot::Mutex;
use porch_fn_grpc::{
    Cork, Ended, Incoming, MAX_ANSWER_FRAME_BYTES, MAX_ANSWER_HEADER_LIST_BYTES, Outgoing, silence,
};
use porch_fn_tls::Connector;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower_service::Service;
use tracing::Instrument;

use self::address::connect;

/// Flow-control windows for answers. A whole answer is held in memory anyway, so smaller windows
/// would only add round trips. The connection's window holds the answers of all calls at the default
/// limit of bytes in flight. With a smaller one, a proxy between can block for ever: HAProxy 2.6
/// reads no more requests until it has delivered answers, and the window's updates are behind those
/// requests.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 512 * 1024 * 1024;
/// Maximum number of streams that this side has reset but on which the peer may still send.
const MAX_RESET_STREAMS: usize = 4096;

/// How to dial and monitor a connection.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Timeout for lookup, connect and handshake together.
    pub connect_timeout: Duration,
    /// HTTP/2 ping interval, and how long the peer may take to answer a ping. `None` sends no
    /// pings: a grpc-go server closes a connection whose client pings more often than every five
    /// minutes.
    pub ping: Option<(Duration, Duration)>,
    /// How long sent bytes may stay unacknowledged (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration,
    /// TCP keepalive: the idle time before the first keepalive packet, and the time between
    /// packets. The kernel gives up after `user_timeout`. The server program does not see the
    /// packets. `None` sends no packets.
    pub keepalive: Option<(Duration, Duration)>,
}

/// The address is not `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address: HOST:PORT is expected, with IPv6 in brackets")]
pub struct AddressError(Arc<str>);

/// Why there is no connection. Each call that waited for the dial gets a copy.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    /// The name lookup failed, or no address accepted the connection.
    #[error("connection refused, or the address is unreachable or unknown")]
    Connect(#[source] Arc<std::io::Error>),
    /// One side did not accept the other's certificate.
    #[error("TLS handshake failed")]
    Tls(#[source] Arc<std::io::Error>),
    /// The peer does not speak HTTP/2.
    #[error("HTTP/2 handshake failed")]
    Handshake(#[source] Arc<h2::Error>),
    /// Dialling took longer than [`Options::connect_timeout`].
    #[error("no connection in time")]
    Timeout,
    /// [`Connection::close`] was called.
    #[error("the connection was closed")]
    Closed,
}

/// A peer's address and its connection, if there is one.
#[derive(Debug)]
pub struct Connection {
    peer: Arc<Peer>,
    origin: Uri,
    /// When cancelled, the connection and its calls end, and it is never dialled again.
    end: CancellationToken,
    /// The TLS error that was logged last, without digits. The peer is dialled repeatedly, and a
    /// repeated error is logged once.
    logged: Mutex<Option<String>>,
    state: Mutex<State>,
}

/// What a dial needs.
#[derive(Debug)]
struct Peer {
    /// `host:port`, or the path of a Unix socket for the log.
    address: Arc<str>,
    unix: Option<Arc<Path>>,
    tls: Option<Connector>,
    options: Options,
}

#[derive(Debug, Default)]
struct State {
    up: Option<Sender>,
    /// Weak, because the calls that wait for the dial own it. A dial that no call polls would time
    /// out and fail the next call.
    dialing: Option<WeakShared<BoxFuture<'static, Result<Sender, ConnectError>>>>,
}

/// A handle on a connection.
#[derive(Debug, Clone)]
pub struct Sender {
    requests: SendRequest<Outgoing>,
    status: Arc<Status>,
}

/// What the task of a connection has found out.
#[derive(Debug, Default)]
struct Status {
    /// The connection takes no more requests.
    is_closed: AtomicBool,
    /// The peer did not answer a ping.
    is_silent: AtomicBool,
}

impl Connection {
    /// A connection to `host:port`, not dialled yet. It uses TLS if there is a connector.
    ///
    /// # Errors
    /// When `address` is not `host:port`.
    pub fn new(
        address: impl Into<Arc<str>>,
        options: Options,
        tls: Option<Connector>,
    ) -> Result<Self, AddressError> {
        let address = address.into();
        let origin = origin(if tls.is_some() { "https" } else { "http" }, &address)?;
        Ok(Self::of(Peer { address, unix: None, tls, options }, origin))
    }

    /// A connection to a Unix socket, not dialled yet.
    pub fn unix(path: impl Into<Arc<Path>>, options: Options) -> Self {
        // The name that gRPC libraries send for Unix sockets.
        let (origin, path) = (Uri::from_static("http://localhost/"), path.into());
        let address = path.to_string_lossy().into();
        Self::of(Peer { address, unix: Some(path), tls: None, options }, origin)
    }

    fn of(peer: Peer, origin: Uri) -> Self {
        let (peer, end) = (Arc::new(peer), CancellationToken::new());
        Self { peer, origin, end, logged: Mutex::default(), state: Mutex::default() }
    }

    /// A connection to `address` whose requests carry `authority`. This is for a Service that is
    /// dialled by its IP while a service mesh routes by its name. `address` and `authority` are
    /// `host:port`.
    ///
    /// # Errors
    /// When one of them is not `host:port`.
    pub fn named(
        address: impl Into<Arc<str>>,
        authority: impl Into<Arc<str>>,
        options: Options,
    ) -> Result<Self, AddressError> {
        Ok(Self { origin: origin("http", &authority.into())?, ..Self::new(address, options, None)? })
    }

    /// The scheme and authority of requests, with an empty path.
    pub fn origin(&self) -> &Uri {
        &self.origin
    }

    /// Whether a connection is up. It may break before the next request.
    pub fn is_up(&self) -> bool {
        self.state.lock().up.as_ref().is_some_and(|up| !up.is_closed())
    }

    /// Whether the connection was lost and has not been dialled again.
    pub fn is_lost(&self) -> bool {
        self.state.lock().up.as_ref().is_some_and(Sender::is_closed)
    }

    /// Ends the connection and its calls at once. It is never dialled again.
    pub fn close(&self) {
        self.end.cancel();
        *self.state.lock() = State::default();
    }

    /// Returns the handle of the connection. Dials if there is none; concurrent calls share the
    /// dial.
    pub async fn sender(&self) -> Result<Sender, ConnectError> {
        let dialing = {
            let mut state = self.state.lock();
            match &*state {
                State { up: Some(up), .. } if !up.is_closed() => return Ok(up.clone()),
                State { dialing: Some(dialing), .. } => dialing.upgrade(),
                State { dialing: None, .. } => None,
            }
            .unwrap_or_else(|| {
                let dial = dial(Arc::clone(&self.peer), self.end.clone());
                let dialing = timeout(self.peer.options.connect_timeout, dial)
                    .map(|dialed| dialed.unwrap_or(Err(ConnectError::Timeout)))
                    .boxed()
                    .shared();
                *state = State { up: None, dialing: dialing.downgrade() };
                dialing
            })
        };
        let dialed = self.end.run_until_cancelled(dialing.clone()).await;
        let dialed = dialed.unwrap_or(Err(ConnectError::Closed));
        let mut state = self.state.lock();
        // Only the current dial may change the state: this dial may be an older one.
        let current = state.dialing.as_ref().and_then(WeakShared::upgrade);
        if current.is_some_and(|current| current.ptr_eq(&dialing)) {
            *state = State { up: dialed.clone().ok(), dialing: None };
            drop(state);
            self.log_tls(&dialed);
        }
        dialed
    }

    /// Logs a TLS error once.
    fn log_tls(&self, dialed: &Result<Sender, ConnectError>) {
        let error = match dialed {
            Err(ConnectError::Tls(error)) => Some(error.to_string()),
            Err(_) => return,
            Ok(_) => None,
        };
        // The error text for an expired certificate contains the current time. Without digits, the
        // texts of repeated errors are equal.
        let reason = error.as_ref().map(|text| text.replace(|letter: char| letter.is_ascii_digit(), ""));
        let mut logged = self.logged.lock();
        if let Some(error) = error.filter(|_| *logged != reason) {
            tracing::warn!(peer = %self.peer.address, error, "TLS failed; check --tls-cert and --tls-client-ca");
        }
        *logged = reason;
    }
}

impl Sender {
    fn is_closed(&self) -> bool {
        self.status.is_closed.load(Ordering::Acquire)
    }

    /// No further request may use the connection.
    pub(crate) fn close(&self) {
        self.status.is_closed.store(true, Ordering::Release);
    }

    /// Whether the connection was closed because the peer did not answer a ping.
    pub(crate) fn is_silent(&self) -> bool {
        self.status.is_silent.load(Ordering::Acquire)
    }

    /// Begins a request: queues its headers and its whole message.
    ///
    /// # Errors
    /// When the connection takes no more requests. Nothing of the request was sent then.
    pub(crate) async fn send(
        &self,
        request: Request<()>,
        message: Outgoing,
    ) -> Result<ResponseFuture, h2::Error> {
        let sent = async {
            let mut requests = self.requests.clone().ready().await?;
            let (response, mut stream) = requests.send_request(request, false)?;
            // Fails only if the stream has ended already. Then `response` has the reason.
            let _ = stream.send_data(message, true);
            Ok(response)
        };
        sent.await.inspect_err(|_| self.close())
    }
}

/// Adapts a [`Sender`] to the clients that tonic generates.
#[derive(Debug, Clone)]
pub struct Channel(pub Sender);

impl Service<Request<tonic::body::Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = h2::Error;
    type Future = BoxFuture<'static, Result<Response<Incoming>, h2::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let sender = self.0.clone();
        let (head, body) = request.into_parts();
        async move {
            // A body of our own message does not fail.
            let message = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            let response = sender.send(Request::from_parts(head, ()), message.into()).await?;
            Ok(response.await?.map(Incoming))
        }
        .boxed()
    }
}

fn origin(scheme: &str, address: &Arc<str>) -> Result<Uri, AddressError> {
    let error = || AddressError(Arc::clone(address));
    let authority = Authority::from_str(address).ok().filter(|authority| authority.port().is_some());
    let origin = Uri::builder().scheme(scheme).authority(authority.ok_or_else(error)?).path_and_query("/");
    origin.build().map_err(|_| error())
}

async fn dial(peer: Arc<Peer>, end: CancellationToken) -> Result<Sender, ConnectError> {
    let cork = Cork::client(connect(&peer).await?);
    let handshake = Builder::new()
        .max_header_list_size(MAX_ANSWER_HEADER_LIST_BYTES)
        .max_frame_size(MAX_ANSWER_FRAME_BYTES)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(None)
        .enable_push(false)
        .handshake(cork.clone());
    let (requests, connection) = handshake.await.map_err(|error| ConnectError::Handshake(Arc::new(error)))?;
    let status = Arc::<Status>::default();
    let span = tracing::debug_span!("connection", peer = %peer.address);
    // The task ends when the last handle is dropped and all calls are done.
    tokio::spawn(run(connection, cork, peer.options.ping, end, Arc::clone(&status)).instrument(span));
    Ok(Sender { requests, status })
}

/// Runs a connection to its end. Sets `status` before the calls on the connection learn of the end.
async fn run(
    mut connection: client::Connection<Cork, Outgoing>,
    cork: Cork,
    ping: Option<(Duration, Duration)>,
    end: CancellationToken,
    status: Arc<Status>,
) {
    let silent = silence(&cork, connection.ping_pong(), ping);
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = cork.drive(|context| connection.as_mut().poll(context)) => match ended {
            Ok(()) => {}
            Err(flood @ Ended::Flood) => tracing::warn!("connection ended: {flood}"),
            Err(error) => tracing::debug!(%error, "connection ended"),
        },
        () = silent => {
            tracing::debug!("connection ended: no answer to a ping");
            status.is_silent.store(true, Ordering::Release);
        }
        () = end.cancelled() => {}
    }
    status.is_closed.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::*;

    const OPTIONS: Options = Options {
        connect_timeout: Duration::from_secs(20),
        ping: None,
        user_timeout: Duration::from_secs(30),
        keepalive: None,
    };

    /// The peer of this test hangs: its connection stays open.
    #[tokio::test]
    async fn close_ends_all_calls_and_prevents_another_dial() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = Connection::new(listener.local_addr().unwrap().to_string(), OPTIONS, None).unwrap();
        let sender = connection.sender().await.unwrap();
        let _hanging = listener.accept().await.unwrap();
        let request = Request::get(connection.origin()).body(()).unwrap();
        let mut call = sender.send(request, Outgoing::default()).await.unwrap();
        assert!(timeout(Duration::from_millis(100), &mut call).await.is_err());
        connection.close();
        timeout(OPTIONS.connect_timeout, call).await.expect("it ends").unwrap_err();
        assert!(matches!(connection.sender().await, Err(ConnectError::Closed)));
        assert!(!connection.is_up());
    }

    /// When the only caller of a dial gives up, the dial must end. Otherwise it would time out and
    /// fail the next call.
    #[tokio::test]
    async fn a_dial_ends_with_its_last_caller() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        // The kernel accepts one connection; further ones wait.
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let _first = TcpStream::connect(address).await.unwrap();
        let connection = Connection::new(address.to_string(), OPTIONS, None).unwrap();
        assert!(connection.sender().now_or_never().is_none());
        tokio::time::pause();
        tokio::time::advance(OPTIONS.connect_timeout * 2).await;
        tokio::time::resume();
        listener.accept().await.unwrap();
        connection.sender().await.unwrap();
        assert!(connection.is_up());
    }
}
