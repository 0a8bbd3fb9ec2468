//! One call through the runner: the exec runtime first, then pods. The order is fixed.

use std::sync::Arc;

use http::HeaderValue;
use porch_fn_admin::failures::Failures;
use porch_fn_grpc::{Call, Evaluate, FUNCTIONS_TRAILER, Reply, code_name, message_of};
use porch_fn_image::{AllowedImages, Image, shard_key};
use porch_fn_proto::{Peek, peek};
use porch_fn_telemetry::span;
use scopeguard::guard;
use tokio::time::Instant;
use tonic::Code;
use wrapper_server::go_quote;

use crate::exec::ExecRuntime;
use crate::last_errors::LastErrors;
use crate::metrics::{Metrics, Runtime};
use crate::pods::PodRuntime;

/// Maximum number of functions in the trailer of an answer that a function is not found.
const MAX_LISTED: usize = 20;
const NO_IMAGE: &str = "the request names no function image";

/// The runner's evaluator. Without a runtime, it answers `NOT_FOUND` to every valid and allowed
/// call.
pub(crate) struct Runner {
    pub(crate) exec: Option<ExecRuntime>,
    pub(crate) pods: Option<PodRuntime>,
    /// The prefix of images without a registry.
    pub(crate) default_prefix: String,
    /// The images that calls may use (`--allowed-images`). Calls of other images are refused.
    pub(crate) allowed_images: Arc<AllowedImages>,
    pub(crate) metrics: Arc<Metrics>,
    /// Recent calls that failed.
    pub(crate) failures: Failures,
    /// The last error of each image.
    pub(crate) last_errors: LastErrors,
}

// === impl Runner ===

impl Runner {
    /// Runs a call, and stores the fields of its request in `asked`, even if the call fails.
    async fn run(&self, mut call: Call, asked: &mut Peek) -> (Reply, Runtime) {
        match peek(&call.message) {
            Ok(peeked) => *asked = peeked,
            // A grpc-go server answers with this code if it cannot unmarshal a message.
            Err(error) => return (Reply::failed(Code::Internal, &error.to_string()), Runtime::None),
        }
        let Peek { image, tag, resource_list } = &*asked;
        call.span.text(span::IMAGE, image);
        if image.is_empty() {
            return (Reply::failed(Code::InvalidArgument, NO_IMAGE), Runtime::None);
        }
        if let Err(error) = self.allowed_images.check(image, tag) {
            return (Reply::failed(Code::PermissionDenied, &error.to_string()), Runtime::None);
        }
        let parsed = Image::parse(image, &self.default_prefix);
        if let Err(refused) = call.charge.claim(parsed.as_ref().map_or(image, Image::as_str)) {
            return (refused.into(), Runtime::None);
        }
        if let Some(exec) = &self.exec {
            let resource_list = call.message.slice(resource_list.clone());
            if let Some(mut reply) =
                exec.evaluate(image, parsed.as_ref().ok(), tag, resource_list, &call).await
            {
                // The exec runtime's answers are counted as bytes in flight here. The pod runtime
                // counts an answer before it reads it.
                match call.charge.answer(reply.framed.len()) {
                    Ok(charge) => reply.charge = charge,
                    Err(refused) => reply = refused.into(),
                }
                return (reply, Runtime::Exec);
            }
        }
        if let Some(pods) = &self.pods
            && let Some(reply) = pods.evaluate(image, parsed, tag, &call).await
        {
            return (reply, Runtime::Pod);
        }
        (self.not_found(image), Runtime::None)
    }

    fn not_found(&self, image: &str) -> Reply {
        let mut reply = Reply::failed(Code::NotFound, &format!("function {} not found", go_quote(image)));
        let mut listed = self.pods.as_ref().and_then(|pods| pods.images.listed()).unwrap_or_default();
        listed.truncate(MAX_LISTED);
        if !listed.is_empty()
            && let Ok(listed) = HeaderValue::try_from(listed.join(","))
        {
            reply.status_headers_mut().insert(FUNCTIONS_TRAILER, listed);
        }
        reply
    }

    /// Keeps the failure for the status page, under the router's name for the image.
    fn record_failure(&self, asked: &Peek, code: Code, message: &str) {
        let image = shard_key(&asked.image, &asked.tag, &self.default_prefix);
        self.failures.note(&image, "", code_name(code), without_wrapping(message));
        self.last_errors.note(&image, code_name(code), message);
    }
}

impl Evaluate for Runner {
    async fn evaluate(&self, call: Call) -> Reply {
        // A router probes this runner with an empty call. Any answer is enough, and the call is not
        // counted as a failure.
        if call.message.is_empty() {
            return Reply::failed(Code::InvalidArgument, NO_IMAGE);
        }
        let (started, deadline, span) = (Instant::now(), call.deadline, call.span.clone());
        // The server drops a call at its deadline, and when its caller disconnects.
        let mut ended = guard(Ended::default(), |Ended { asked, answer }| {
            let dropped = if Instant::now() >= deadline { Code::DeadlineExceeded } else { Code::Cancelled };
            // A caller that disconnected is not a failure of this runner.
            if answer.is_none() && dropped == Code::DeadlineExceeded {
                self.record_failure(&asked, dropped, "no answer before the call's deadline");
            }
            let (runtime, code) = answer.unwrap_or((Runtime::None, dropped));
            self.metrics.answered(runtime, code, started.elapsed());
        });
        let (reply, runtime) = self.run(call, &mut ended.asked).await;
        span.text("porch_fn.runtime", &runtime.into_str().to_ascii_lowercase());
        let code = reply.code();
        if code != Code::Ok {
            self.record_failure(&ended.asked, code, &message_of(reply.status_headers()));
        }
        ended.answer = Some((runtime, code));
        reply
    }
}

/// What is known of a call when it ends.
#[derive(Default)]
struct Ended {
    /// The fields of the request, as the caller sent them.
    asked: Peek,
    answer: Option<(Runtime, Code)>,
}

/// Removes the text before the function's own message. That text repeats the image's name.
fn without_wrapping(message: &str) -> &str {
    match message.split_once(" desc = ") {
        Some((words, text)) if words.starts_with("unable to evaluate ") => text,
        _ => message,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::metrics::tests::metrics;
    use crate::pods::tests::{call, runtime};

    /// A runner with these pods and without the exec runtime.
    pub(crate) fn runner(pods: Option<PodRuntime>) -> Runner {
        Runner {
            exec: None,
            pods,
            default_prefix: "example.com".to_owned(),
            allowed_images: Arc::default(),
            metrics: metrics().0,
            failures: Failures::default(),
            last_errors: LastErrors::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_calls_are_counted_and_probes_of_routers_are_not() {
        let (metrics, text) = metrics();
        let runner = Runner { metrics, ..runner(Some(runtime(None))) };
        // The pool knows no pods yet, so calls wait.
        let calls = [Duration::from_secs(1), Duration::from_mins(1)].map(|wait| {
            let mut call = Box::pin(runner.evaluate(call("f:v1", "", wait)));
            assert!(call.as_mut().now_or_never().is_none());
            call
        });
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(calls);
        let mut empty = call("f:v1", "", Duration::from_mins(1));
        empty.message = porch_fn_proto::Chunks::default();
        assert_eq!(runner.evaluate(empty).await.code(), Code::InvalidArgument);
        let failed: Vec<_> = runner.failures.all().into_iter().map(|one| (one.image, one.code)).collect();
        assert_eq!(
            failed,
            [("example.com/f:v1".to_owned(), "DEADLINE_EXCEEDED".to_owned())],
            "a caller that disconnects is no failure"
        );
        let last = runner.last_errors.of("example.com/f:v1").unwrap();
        assert_eq!((&*last.code, &*last.text), ("DEADLINE_EXCEEDED", "no answer before the call's deadline"));
        let text = text();
        assert!(!text.contains("INVALID_ARGUMENT"), "{text}");
        for code in ["DEADLINE_EXCEEDED", "CANCELLED"] {
            assert!(text.contains(&format!("code=\"{code}\"}} 1")), "{text}");
        }
    }
}
