//! Callers that hold on: to connections, to calls that they never send, to answers that they never
//! read.

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use h2::client::{self, SendRequest};
use h2::{Ping, Reason, RecvStream};
use porch_fn_proto::{Chunks, EVALUATE_FUNCTION_PATH};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::timeout;
use tonic::Code;

use super::*;
use crate::{CALL_OVERHEAD, Call, Evaluate, Hop, Inflight, Reply, Server, message_of};
use porch_fn_lifecycle::health::Health;

const OPTIONS: Options = Options { max_age: None, max_connections: 3 };
/// Of each part of an answer.
const PART: usize = 16 * 1024;

/// Answers an empty call never, and others with so many parts.
struct Talkative(usize);

impl Evaluate for Talkative {
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

struct Stand {
    server: Arc<Server<Talkative>>,
    inflight: Arc<Inflight>,
    signal: drain::Signal,
    drain: drain::Watch,
    tasks: JoinSet<()>,
}

/// A caller's connection. It ends with the task.
type Caller = (SendRequest<Bytes>, JoinSet<()>);

impl Stand {
    fn new() -> Self {
        Self::answering(1)
    }

    fn answering(parts: usize) -> Self {
        let (signal, drain) = drain::channel();
        let inflight = Inflight::new(1 << 30, Hop::Router);
        let options = crate::Options {
            max_message: 1 << 20,
            default_timeout: Duration::from_hours(1),
            max_timeout: Duration::from_mins(30),
            inflight: Some(Arc::clone(&inflight)),
            places: None,
            tell_load: false,
            observer: None,
            tracer: None,
        };
        let server = Server::new(Arc::new(Talkative(parts)), &Health::new(), options);
        Self { server, inflight, signal, drain, tasks: JoinSet::new() }
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
        self.tasks.spawn(serve(listener, None, OPTIONS, self.handler(), self.drain.clone()));
        address
    }

    /// A connection without a socket, which would not keep to the paused time. Its streams take
    /// `window` bytes of an answer.
    async fn caller(&mut self, window: u32) -> Caller {
        let (stream, served) = duplex(64 * 1024);
        let activity = Activity::new();
        self.tasks.spawn(connection(Box::new(served), None, activity, self.handler(), self.drain.clone()));
        speak(stream, window).await
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, window: u32) -> Caller {
    let handshake = client::Builder::new().initial_window_size(window).handshake(stream);
    let (sender, mut connection) = handshake.await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = connection.await;
    });
    // The server has seen the connection's beginning.
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

/// The answer of a call whose message is one byte.
async fn answered(sender: &mut SendRequest<Bytes>) -> RecvStream {
    let (answer, mut body) = sender.send_request(head(""), false).unwrap();
    body.send_data(Bytes::from_static(&[0, 0, 0, 0, 1, 0]), true).unwrap();
    answer.await.unwrap().into_body()
}

/// Also one that spoke TLS: what HTTP/2 hears of it is nothing.
#[tokio::test(start_paused = true)]
async fn who_never_speaks_http2_is_not_kept_for_ever() {
    let mut stand = Stand::new();
    let address = stand.listen().await;
    for said in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM"] {
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(said.as_bytes()).await.unwrap();
        let began = Instant::now();
        let mut heard = Vec::new();
        timeout(KEEP_ALIVE * 2, peer.read_to_end(&mut heard)).await.expect("it ends").unwrap();
        assert!(began.elapsed() >= KEEP_ALIVE, "{said:?}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn one_connection_too_many_ends_the_one_that_is_idle_for_longest_or_is_refused() {
    let mut stand = Stand::new();
    let address = stand.listen().await;
    let connect = async || speak(TcpStream::connect(address).await.unwrap(), 0).await;
    let mut opened = Vec::new();
    for _ in 0..OPTIONS.max_connections {
        opened.push(connect().await);
    }
    let mut calls = Vec::new();
    let mut call = async |caller: &mut Caller| {
        calls.push(caller.0.send_request(head(""), false).unwrap());
        while stand.inflight.held() < calls.len() * CALL_OVERHEAD {
            tokio::task::yield_now().await;
        }
    };
    // The first has a call, so the second is the one.
    call(&mut opened[0]).await;
    let mut fourth = connect().await;
    opened[1].1.join_next().await.unwrap().unwrap();
    assert!(opened[0].1.try_join_next().is_none() && opened[2].1.try_join_next().is_none());
    call(&mut opened[2]).await;
    call(&mut fourth).await;
    let mut refused = TcpStream::connect(address).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap_or_default(), 0, "all are busy");
}

#[tokio::test(start_paused = true)]
async fn a_message_of_which_nothing_comes_is_not_waited_for() {
    let mut stand = Stand::new();
    let (mut sender, _connection) = stand.caller(0).await;
    let began = Instant::now();
    let (answer, mut body) = sender.send_request(head(""), false).unwrap();
    let slow = tokio::spawn(async move {
        // One byte before the time is up puts it off.
        sleep(Duration::from_secs(29)).await;
        body.send_data(Bytes::from_static(&[0]), false).unwrap();
        body
    });
    let answer = answer.await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 59);
    assert_eq!(crate::code_of(answer.headers()), Some(Code::DeadlineExceeded));
    let text = message_of(answer.headers());
    assert!(text.starts_with("nothing of the message came for 30s"), "{text}");
    drop(slow);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_far_away_is_cut() {
    let mut stand = Stand::new();
    let (mut sender, _connection) = stand.caller(0).await;
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
    for (parts, window) in [(64, 0), (64, 1), (64, 65_535), (2, 1), (2, 32_767)] {
        let mut stand = Stand::answering(parts);
        let (mut sender, _connection) = stand.caller(window).await;
        let mut answer = answered(&mut sender).await;
        let began = Instant::now();
        assert!(stand.inflight.held() > 0);
        // Nothing is given back to the flow control: as if nothing was read.
        let mut read = 0;
        let error = loop {
            let data = timeout(Duration::from_mins(5), answer.data()).await.expect("it ends");
            match data.expect("no end without all parts") {
                Ok(data) => read += data.len(),
                Err(error) => break error,
            }
        };
        assert_eq!((read, error.reason()), (window as usize, Some(Reason::CANCEL)));
        assert_eq!(began.elapsed().as_secs(), 60);
        assert_eq!(stand.inflight.held(), 0);
    }
}

/// It is small enough to stay where it is, and ends with its connection.
#[tokio::test(start_paused = true)]
async fn a_small_answer_that_is_not_read_does_not_hold_up_a_drain() {
    let mut stand = Stand::new();
    let (mut sender, mut connection) = stand.caller(1).await;
    let answer = answered(&mut sender).await;
    let began = Instant::now();
    stand.signal.drain();
    connection.join_next().await.unwrap().unwrap();
    assert!(began.elapsed().as_secs() <= 60, "{:?}", began.elapsed());
    drop(answer);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_slowly_arrives() {
    const PARTS: usize = 64;
    let mut stand = Stand::answering(PARTS);
    let (mut sender, _connection) = stand.caller(2 * PART as u32).await;
    let mut answer = answered(&mut sender).await;
    let mut read = 0;
    while let Some(data) = answer.data().await {
        let data = data.unwrap();
        read += data.len();
        sleep(Duration::from_secs(20)).await;
        answer.flow_control().release_capacity(data.len()).unwrap();
    }
    assert_eq!(read, PART * PARTS);
    assert_eq!(crate::code_of(&answer.trailers().await.unwrap().unwrap()), Some(Code::Ok));
    assert!(stand.inflight.held() < CALL_OVERHEAD);
}
