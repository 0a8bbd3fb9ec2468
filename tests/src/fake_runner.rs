//! A fake runner whose answers a test sets.
//!
//! It uses the `h2` crate instead of our own server, because a router must survive faults that our
//! server never causes: streams that break at any point, refused streams, a connection that hangs.
//! A test sets the answer for an image ([`FakeRunner::on`]), changes health and connections, and
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

/// Size of the flow-control windows in bytes. No message under test fills them.
const WINDOW: u32 = 32 * 1024 * 1024;

/// Waits for `future`. Panics with `what` if it takes too long.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(PATIENCE, future).await else { panic!("waited too long: {what}") };
    value
}

#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Calls whose headers arrived.
    pub begun: usize,
    /// Calls whose message arrived, in order.
    pub calls: Vec<Received>,
    /// Calls that were not answered: the router cancelled them, or their connection was lost.
    pub abandoned: usize,
    /// Empty calls. A router sends them to probe a runner.
    pub probes: usize,
    /// `Watch` streams that were opened, including refused ones.
    pub watches: usize,
    pub checks: usize,
    /// Requests for the runner's pods. The fake runner refuses them, like a runner of an older
    /// version.
    pub pod_requests: usize,
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
    /// How often [`FakeRunner::end_watches`] was called.
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

/// A fake runner, as the module describes. Dropping it closes its port and its connections.
#[derive(Debug)]
pub struct FakeRunner {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<Arc<TcpListener>>,
    serving: Option<JoinHandle<()>>,
}

impl FakeRunner {
    /// Starts a healthy runner that echoes all calls.
    pub async fn start(name: &str) -> Self {
        let mut runner = Self::stopped(name).await;
        runner.restart().await;
        runner
    }

    pub async fn stopped(name: &str) -> Self {
        // The runner gets its own address in 127/8, so that no other process takes the port while
        // the runner is stopped.
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

    /// Sets the answer to calls of `image`.
    pub fn on(&self, image: &str, answer: Answer) {
        lock(&self.shared.answers).insert(image.to_owned(), answer);
    }

    /// Sets the answer to all other calls.
    pub fn otherwise(&self, answer: Answer) {
        *lock(&self.shared.default_answer) = answer;
    }

    pub fn set_serving(&self, serving: bool) {
        self.shared.health.send_modify(|health| health.serving = serving);
    }

    /// Ends each open `Watch` and keeps the connections open, like a proxy with a time limit for
    /// streams.
    pub fn end_watches(&self) {
        self.shared.health.send_modify(|health| health.ends += 1);
    }

    /// Refuses `Watch` from now on.
    pub fn without_watch(&self) {
        self.shared.health.send_modify(|health| health.has_watch = false);
    }

    pub fn log(&self) -> Log {
        self.shared.log.borrow().clone()
    }

    pub fn taken(&self) -> usize {
        self.shared.log.borrow().calls.len()
    }

    /// Waits until `condition` returns true for the log.
    pub async fn wait(&self, what: &str, condition: impl Fn(&Log) -> bool) -> Log {
        let mut log = self.shared.log.subscribe();
        let waited = soon(what, log.wait_for(|log| condition(log))).await;
        waited.expect("the sender is held here").clone()
    }

    /// Closes the port and keeps the connections open.
    pub async fn close_port(&mut self) {
        self.listener = None;
        if let Some(serving) = self.serving.take() {
            // The connections stay open, because each has its own task.
            serving.abort();
            let _ = serving.await;
        }
    }

    /// Sends GOAWAY on each connection. Calls in flight continue.
    pub fn go_away(&self) {
        lock(&self.shared.controls).iter().for_each(|control| control.go_away());
    }

    /// On each open connection, answers the next call by a GOAWAY that does not cover the call, and
    /// closes the connection.
    pub fn go_away_at_next_call(&self) {
        lock(&self.shared.controls).iter().for_each(|control| control.go_away_at_next_call());
    }

    /// Stops reading and writing without closing anything, like a stopped process. The kernel
    /// accepts new connections, but nothing answers on them.
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

    /// Listens on its port again.
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
    let ping = Arc::new(tokio::sync::Mutex::new(h2.ping_pong().expect("the first use")));
    // When the connection ends, dropping this set ends its streams.
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
