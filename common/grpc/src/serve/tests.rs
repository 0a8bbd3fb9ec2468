//! Tests of callers that keep connections, never send their messages, or never read their answers.

use std::future::pending;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use h2::client::{self, SendRequest};
use h2::{Ping, Reason, RecvStream};
use porch_fn_proto::{Chunks, EVALUATE_FUNCTION_PATH};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::Code;

use super::*;
use crate::{
    CALL_OVERHEAD, Call, Evaluate, Hop, Inflight, MAX_REQUEST_HEADERS, MIN_FRAME_BYTES, Reply, Server,
    message_of,
};
use porch_fn_lifecycle::health::Health;

const OPTIONS: Options = Options {
    max_age: None,
    max_connections: 3,
    max_frame_bytes: MIN_FRAME_BYTES,
    max_streams: STREAMS_OF_CALLERS,
};
/// Size of each part of an answer, in bytes.
const PART: usize = 16 * 1024;

/// Never answers an empty call. Answers other calls with this number of parts.
struct Evaluator(usize);

impl Evaluate for Evaluator {
    async fn evaluate(&self, call: Call) -> Reply {
        if call.message.is_empty() {
            pending::<()>().await;
        }
        let mut reply = Reply::evaluated(Chunks::default(), Bytes::new());
        reply.framed = std::iter::repeat_n(Bytes::from_static(&[0; PART]), self.0).collect();
        reply.charge = call.charge.answer(reply.framed.len()).unwrap();
        reply
    }
}

struct TestServer {
    server: Arc<Server<Evaluator>>,
    inflight: Arc<Inflight>,
    /// Ends the connections without a socket.
    stop: CancellationToken,
    _signal: drain::Signal,
    drain: drain::Watch,
    tasks: JoinSet<()>,
}

/// A caller's connection, and the task that runs it. Dropping the task ends the connection.
type Caller = (SendRequest<Bytes>, JoinSet<()>);

impl TestServer {
    fn new() -> Self {
        Self::with_parts(1)
    }

    /// A server whose answers have this number of parts.
    fn with_parts(parts: usize) -> Self {
        let (signal, drain) = drain::channel();
        let inflight = Inflight::new(1 << 30, Hop::Router);
        let options = crate::Options {
            max_message: 1 << 20,
            max_headers: MAX_REQUEST_HEADERS,
            default_timeout: Duration::from_hours(1),
            max_timeout: Duration::from_mins(30),
            inflight: Arc::clone(&inflight),
            report_load: false,
            observer: None,
            tracer: None,
        };
        let server = Server::new(Arc::new(Evaluator(parts)), &Health::new(), options);
        let (stop, tasks) = (CancellationToken::new(), JoinSet::new());
        Self { server, inflight, stop, _signal: signal, drain, tasks }
    }

    fn handler(
        &self,
    ) -> impl Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Clone + Send + use<> {
        let server = Arc::clone(&self.server);
        move |request| {
            let server = Arc::clone(&server);
            async move { server.handle(request).await }.boxed()
        }
    }

    async fn listen(&mut self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        self.tasks.spawn(serve(Listener::Tcp(listener), None, OPTIONS, self.handler(), self.drain.clone()));
        address
    }

    /// Connects a caller without a socket, because sockets ignore the paused clock. The caller's
    /// streams accept `window` bytes of an answer.
    async fn connect(&mut self, window: u32) -> Caller {
        let (stream, served) = duplex(64 * 1024);
        let (handler, activity) = (self.handler(), Activity::new(self.stop.child_token()));
        self.tasks.spawn(async move {
            let _ = connection(Box::new(served), OPTIONS, activity, handler).await;
        });
        handshake(stream, window).await
    }
}

async fn handshake(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, window: u32) -> Caller {
    let handshake = client::Builder::new().initial_window_size(window).handshake(stream);
    let (sender, mut connection) = handshake.await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = connection.await;
    });
    // When the server answers the ping, it has received the connection's preface.
    let _ = pings.ping(Ping::opaque()).await;
    (sender, tasks)
}

fn head(grpc_timeout: &str) -> Request<()> {
    let request = Request::post(format!("http://a{EVALUATE_FUNCTION_PATH}"));
    let request = request.header("content-type", "application/grpc");
    let request =
        if grpc_timeout.is_empty() { request } else { request.header("grpc-timeout", grpc_timeout) };
    request.body(()).unwrap()
}

/// Sends a call whose message is one byte, and returns the answer.
async fn call(sender: &mut SendRequest<Bytes>) -> RecvStream {
    let (answer, mut body) = sender.send_request(head(""), false).unwrap();
    body.send_data(Bytes::from_static(&[0, 0, 0, 0, 1, 0]), true).unwrap();
    answer.await.unwrap().into_body()
}

/// The same code closes a TLS connection whose peer sends nothing after the handshake.
#[tokio::test(start_paused = true)]
async fn a_connection_without_an_http2_preface_is_closed() {
    let mut server = TestServer::new();
    let address = server.listen().await;
    for sent in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM"] {
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(sent.as_bytes()).await.unwrap();
        let began = Instant::now();
        let mut received = Vec::new();
        timeout(KEEP_ALIVE * 2, peer.read_to_end(&mut received)).await.expect("the end").unwrap();
        assert!(began.elapsed() >= KEEP_ALIVE, "{sent:?}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn at_the_limit_a_new_connection_closes_the_one_idle_for_longest_or_is_refused() {
    let mut server = TestServer::new();
    let address = server.listen().await;
    let connect = async || handshake(TcpStream::connect(address).await.unwrap(), 0).await;
    let mut opened = Vec::new();
    for _ in 0..OPTIONS.max_connections {
        opened.push(connect().await);
    }
    let mut calls = Vec::new();
    let mut begin_call = async |caller: &mut Caller| {
        calls.push(caller.0.send_request(head(""), false).unwrap());
        while server.inflight.held() < calls.len() * CALL_OVERHEAD {
            tokio::task::yield_now().await;
        }
    };
    // The first connection has a call, so the second is closed.
    begin_call(&mut opened[0]).await;
    let mut fourth = connect().await;
    opened[1].1.join_next().await.unwrap().unwrap();
    assert!(opened[0].1.try_join_next().is_none() && opened[2].1.try_join_next().is_none());
    begin_call(&mut opened[2]).await;
    begin_call(&mut fourth).await;
    let mut refused = TcpStream::connect(address).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap_or_default(), 0, "all are busy");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_stops_sending_its_message_gets_an_error() {
    let mut server = TestServer::new();
    let (mut sender, _connection) = server.connect(0).await;
    let began = Instant::now();
    let (answer, mut body) = sender.send_request(head(""), false).unwrap();
    let slow = tokio::spawn(async move {
        // One byte restarts the time limit.
        sleep(Duration::from_secs(4)).await;
        body.send_data(Bytes::from_static(&[0]), false).unwrap();
        body
    });
    let answer = answer.await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 9);
    assert_eq!(crate::code_of(answer.headers()), Some(Code::DeadlineExceeded));
    let text = message_of(answer.headers());
    assert!(text.starts_with("no bytes of the message arrived for 5s"), "{text}");
    drop(slow);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_beyond_the_maximum_is_shortened() {
    let mut server = TestServer::new();
    let (mut sender, _connection) = server.connect(0).await;
    let began = Instant::now();
    let (answer, mut body) = sender.send_request(head("99H"), false).unwrap();
    body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(began.elapsed().as_secs() / 60, 30);
    assert_eq!(crate::code_of(answer.headers()), Some(Code::DeadlineExceeded));
    let text = message_of(answer.headers());
    assert_eq!(text, "no answer within --max-timeout, which bounds all calls");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_is_dropped() {
    for (parts, window) in [(64, 0), (64, 1), (64, 65_535), (2, 1), (2, 32_767), (1, 0), (1, 5)] {
        let mut server = TestServer::with_parts(parts);
        let (mut sender, _connection) = server.connect(window).await;
        let mut answer = call(&mut sender).await;
        let began = Instant::now();
        assert!(server.inflight.held() > 0);
        // The caller releases no flow-control window, as if it had read nothing.
        let mut read = 0;
        let error = loop {
            let data = timeout(Duration::from_mins(5), answer.data()).await.expect("an error");
            match data.expect("an error before the end") {
                Ok(data) => read += data.len(),
                Err(error) => break error,
            }
        };
        assert_eq!((read, error.reason()), (window as usize, Some(Reason::CANCEL)));
        assert!((60..=66).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        // The connection's task removes it.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(server.inflight.held(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_small_answer_that_is_not_read_delays_a_drain_for_no_longer_than_that() {
    let mut server = TestServer::new();
    let (mut sender, mut connection) = server.connect(1).await;
    let answer = call(&mut sender).await;
    let began = Instant::now();
    server.stop.cancel();
    connection.join_next().await.unwrap().unwrap();
    assert!(began.elapsed().as_secs() <= 70, "{:?}", began.elapsed());
    drop(answer);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_slowly_arrives() {
    const PARTS: usize = 64;
    let mut server = TestServer::with_parts(PARTS);
    let (mut sender, _connection) = server.connect(2 * PART as u32).await;
    let mut answer = call(&mut sender).await;
    let mut read = 0;
    while let Some(data) = answer.data().await {
        let data = data.unwrap();
        read += data.len();
        sleep(Duration::from_secs(20)).await;
        answer.flow_control().release_capacity(data.len()).unwrap();
    }
    assert_eq!(read, PART * PARTS);
    assert_eq!(crate::code_of(&answer.trailers().await.unwrap().unwrap()), Some(Code::Ok));
    assert!(server.inflight.held() < CALL_OVERHEAD);
}

/// Sends these bytes after the preface and the first settings. Returns the reason of the connection's
/// end, if the server ends it with one.
async fn flood(frame: &[u8], count: usize) -> Option<u32> {
    let mut server = TestServer::new();
    let (mut stream, served) = duplex(1 << 20);
    let (handler, activity) = (server.handler(), Activity::new(CancellationToken::new()));
    server.tasks.spawn(async move {
        let _ = connection(Box::new(served), OPTIONS, activity, handler).await;
    });
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    stream.write_all(&frame.repeat(count)).await.unwrap();
    loop {
        let mut head = [0; 9];
        match timeout(Duration::from_secs(5), stream.read_exact(&mut head)).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return None,
        }
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == 7 {
            return Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_floods_is_ended() {
    let calm = Some(u32::from(Reason::ENHANCE_YOUR_CALM));
    let window = [&[0, 0, 6, 4, 0, 0, 0, 0, 0][..], &[0, 4, 0, 0, 1, 0]].concat();
    let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[0; 8]].concat();
    let update = [&[0, 0, 4, 8, 0, 0, 0, 0, 0][..], &[0, 0, 0, 1]].concat();
    let priority = [&[0, 0, 5, 2, 0, 0, 0, 0, 1][..], &[0; 5]].concat();
    let unknown = [0, 0, 0, 99, 0, 0, 0, 0, 0];
    for (what, frame, allowed) in [
        ("settings", &window[..], 19),
        ("pings", &ping, 1000),
        ("window updates", &update, 1000),
        ("priorities", &priority, 1000),
        ("unknown frames", &unknown, 1000),
    ] {
        assert_eq!(flood(frame, allowed).await, None, "{what}");
        assert_eq!(flood(frame, allowed + 2).await, calm, "{what}");
    }
}

/// A caller takes an answer of tonic through any window, and a half-sent request ends soon.
#[tokio::test(start_paused = true)]
async fn other_services_have_the_same_limits() {
    let mut server = TestServer::new();
    let (mut sender, _connection) = server.connect(1).await;
    let health = |path: &str| {
        let request = Request::post(format!("http://a/grpc.health.v1.Health/{path}"));
        request.header("content-type", "application/grpc").body(()).unwrap()
    };
    for sent in [&[][..], &[0], &[0, 0, 0, 0, 9, 1]] {
        for path in ["Check", "Watch"] {
            let began = Instant::now();
            let (answer, mut body) = sender.send_request(health(path), false).unwrap();
            body.send_data(Bytes::copy_from_slice(sent), false).unwrap();
            let answer = answer.await.unwrap();
            assert_eq!(crate::code_of(answer.headers()), Some(Code::DeadlineExceeded), "{path}");
            assert!(began.elapsed() < Duration::from_secs(6), "{path}: {:?}", began.elapsed());
        }
    }
    let (answer, mut body) = sender.send_request(health("Check"), false).unwrap();
    body.send_data(Bytes::from_static(&[0, 0, 0, 0, 0]), true).unwrap();
    let mut answer = answer.await.unwrap().into_body();
    let mut received = Vec::new();
    while let Some(data) = answer.data().await {
        received.extend(data.unwrap());
        answer.flow_control().release_capacity(1).unwrap();
    }
    assert_eq!(received, [0, 0, 0, 0, 2, 8, 2], "NOT_SERVING, byte by byte");
    assert_eq!(crate::code_of(&answer.trailers().await.unwrap().unwrap()), Some(Code::Ok));
    let (answer, mut body) = sender.send_request(health("Check"), false).unwrap();
    body.send_data(Bytes::from_static(&[0, 0, 1, 0, 1]), false).unwrap();
    let refused = answer.await.unwrap();
    assert_eq!(crate::code_of(refused.headers()), Some(Code::ResourceExhausted), "{refused:?}");
}
