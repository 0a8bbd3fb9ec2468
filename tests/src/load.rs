//! Steady traffic while a test kills and stops things, and a report of each call's outcome.
//!
//! Closed loop: each caller has one call in flight. Open loop: calls start at a steady pace,
//! whatever the outcome of those before, like the callers of an overloaded server. Bounded in calls
//! in flight and, should a test forget to stop it, in time. Routers may come and go as behind a
//! Service: a connection whose router hangs up is made anew to one that takes part then.

mod report;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use porch_fn_grpc_client::unary::CallError;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::Code;

pub use report::{Call, Failure, Latencies, Report};

use crate::client::{Answer, Client};
use crate::process::eventually;

/// A load ends by itself after this long, unless its plan says otherwise.
const LONGEST: Duration = Duration::from_mins(3);
/// Connections that the callers share. Porch has one per process.
const CONNECTIONS: usize = 4;
/// Calls in flight of an open loop. Those beyond count as failed, unsent.
const MOST_IN_FLIGHT: usize = 10_000;

#[derive(Debug, Clone)]
pub struct Plan {
    /// What is called, each as often as the others. The functions must echo their input.
    pub images: Vec<String>,
    /// What each call sends; a comment with its number is added.
    pub input: String,
    pub pace: Pace,
    pub longest: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// So many callers, each of which waits for its answer.
    Callers(usize),
    /// So many calls a second, whatever their outcome.
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
    lines: Vec<Line>,
    started: Instant,
    next: AtomicUsize,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
}

/// The routers that take part, as a Service has its endpoints. Clones share them.
#[derive(Debug, Clone)]
pub struct Routers(Arc<RwLock<Vec<SocketAddr>>>);

/// A connection, which stays with its router until that hangs up.
#[derive(Debug)]
struct Line {
    routers: Routers,
    number: usize,
    current: Mutex<(SocketAddr, Arc<Client>)>,
}

// === impl Plan ===

impl Plan {
    /// Callers that wait for their answers, with a small input.
    pub fn callers(callers: usize, images: &[String]) -> Self {
        Self {
            images: images.to_vec(),
            input: "kind: ResourceList\n".into(),
            pace: Pace::Callers(callers),
            longest: LONGEST,
        }
    }

    /// The same at a pace.
    pub fn per_second(calls: f64, images: &[String]) -> Self {
        Self { pace: Pace::PerSecond(calls), ..Self::callers(0, images) }
    }

    #[must_use]
    pub fn input(self, input: impl Into<String>) -> Self {
        Self { input: input.into(), ..self }
    }

    #[must_use]
    pub fn longest(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }
}

// === impl Load ===

impl Load {
    /// Starts `callers` callers of `images` at the router or runner at `address`. The functions
    /// must echo their input.
    pub fn start(address: SocketAddr, callers: usize, images: &[String]) -> Self {
        Self::through(&Routers::new([address]), Plan::callers(callers, images))
    }

    /// Starts what `plan` says at `routers`, of which each connection uses one until that hangs up.
    pub fn through(routers: &Routers, plan: Plan) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let lines = (0..CONNECTIONS).map(|number| Line::new(routers.clone(), number)).collect();
        let pace = plan.pace;
        let work = Arc::new(Work {
            plan,
            lines,
            started: Instant::now(),
            next: AtomicUsize::new(0),
            stop: Arc::clone(&stop),
            answered: Arc::clone(&answered),
        });
        let mut callers: JoinSet<Report> = JoinSet::new();
        match pace {
            Pace::Callers(count) => {
                for caller in 0..count {
                    callers.spawn(boxed(closed_loop(caller, Arc::clone(&work))));
                }
            }
            Pace::PerSecond(calls) => {
                callers.spawn(boxed(open_loop(calls, work)));
            }
        }
        Self { callers, stop, answered }
    }

    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until it has had that many more answers.
    pub async fn goes_on(&self, calls: usize) {
        let enough = self.answered() + calls;
        eventually("the load goes on", async || (self.answered() >= enough).then_some(())).await;
    }

    /// Lets the calls in flight finish.
    pub async fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.join_all().await.into_iter().fold(Report::default(), Report::merge)
    }
}

/// Boxed: the types of these futures are too long for those that hold them.
fn boxed(
    work: impl Future<Output = Report> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Report> + Send>> {
    Box::pin(work)
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
    // The pace is kept, also by a machine that stumbles.
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
        if in_flight.len() >= MOST_IN_FLIGHT {
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
        self.stop.load(Ordering::Relaxed) || self.started.elapsed() > self.plan.longest
    }

    async fn call(&self, caller: usize, call: usize, report: &mut Report) {
        let image = &self.plan.images[call % self.plan.images.len()];
        let input = Bytes::from(format!("{}# call {call}\n", self.plan.input));
        let began = Instant::now();
        let line = &self.lines[caller % self.lines.len()];
        let (failure, text) = match line.call(image, input.clone()).await {
            Ok(answer) if answer.code != Code::Ok => (Some(Failure::Status(answer.code)), answer.message),
            Ok(answer) if answer.resource_list != input => (Some(Failure::AnotherAnswer), answer.log()),
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

    /// These from now on. Connections to others go on until they are hung up.
    pub fn set(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = addresses.into_iter().collect();
    }

    pub fn now(&self) -> Vec<SocketAddr> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// === impl Line ===

impl Line {
    /// The `number`th of all connections, which spread over the routers.
    fn new(routers: Routers, number: usize) -> Self {
        let addresses = routers.now();
        let address = addresses[number % addresses.len()];
        let client = Arc::new(Client::new(address));
        Self { routers, number, current: Mutex::new((address, client)) }
    }

    /// Calls `image`, without a deadline. What was not sent, since the router hung up, is sent to
    /// another, as gRPC's clients do.
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

    /// Chooses another router than this one, if there is another, unless somebody else has done so.
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
