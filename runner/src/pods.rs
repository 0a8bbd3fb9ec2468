//! The pod runtime: a call waits for a pod of its function, and the pod's wrapper runs it.

mod backend;
mod commands;
pub(crate) mod configure;
mod driver;
mod error;
mod executor;
pub(crate) mod images;
pub mod kubernetes;
pub mod local;
pub(crate) mod moved_tags;
mod probe;
mod start_errors;
mod starts;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use porch_fn_grpc::{Call, Reply, START_TRAILER, is_shed};
use porch_fn_grpc_client::conn::ConnectError;
use porch_fn_grpc_client::unary::{self, CallError, Lost};
use porch_fn_image::{Constraint, Image, ReferenceError, parse_version, shard_key};
use porch_fn_pool::{ImageKey, ShardKey, Verdict};
use porch_fn_proto::frame;
use porch_fn_telemetry::{span, trace_context};
use tokio::time::Instant;

pub use backend::{Backend, PodFacts};
pub use commands::ImageCommands;
pub(crate) use driver::{Driver, Events, Handle, number};
pub use error::IMAGE_MISSING;

use crate::metrics::{Metrics, Runtime};
use error::{PodError, wrap_failure};
use images::ImageSource;
use images::Resolve as _;

/// A call fails after it got this many pods that are gone, are unreachable, or refuse the call
/// before they run it. The pool probes such a pod before it gives the pod to a call again.
const MAX_PODS_GONE: u32 = 10;

/// Runs calls in pods.
pub(crate) struct PodRuntime {
    pub(crate) pool: Handle,
    pub(crate) images: Arc<ImageSource>,
    pub(crate) default_prefix: String,
    pub(crate) max_message: usize,
    /// How often a call is repeated on another pod after its pod died during the call. This is
    /// limited because the function itself may kill its pods.
    pub(crate) max_retries: u32,
    pub(crate) metrics: Arc<Metrics>,
}

impl PodRuntime {
    /// Runs `image` in a pod. Returns `None` if the image can have no pods. `parsed` is
    /// `image`, parsed as a reference. A `tag` that is a version or a constraint selects a tag of
    /// the image's repository.
    pub(crate) async fn evaluate(
        &self,
        image: &str,
        parsed: Result<Image, ReferenceError>,
        tag: &str,
        call: &Call,
    ) -> Option<Reply> {
        let ran = match self.choose(image, parsed, tag).await {
            Ok(Some((chosen, shard_key))) => self.run(&chosen, &shard_key, call).await,
            Ok(None) => return None,
            Err(error) => Err(error),
        };
        Some(match ran {
            Ok(reply) => wrap_failure(reply, image),
            Err(error) => error.reply(image),
        })
    }

    /// Starts a pod for the calls of `image` that will probably come. Returns whether the image can
    /// have pods.
    pub(crate) async fn prepare(&self, image: &str, tag: &str) -> bool {
        let parsed = Image::parse(image, &self.default_prefix);
        let Ok(Some((chosen, shard_key))) = self.choose(image, parsed, tag).await else { return false };
        self.pool.warm_up(chosen, shard_key);
        true
    }

    /// Returns the image to run and the shard key of the call; `None` if the image can
    /// have no pods. As in kpt, a version is a literal tag, and a constraint selects the highest tag
    /// that it allows. Any other `tag` is ignored, and so is every `tag` if the image has a digest.
    async fn choose(
        &self,
        image: &str,
        parsed: Result<Image, ReferenceError>,
        tag: &str,
    ) -> Result<Option<(ImageKey, ShardKey)>, PodError> {
        let mut chosen = parsed.map_err(PodError::Image)?;
        if tag.is_empty() || chosen.digest().is_some() {
            // The image is as the caller wrote it.
        } else if parse_version(tag).is_some() {
            chosen = chosen.with_tag(tag).map_err(PodError::Image)?;
        } else if let Some(constraint) = Constraint::parse(tag) {
            let resolved = self.images.resolve(&chosen, &constraint).await;
            let unresolved = |source| PodError::Unresolved { constraint: tag.to_owned(), source };
            chosen = resolved.map_err(unresolved)?;
        }
        let shard_key = || ShardKey::from(shard_key(image, tag, &self.default_prefix));
        Ok(self.images.knows(&chosen).then(|| (ImageKey::from(chosen.as_str()), shard_key())))
    }

    async fn run(&self, image: &ImageKey, shard_key: &ShardKey, call: &Call) -> Result<Reply, PodError> {
        // The pod always gets the message uncompressed: its wrapper may not support compression.
        let framed = frame(call.message.clone());
        let wait_until = call.deadline - margin(call.deadline.saturating_duration_since(Instant::now()));
        let (mut broken, mut gone) = (0_u32, 0_u32);
        let mut retry_reason = None;
        while broken <= self.max_retries && gone < MAX_PODS_GONE {
            let (waits, waiting) = (self.metrics.waits(Runtime::Pod), call.span.stage(span::QUEUE_WAIT));
            let running = (framed.clone(), call.deadline);
            let granted = self.pool.acquire(image.clone(), shard_key.clone(), wait_until, running).await;
            let (connection, lease) = match granted {
                Ok(granted) => granted,
                Err(PodError::Vanished) => {
                    gone += 1;
                    retry_reason = Some("vanished");
                    continue;
                }
                Err(error) => {
                    self.metrics.rejected(Runtime::Pod, error.kind());
                    return Err(error);
                }
            };
            self.metrics.waited(shard_key.as_str(), waits.granted());
            let started = lease.started.as_ref().map(ToString::to_string);
            if let Some(started) = &started {
                waiting.text(span::POD_START, started);
            }
            drop(waiting);
            if let Some(reason) = retry_reason.take() {
                self.metrics.tried_again(reason);
            }
            let evaluates = self.metrics.evaluates(Runtime::Pod);
            let span = call.span.call();
            let headers = || {
                let mut headers = headers(call);
                span.inject(&mut headers);
                headers
            };
            let limit = self.max_message;
            let answer = unary::call(&connection, headers, &framed, limit, &call.charge);
            let answer = self.metrics.client.client(&framed, call.deadline, answer).await;
            drop(evaluates);
            span.ended(answer.as_ref().map_or_else(CallError::code, Reply::code));
            match answer {
                // Other runners' calls use the whole capacity of the pod. This call is queued
                // again.
                Ok(reply) if is_shed(reply.status_headers()) => {
                    lease.finish(Verdict::Full);
                    retry_reason = Some("full");
                }
                Ok(mut reply) => {
                    lease.finish(Verdict::Served);
                    if let Some(Ok(started)) = started.as_deref().map(HeaderValue::try_from) {
                        reply.status_headers_mut().insert(START_TRAILER, started);
                    }
                    return Ok(reply);
                }
                Err(CallError::TooLarge { size, limit }) => {
                    lease.finish(Verdict::Served);
                    return Err(PodError::TooLarge { size, limit });
                }
                Err(CallError::Refused(refused)) => {
                    lease.finish(Verdict::Served);
                    return Err(PodError::Refused(refused));
                }
                Err(error) => {
                    tracing::debug!(%image, %error, "a call to a pod failed");
                    let has_started = matches!(error, CallError::Broken { .. });
                    *(if has_started { &mut broken } else { &mut gone }) += 1;
                    retry_reason = Some(if has_started { "broken" } else { "refused" });
                    lease.finish(if is_silence(&error) { Verdict::Silent } else { Verdict::Broken });
                }
            }
        }
        // `Vanished` means that no pod has started to run the call: the router may send it to
        // another runner.
        let error = if broken > 0 { PodError::Broken } else { PodError::Vanished };
        self.metrics.rejected(Runtime::Pod, error.kind());
        Err(error)
    }
}

/// Whether the pod sent no byte back, not even a refusal.
fn is_silence(error: &CallError) -> bool {
    matches!(error, CallError::Broken { lost: Lost::Silence, .. } | CallError::Connect(ConnectError::Timeout))
}

/// How long before its deadline a call stops waiting for a pod, so that the caller still receives
/// the error text.
fn margin(remaining: Duration) -> Duration {
    (remaining / 4).min(Duration::from_millis(100))
}

/// The headers that a wrapper needs, and the trace context. Like Porch's function runner, this
/// runner does not forward the caller's other metadata.
fn headers(call: &Call) -> HeaderMap {
    let remaining = call.deadline.saturating_duration_since(Instant::now());
    let mut headers = unary::request_headers(remaining);
    trace_context::pass_on(&call.headers, &mut headers);
    headers
}
