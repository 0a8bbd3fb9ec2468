//! An ordinary caller beside a case, on a connection and a thread of its own.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use porch_fn_tests::client::Client;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::super::INPUT;

/// A thread for what is not under test: the caller, and the servers behind the one under test.
pub(super) struct Background(Option<Runtime>);

/// The caller. It calls until it is dropped.
pub(super) struct Beside {
    calls: Arc<Mutex<Vec<Call>>>,
    control: Arc<Mutex<Vec<Call>>>,
}

#[derive(Debug, Clone)]
struct Call {
    began: Instant,
    took: Duration,
    failure: Option<String>,
}

/// What the caller met during a case.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) calls: usize,
    pub p99: Duration,
    pub(super) slowest: Duration,
    pub(super) failures: Vec<String>,
}

/// Between two calls.
const PAUSE: Duration = Duration::from_millis(5);
/// A call that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);

// === impl Background ===

impl Background {
    pub(super) fn new() -> Self {
        Self(Some(Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()))
    }

    pub(super) fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is running")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // A runtime must not wait in a thread of another one.
            runtime.shutdown_background();
        }
    }
}

// === impl Beside ===

impl Beside {
    /// Starts calls of `image`, whose function must echo its input. `idle` is a server for comparison.
    pub(super) fn start(background: &Background, address: SocketAddr, image: &str, idle: SocketAddr) -> Self {
        let [calls, control] = [address, idle].map(|address| {
            let calls = Arc::<Mutex<Vec<Call>>>::default();
            background.runtime().spawn(call(address, image.to_owned(), Arc::downgrade(&calls)));
            calls
        });
        Self { calls, control }
    }

    /// Waits for a whole call after now. Returns what was met since `began`.
    pub(super) async fn since(&self, began: Instant) -> Met {
        let now = Instant::now();
        let is_there = || self.calls.lock().unwrap().last().is_some_and(|call| call.began >= now);
        while !is_there() {
            assert!(now.elapsed() < PATIENCE * 2, "the caller beside makes no calls");
            sleep(Duration::from_millis(1)).await;
        }
        let [took, idle] = [&self.calls, &self.control].map(|calls| {
            let mut calls = calls.lock().unwrap();
            calls.retain(|call| call.began + call.took >= began);
            let mut took: Vec<_> = calls.iter().map(|call| call.took).collect();
            took.sort_unstable();
            took
        });
        let p99 = |took: &[Duration]| took.get((took.len() * 99).div_ceil(100).max(1) - 1).copied();
        let failures = self.calls.lock().unwrap().iter().filter_map(|call| call.failure.clone()).collect();
        Met {
            calls: took.len(),
            p99: p99(&took).unwrap().saturating_sub(4 * p99(&idle).unwrap_or_default()),
            slowest: took[took.len() - 1],
            failures,
        }
    }
}

/// Calls until nobody wants to know.
async fn call(address: SocketAddr, image: String, written: Weak<Mutex<Vec<Call>>>) {
    let client = Client::new(address);
    while let Some(calls) = written.upgrade() {
        let began = Instant::now();
        let failure = match timeout(PATIENCE, client.try_call(&image, INPUT, None)).await {
            Ok(Ok(answer)) if answer.code != Code::Ok => {
                Some(format!("{:?}: {}", answer.code, answer.message))
            }
            Ok(Ok(answer)) if answer.resource_list != INPUT => Some("another answer".into()),
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(format!("{error}: {error:?}")),
            Err(_) => Some(format!("no answer within {PATIENCE:?}")),
        };
        calls.lock().unwrap().push(Call { began, took: began.elapsed(), failure });
        drop(calls);
        sleep(PAUSE).await;
    }
}
