//! A runner whose answers a test decides.
//!
//! It speaks HTTP/2 by the `h2` crate and not by our own server, because a router must survive what
//! our server never does: streams that break at any point, refusals, a connection that goes silent.
//! A test sets the answer to an image ([`FakeRunner::on`]), changes health and connections, and
//! waits for log entries ([`FakeRunner::wait`]).

mod answer;
mod stream;
mod wire;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::HeaderMap;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

pub use answer::{Answer, Gate, How, Point, Reply, headers};
pub use stream::read_body;

use crate::process::PATIENCE;
use wire::{Control, Wire};

/// Flow-control windows, so that a message of any size under test is never held up by them.
const WINDOW: u32 = 32 * 1024 * 1024;

/// Waits for `future`, or fails the test naming `what`.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(PATIENCE, future).await else { panic!("waited too long: {what}") };
    value
}

#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Calls whose headers arrived, read or not.
    pub begun: usize,
    /// Calls whose message arrived, in order.
    pub calls: Vec<Received>,
    /// Calls that ended without their answer: the router gave them up, or their connection ended.
    pub abandoned: usize,
    /// Empty calls, by which a router probes an ejected runner.
    pub tries: usize,
    /// `Watch` streams that were opened, accepted or not.
    pub watches: usize,
    pub checks: usize,
    /// Requests for its pods, which it does not know, like a runner of an older version.
    pub described: usize,
}

#[derive(Clone, Debug)]
pub struct Received {
    pub headers: HeaderMap,
    pub framed: Bytes,
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HealthAnswer {
    serving: bool,
    has_watch: bool,
    /// How often all streams were ended.
    ends: usize,
}

#[derive(Debug)]
struct Shared {
    name: String,
    answers: Mutex<HashMap<String, Answer>>,
    default_answer: Mutex<Answer>,
    health: watch::Sender<HealthAnswer>,
    log: watch::Sender<Log>,
    controls: Mutex<Vec<Arc<Control>>>,
}

/// See the module. Dropping it ends it like a crash.
#[derive(Debug)]
pub struct FakeRunner {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<Arc<TcpListener>>,
    serving: Option<JoinHandle<()>>,
}

impl FakeRunner {
    /// A runner that serves, is healthy and echoes.
    pub async fn start(name: &str) -> Self {
        let mut runner = Self::stopped(name).await;
        runner.restart().await;
        runner
    }

    pub async fn stopped(name: &str) -> Self {
        // An address of its own in 127/8: nobody else takes its port while it is closed.
        let address = SocketAddr::new(IpAddr::V4(random_loopback()), 0);
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let shared = Shared {
            name: name.to_owned(),
            answers: Mutex::default(),
            default_answer: Mutex::new(Answer::Echo),
            health: watch::Sender::new(HealthAnswer { serving: true, has_watch: true, ends: 0 }),
            log: watch::Sender::default(),
            controls: Mutex::default(),
        };
        Self { address, shared: Arc::new(shared), listener: None, serving: None }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Decides what calls of `image` are answered.
    pub fn on(&self, image: &str, answer: Answer) {
        lock(&self.shared.answers).insert(image.to_owned(), answer);
    }

    /// Decides what all other calls are answered.
    pub fn otherwise(&self, answer: Answer) {
        *lock(&self.shared.default_answer) = answer;
    }

    pub fn set_serving(&self, serving: bool) {
        self.shared.health.send_modify(|health| health.serving = serving);
    }

    /// Ends each `Watch` of now and leaves the connections alone, as a proxy does that has a time
    /// limit for streams.
    pub fn end_watches(&self) {
        self.shared.health.send_modify(|health| health.ends += 1);
    }

    /// From now on it has no `Watch`.
    pub fn without_watch(&self) {
        self.shared.health.send_modify(|health| health.has_watch = false);
    }

    pub fn log(&self) -> Log {
        self.shared.log.borrow().clone()
    }

    pub fn taken(&self) -> usize {
        self.shared.log.borrow().calls.len()
    }

    /// Waits until the log is as `condition` wants it.
    pub async fn wait(&self, what: &str, condition: impl Fn(&Log) -> bool) -> Log {
        let mut log = self.shared.log.subscribe();
        let waited = soon(what, log.wait_for(|log| condition(log))).await;
        waited.expect("the sender is held here").clone()
    }

    /// Closes the port and leaves connections alone.
    pub async fn close_port(&mut self) {
        self.listener = None;
        if let Some(serving) = self.serving.take() {
            // Connections live in tasks of their own.
            serving.abort();
            let _ = serving.await;
        }
    }

    /// Announces the end of each connection by a GOAWAY that spares the calls on it.
    pub fn go_away(&self) {
        lock(&self.shared.controls).iter().for_each(|control| control.go_away());
    }

    /// On each connection of now, the next call is met by a GOAWAY that says it was not processed,
    /// and by the connection's end.
    pub fn go_away_at_next_call(&self) {
        lock(&self.shared.controls).iter().for_each(|control| control.go_away_at_next_call());
    }

    /// Stops reading and writing without closing anything, as a process that is stopped does. New
    /// connections are taken by the kernel and never answered.
    pub async fn hang(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
        lock(&self.shared.controls).iter().for_each(|control| control.hang());
    }

    pub async fn crash(&mut self) {
        self.close_port().await;
        lock(&self.shared.controls).drain(..).for_each(|control| control.cut());
    }

    /// Listens on its port, after [`stopped`](Self::stopped), [`crash`](Self::crash) or
    /// [`close_port`](Self::close_port).
    pub async fn restart(&mut self) {
        let listener = Arc::new(TcpListener::bind(self.address).await.expect("its port"));
        self.listener = Some(Arc::clone(&listener));
        let shared = Arc::clone(&self.shared);
        self.serving = Some(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let control = Arc::new(Control::default());
                lock(&shared.controls).push(Arc::clone(&control));
                tokio::spawn(connection(Arc::clone(&shared), stream, control));
            }
        }));
    }
}

impl Drop for FakeRunner {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
        lock(&self.shared.controls).drain(..).for_each(|control| control.cut());
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, control: Arc<Control>) {
    let _ = stream.set_nodelay(true);
    let wire = Wire::new(stream, Arc::clone(&control));
    let handshake = h2::server::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(16 * 1024 * 1024)
        .max_concurrent_streams(10_000)
        .handshake(wire);
    let mut h2 = tokio::select! {
        done = handshake => match done {
            Ok(h2) => h2,
            Err(_) => return,
        },
        () = control.wait_cut() => return,
    };
    let ping = Arc::new(tokio::sync::Mutex::new(h2.ping_pong().expect("taken once")));
    // Streams end with their connection.
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            accepted = h2.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    let stream = stream::Stream {
                        shared: Arc::clone(&shared),
                        control: Arc::clone(&control),
                        ping: Arc::clone(&ping),
                    };
                    streams.spawn(stream.answer(request, respond));
                }
                _ => return,
            },
            () = control.wait_cut() => return,
            () = control.wait_go_away() => h2.graceful_shutdown(),
            Some(_) = streams.join_next() => (),
        }
    }
}

fn random_loopback() -> Ipv4Addr {
    let [a, b, c, ..] = RandomState::new().hash_one(()).to_be_bytes();
    Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
