//! A load generator. It makes calls while a test causes faults, and reports each call's outcome.
//!
//! In a closed loop each caller has one call in flight. In an open loop calls start at a fixed
//! rate. Calls in flight and the duration have an upper limit. When a router closes a connection,
//! the load connects to another router, like behind a Service.

mod report;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use porch_fn_grpc_client::unary::CallError;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::Code;

pub use report::{Call, Failure, Latencies, Report};

use crate::client::{Answer, Client};
use crate::process::eventually;

/// The default of [`Plan::max_duration`].
const MAX_DURATION: Duration = Duration::from_mins(3);
/// All calls share this many connections, as if four Porch processes sent the calls.
const CONNECTIONS: usize = 4;
/// Limit of an open loop's calls in flight. Further calls are not sent and count as failed.
const MAX_IN_FLIGHT: usize = 10_000;

#[derive(Debug, Clone)]
pub struct Plan {
    /// The images to call in turn. Their functions must echo their input.
    pub images: Vec<String>,
    /// The input of each call. The load adds a comment with the call's number.
    pub input: String,
    pub pace: Pace,
    pub max_duration: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// A closed loop with this number of callers.
    Callers(usize),
    /// An open loop with this number of calls per second.
    PerSecond(f64),
}

#[derive(Debug)]
pub struct Load {
    callers: JoinSet<Report>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Work {
    plan: Plan,
    connections: Vec<SharedConnection>,
    started: Instant,
    next: AtomicUsize,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
}

/// The routers to call, like the endpoints of a Service. Clones share the list.
#[derive(Debug, Clone)]
pub struct Routers(Arc<RwLock<Vec<SocketAddr>>>);

/// A connection that moves to another router only if a router processed nothing of a call.
#[derive(Debug)]
struct SharedConnection {
    routers: Routers,
    number: usize,
    current: Mutex<(SocketAddr, Arc<Client>)>,
}

// === impl Plan ===

impl Plan {
    /// A closed loop with a small input.
    pub fn callers(callers: usize, images: &[String]) -> Self {
        Self {
            images: images.to_vec(),
            input: "kind: ResourceList\n".into(),
            pace: Pace::Callers(callers),
            max_duration: MAX_DURATION,
        }
    }

    /// An open loop with a small input.
    pub fn per_second(calls: f64, images: &[String]) -> Self {
        Self { pace: Pace::PerSecond(calls), ..Self::callers(0, images) }
    }
}

// === impl Load ===

impl Load {
    /// Starts a closed loop with `callers` callers. `address` is a router or runner. The functions
    /// of `images` must echo their input.
    pub fn start(address: SocketAddr, callers: usize, images: &[String]) -> Self {
        Self::through(&Routers::new([address]), Plan::callers(callers, images))
    }

    /// Starts the calls of `plan`.
    pub fn through(routers: &Routers, plan: Plan) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let connections =
            (0..CONNECTIONS).map(|number| SharedConnection::new(routers.clone(), number)).collect();
        let pace = plan.pace;
        let work = Arc::new(Work {
            plan,
            connections,
            started: Instant::now(),
            next: AtomicUsize::new(0),
            stop: Arc::clone(&stop),
            answered: Arc::clone(&answered),
        });
        let mut callers: JoinSet<Report> = JoinSet::new();
        // The futures are boxed, because their types are too long for the compiler's limits.
        match pace {
            Pace::Callers(count) => {
                for caller in 0..count {
                    callers.spawn(closed_loop(caller, Arc::clone(&work)).boxed());
                }
            }
            Pace::PerSecond(calls) => {
                callers.spawn(open_loop(calls, work).boxed());
            }
        }
        Self { callers, stop, answered }
    }

    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits for this number of further answers.
    pub async fn wait_answers(&self, calls: usize) {
        let enough = self.answered() + calls;
        eventually("more answers", async || (self.answered() >= enough).then_some(())).await;
    }

    /// Stops the load and waits for the calls in flight.
    pub async fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.join_all().await.into_iter().fold(Report::default(), Report::merge)
    }
}

async fn closed_loop(caller: usize, work: Arc<Work>) -> Report {
    let mut report = Report::default();
    while !work.is_over() {
        let call = work.next.fetch_add(1, Ordering::Relaxed);
        work.call(caller, call, &mut report).await;
    }
    report
}

async fn open_loop(calls: f64, work: Arc<Work>) -> Report {
    let mut report = Report::default();
    let mut in_flight = JoinSet::new();
    let mut ticks = interval(Duration::from_secs_f64(1.0 / calls));
    // After a pause of the machine, missed calls start at once, so the mean rate stays the same.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for call in 0.. {
        ticks.tick().await;
        if work.is_over() {
            break;
        }
        while let Some(ended) = in_flight.try_join_next() {
            report = report.merge(ended.expect("a caller does not panic"));
        }
        let began = Instant::now();
        if in_flight.len() >= MAX_IN_FLIGHT {
            let failure = Some(Failure::Unsent);
            report.add(Call { began, took: Duration::ZERO, failure }, "too many calls in flight");
            continue;
        }
        let work = Arc::clone(&work);
        in_flight.spawn(async move {
            let mut report = Report::default();
            work.call(call, call, &mut report).await;
            report
        });
    }
    in_flight.join_all().await.into_iter().fold(report, Report::merge)
}

// === impl Work ===

impl Work {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.started.elapsed() > self.plan.max_duration
    }

    async fn call(&self, caller: usize, call: usize, report: &mut Report) {
        let image = &self.plan.images[call % self.plan.images.len()];
        let input = Bytes::from(format!("{}# call {call}\n", self.plan.input));
        let began = Instant::now();
        let connection = &self.connections[caller % self.connections.len()];
        let (failure, text) = match connection.call(image, input.clone()).await {
            Ok(answer) if answer.code != Code::Ok => (Some(Failure::Status(answer.code)), answer.message),
            Ok(answer) if answer.resource_list != input => (Some(Failure::OtherAnswer), answer.log()),
            Ok(_) => (None, String::new()),
            Err(error) => (Some(Failure::NoStatus), error.to_string()),
        };
        self.answered.fetch_add(1, Ordering::Relaxed);
        report.add(Call { began, took: began.elapsed(), failure }, &text);
    }
}

// === impl Routers ===

impl Routers {
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self(Arc::new(RwLock::new(addresses.into_iter().collect())))
    }

    /// Replaces the routers. A connection to a removed router stays until that router closes it.
    pub fn set(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = addresses.into_iter().collect();
    }

    pub fn now(&self) -> Vec<SocketAddr> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// === impl SharedConnection ===

impl SharedConnection {
    /// Connection `number` of the load. The connections are spread over the routers.
    fn new(routers: Routers, number: usize) -> Self {
        let addresses = routers.now();
        let address = addresses[number % addresses.len()];
        let client = Arc::new(Client::new(address));
        Self { routers, number, current: Mutex::new((address, client)) }
    }

    /// Calls `image` without a deadline. If the router is unreachable or has processed nothing of
    /// the call, sends the call to another router, as in gRPC's clients.
    async fn call(&self, image: &str, input: Bytes) -> Result<Answer, CallError> {
        let mut left = self.routers.now().len();
        loop {
            let (address, client) = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match client.try_call(image, input.clone(), None).await {
                Err(CallError::Connect(_) | CallError::NotSent) if left > 0 => {
                    left -= 1;
                    self.leave(address);
                }
                ended => return ended,
            }
        }
    }

    /// Replaces this router by another, unless a concurrent call has already done so.
    fn leave(&self, address: SocketAddr) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let mut others = self.routers.now();
        if others.len() > 1 {
            others.retain(|&other| other != address);
        }
        if current.0 == address && !others.is_empty() {
            let next = others[self.number % others.len()];
            *current = (next, Arc::new(Client::new(next)));
        }
    }
}
