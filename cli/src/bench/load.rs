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
use porch_fn_grpc_client::unary::CallError;
use porch_fn_proto::{Chunks, encode_request, frame};
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
pub(super) struct Load {
    address: String,
    connections: Vec<Arc<Connection>>,
    concurrency: usize,
    timeout: Duration,
    list: Bytes,
    request: Chunks,
}

/// The first call of an image.
#[derive(Debug, Serialize)]
pub(super) struct FirstCall {
    pub(super) address: String,
    pub(super) image: String,
    pub(super) code: &'static str,
    pub(super) seconds: f64,
    /// How long each phase of the pod's start took; empty if the runner has not reported it.
    pub(super) start: String,
}

// === impl Measured ===

impl Measured {
    pub(super) fn new() -> Self {
        // Fails only for more than five digits.
        let durations = Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are valid"));
        Self { durations, codes: BTreeMap::new(), took: Duration::ZERO }
    }

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

impl Load {
    pub(super) fn new(address: &str, args: &BenchArgs, list: Bytes) -> Result<Self, Failure> {
        let connections = (0..args.connections.get()).map(|_| connection(address).map(Arc::new));
        let image = args.image.first().map_or("", String::as_str);
        Ok(Self {
            address: address.to_owned(),
            connections: connections.collect::<Result<_, _>>()?,
            concurrency: args.concurrency.get(),
            timeout: args.timeout.into(),
            request: frame(encode_request(list.clone().into(), image, "")),
            list,
        })
    }

    /// Calls the function until its pods and all connections are warm.
    ///
    /// # Errors
    /// When the function fails, or cannot be reached.
    pub(super) async fn warm_up(&self) -> Result<(), Failure> {
        let connection = &self.connections[0];
        let called = call(connection, &self.request, self.timeout, MAX_ANSWER).await;
        called.map_err(|error| self.unreachable(&error))?;
        let calls = (self.concurrency * WARM_UP).max(self.connections.len()) as u64;
        let bound = Bound::new(calls.try_into().ok(), Duration::ZERO, self.timeout);
        let warmed = self.run(bound, None).await?;
        match warmed.codes.iter().find(|(code, _)| **code != "OK") {
            Some((code, _)) => Err(Failure::new(format!(
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
        for caller in 0..self.concurrency {
            let connection = Arc::clone(&self.connections[caller % self.connections.len()]);
            let (request, limit, next) = (self.request.clone(), self.timeout, Arc::clone(&next));
            callers.spawn(async move {
                let mut measured = Measured::new();
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
        let mut all = Measured::new();
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
    pub(super) async fn call_once(&self, image: &str) -> Result<FirstCall, Failure> {
        let request = frame(encode_request(self.list.clone().into(), image, ""));
        let began = Instant::now();
        let reply = call(&self.connections[0], &request, self.timeout, MAX_ANSWER).await;
        let reply = reply.map_err(|error| self.unreachable(&error))?;
        let start = reply.as_ref().and_then(|reply| reply.status_headers().get(START_TRAILER)?.to_str().ok());
        Ok(FirstCall {
            address: self.address.clone(),
            image: image.to_owned(),
            code: code(reply.as_ref()),
            seconds: began.elapsed().as_secs_f64(),
            start: start.unwrap_or_default().to_owned(),
        })
    }

    fn unreachable(&self, error: &CallError) -> Failure {
        Failure::unreachable(format!("cannot call {}: {error}", self.address))
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
