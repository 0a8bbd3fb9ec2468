//! Sends the calls of one round.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use porch_fn_grpc::{Reply, START_TRAILER, code_name};
use porch_fn_grpc_client::conn::Connection;
use porch_fn_proto::{encode_request, frame};
use serde::Serialize;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until};

use super::BenchArgs;
use super::schedule::{Bound, planned};
use crate::call::{call, connection};
use crate::failure::Failure;

/// Largest answer in bytes.
const MAX_ANSWER: usize = 256 * 1024 * 1024;
/// Calls before the measurement, for each call at once.
const WARM_UP: usize = 10;
/// The timer has a resolution of 1 ms. The rest of a pause is spent in the scheduler.
const TIMER: Duration = Duration::from_millis(2);

/// The outcome of one round.
#[derive(Debug)]
pub(super) struct Measured {
    /// Durations of all calls in nanoseconds.
    pub(super) durations: Histogram<u64>,
    /// Calls by gRPC code. `UNREACHABLE` is a call without an answer.
    pub(super) codes: BTreeMap<&'static str, u64>,
    pub(super) took: Duration,
}

/// The calls to one address.
#[derive(Debug)]
pub(super) struct Load<'a> {
    address: &'a str,
    args: &'a BenchArgs,
    connections: Vec<Arc<Connection>>,
    list: Bytes,
}

/// The first call of an image.
#[derive(Debug, Serialize)]
pub(super) struct FirstCall<'a> {
    pub(super) address: &'a str,
    pub(super) image: &'a str,
    pub(super) code: &'static str,
    pub(super) seconds: f64,
    /// How long each phase of the pod's start took; empty if the runner has not reported it.
    pub(super) start: String,
}

// === impl Measured ===

impl Default for Measured {
    fn default() -> Self {
        // Fails only for more than five digits.
        let durations = Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are valid"));
        Self { durations, codes: BTreeMap::new(), took: Duration::ZERO }
    }
}

impl Measured {
    pub(super) fn add(&mut self, code: &'static str, took: Duration) {
        // Fails only for a histogram of a fixed range.
        let _ = self.durations.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        *self.codes.entry(code).or_default() += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        // Fails only for a histogram of a fixed range.
        let _ = self.durations.add(&other.durations);
        for (code, count) in &other.codes {
            *self.codes.entry(code).or_default() += count;
        }
    }
}

// === impl Load ===

impl<'a> Load<'a> {
    pub(super) fn new(address: &'a str, args: &'a BenchArgs, list: Bytes) -> Result<Self, Failure> {
        let connections = (0..args.connections.get()).map(|_| connection(address).map(Arc::new));
        Ok(Self { address, args, connections: connections.collect::<Result<_, _>>()?, list })
    }

    /// Calls the function until its pods and all connections are warm.
    ///
    /// # Errors
    /// When the function fails, or cannot be reached.
    pub(super) async fn warm_up(&self) -> Result<(), Failure> {
        for image in &self.args.image {
            self.call_once(image).await?;
        }
        let calls = (self.args.concurrency.get() * WARM_UP).max(self.connections.len()) as u64;
        let bound = Bound::new(calls.try_into().ok(), Duration::ZERO, self.args.timeout.into());
        match self.run(bound, None).await?.codes.keys().find(|code| **code != "OK") {
            Some(code) => Err(Failure::new(format!(
                "{}: the function fails with {code}; see porch-fn eval for the error",
                self.address
            ))),
            None => Ok(()),
        }
    }

    /// Sends the calls of a round.
    ///
    /// # Errors
    /// When a task of this process panics.
    pub(super) async fn run(&self, bound: Bound, rate: Option<NonZeroU32>) -> Result<Measured, Failure> {
        let (next, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let mut callers = JoinSet::new();
        let request = frame(encode_request(self.list.clone().into(), &self.args.image.concat(), ""));
        for caller in 0..self.args.concurrency.get() {
            let connection = Arc::clone(&self.connections[caller % self.connections.len()]);
            let (request, limit, next) = (request.clone(), self.args.timeout.into(), Arc::clone(&next));
            callers.spawn(async move {
                let mut measured = Measured::default();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let start = match rate {
                        Some(rate) => began + planned(number, rate),
                        None => Instant::now(),
                    };
                    if !bound.allows(number, start - began) {
                        return measured;
                    }
                    wait_until(start).await;
                    let reply = call(&connection, &request, limit, MAX_ANSWER).await;
                    measured.add(reply.map_or("UNREACHABLE", |reply| code(reply.as_ref())), start.elapsed());
                }
            });
        }
        let mut all = Measured::default();
        while let Some(measured) = callers.join_next().await {
            all.merge(&measured?);
        }
        all.took = began.elapsed();
        Ok(all)
    }

    /// Calls `image` once. Returns the code and the duration.
    ///
    /// # Errors
    /// When there is no answer.
    pub(super) async fn call_once(&self, image: &'a str) -> Result<FirstCall<'a>, Failure> {
        let request = frame(encode_request(self.list.clone().into(), image, ""));
        let (address, began) = (self.address, Instant::now());
        let reply = call(&self.connections[0], &request, self.args.timeout.into(), MAX_ANSWER).await;
        let reply = reply.map_err(|error| Failure::unreachable(format!("cannot call {address}: {error}")))?;
        let start = reply.as_ref().and_then(|reply| reply.status_headers().get(START_TRAILER)?.to_str().ok());
        let start = start.unwrap_or_default().to_owned();
        let seconds = began.elapsed().as_secs_f64();
        Ok(FirstCall { address, image, code: code(reply.as_ref()), seconds, start })
    }
}

async fn wait_until(start: Instant) {
    if let Some(early) = start.checked_sub(TIMER)
        && Instant::now() < early
    {
        sleep_until(early).await;
    }
    while Instant::now() < start {
        yield_now().await;
    }
}

/// The gRPC code. `None`: there is no answer at the deadline.
fn code(reply: Option<&Reply>) -> &'static str {
    reply.map_or("DEADLINE_EXCEEDED", |reply| code_name(reply.code()))
}
