//! One call through the runner: the exec runtime first, then pods. The order is fixed.

use porch_fn_admin::failures::Failures;
use porch_fn_grpc::{Call, Evaluate, Reply, code_name, message_of};
use porch_fn_image::{AllowedImages, Image, shard_key};
use porch_fn_proto::peek;
use porch_fn_telemetry::span;
use tokio::time::Instant;
use tonic::Code;
use wrapper_server::go_quote;

use std::sync::Arc;

use crate::exec::ExecRuntime;
use crate::metrics::{Metrics, Runtime};
use crate::pods::PodRuntime;

const NO_IMAGE: &str = "the request names no function image";

/// The runner's evaluator.
#[derive(Debug)]
pub struct Runner {
    exec: Option<ExecRuntime>,
    pods: Option<PodRuntime>,
    default_prefix: String,
    allowed_images: Arc<AllowedImages>,
    metrics: Arc<Metrics>,
    failures: Arc<Failures>,
}

impl Runner {
    /// A runner with these runtimes. With none it answers `NOT_FOUND` to everything. Images without a registry are
    /// those of `default_prefix`. Calls that `allowed_images` does not allow reach no runtime.
    pub fn new(
        exec: Option<ExecRuntime>,
        pods: Option<PodRuntime>,
        default_prefix: String,
        allowed_images: Arc<AllowedImages>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { exec, pods, default_prefix, allowed_images, metrics, failures: Arc::default() }
    }

    /// Calls that failed of late.
    pub(crate) fn failures(&self) -> Arc<Failures> {
        Arc::clone(&self.failures)
    }

    /// Runs a call, and notes in `asked` what it asks for.
    async fn run(&self, mut call: Call, asked: &mut Asked) -> (Reply, Runtime) {
        let peeked = match peek(&call.message) {
            Ok(peeked) => peeked,
            // What grpc-go's servers answer to a message they cannot unmarshal.
            Err(error) => return (Reply::failed(Code::Internal, &error.to_string()), Runtime::None),
        };
        *asked = Asked { image: peeked.image.clone(), tag: peeked.tag.clone() };
        let image = &*peeked.image;
        call.span.text(span::IMAGE, image);
        if image.is_empty() {
            return (Reply::failed(Code::InvalidArgument, NO_IMAGE), Runtime::None);
        }
        if let Err(error) = self.allowed_images.check(image, &peeked.tag) {
            return (Reply::failed(Code::PermissionDenied, &error.to_string()), Runtime::None);
        }
        let parsed = Image::parse(image, &self.default_prefix);
        if let Err(refused) = call.charge.claim(parsed.as_ref().map_or(image, Image::as_str)) {
            return (refused.into(), Runtime::None);
        }
        if let Some(exec) = &self.exec {
            let resource_list = call.message.slice(peeked.resource_list.clone());
            let meant = parsed.as_ref().ok();
            if let Some(mut reply) = exec.evaluate(image, meant, &peeked.tag, resource_list, &call).await {
                // The pod runtime charges its answers before it takes them.
                match call.charge.answer(reply.framed.len()) {
                    Ok(charge) => reply.charge = charge,
                    Err(refused) => reply = refused.into(),
                }
                return (reply, Runtime::Exec);
            }
        }
        if let Some(pods) = &self.pods
            && let Some(reply) = pods.evaluate(image, parsed, &peeked.tag, &call).await
        {
            return (reply, Runtime::Pod);
        }
        let text = format!("function {} not found", go_quote(image));
        (Reply::failed(Code::NotFound, &text), Runtime::None)
    }
}

impl Evaluate for Runner {
    async fn evaluate(&self, call: Call) -> Reply {
        // A router that has doubts about this runner sends an empty call: any answer will do, and it is nobody's failure.
        if call.message.is_empty() {
            return Reply::failed(Code::InvalidArgument, NO_IMAGE);
        }
        let (started, deadline, span) = (Instant::now(), call.deadline, call.span.clone());
        let mut counted = Counted { runner: self, started, deadline, asked: Asked::default(), answer: None };
        let (reply, runtime) = self.run(call, &mut counted.asked).await;
        span.text("porch_fn.runtime", runtime.as_str());
        let code = reply.code();
        if code != Code::Ok {
            counted.failed(code, told(&message_of(reply.status_headers())));
        }
        counted.answer = Some((runtime, code));
        reply
    }
}

/// What a call asks for, as it was sent.
#[derive(Default)]
struct Asked {
    image: String,
    tag: String,
}

/// Counts its call when it is dropped, since the server drops calls: at their deadlines, and when their callers go
/// away.
struct Counted<'a> {
    runner: &'a Runner,
    started: Instant,
    deadline: Instant,
    asked: Asked,
    answer: Option<(Runtime, Code)>,
}

impl Counted<'_> {
    /// Remembers the failure for the status page, under the name that the router has for the image.
    fn failed(&self, code: Code, text: &str) {
        let tag = Some(&*self.asked.tag).filter(|tag| !tag.is_empty());
        let image = shard_key(&self.asked.image, tag, &self.runner.default_prefix);
        self.runner.failures.note(&image, "", code_name(code), text);
    }
}

/// A failure's text without the words around it that name the image once more.
fn told(message: &str) -> &str {
    match message.split_once(" desc = ") {
        Some((words, text)) if words.starts_with("unable to evaluate ") => text,
        _ => message,
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let cut_off = if Instant::now() >= self.deadline { Code::DeadlineExceeded } else { Code::Cancelled };
        // Nobody failed a caller that went away.
        if self.answer.is_none() && cut_off == Code::DeadlineExceeded {
            self.failed(cut_off, "the call's time was up");
        }
        let (runtime, code) = self.answer.unwrap_or((Runtime::None, cut_off));
        self.runner.metrics.answered(runtime, code, self.started.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use http::HeaderMap;
    use porch_fn_grpc::{Charge, Hop, Inflight};
    use porch_fn_pool::Config;
    use porch_fn_proto::{encode_request, frame};
    use porch_fn_telemetry::span::Span;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::pods::local::{LocalCluster, LocalFunctions, LocalOptions};

    #[tokio::test]
    async fn calls_that_the_server_drops_are_counted_and_a_routers_tries_are_not() {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry, &Inflight::new(0, Hop::Runner)));
        let mut functions = LocalFunctions::default();
        functions.add("example.com/f:v1", vec!["cat".to_owned()], "example.com").unwrap();
        let options = LocalOptions {
            wrapper: Vec::new(),
            max_message: 1024,
            log_level: 0,
            functions: functions.clone(),
        };
        let (sender, events) = tokio::sync::mpsc::unbounded_channel();
        let backend = LocalCluster::new(options).attach(sender);
        // Nobody drives the pool: calls wait.
        let (pods, _driver) = PodRuntime::new(
            Config::default(),
            backend,
            events,
            Arc::new(functions),
            "example.com".to_owned(),
            1024,
            Arc::clone(&metrics),
        );
        let runner = Runner::new(None, Some(pods), "example.com".to_owned(), Arc::default(), metrics);
        for wait in [Duration::ZERO, Duration::from_mins(1)] {
            let message = encode_request(bytes::Bytes::new().into(), "f:v1", "");
            let deadline = Instant::now() + wait;
            let (headers, framed) = (HeaderMap::new(), frame(message.clone()));
            let call = Call {
                headers,
                framed,
                message,
                deadline,
                charge: Charge::default(),
                span: Span::default(),
                place: None,
            };
            assert!(runner.evaluate(call).now_or_never().is_none());
        }
        let empty = Call {
            headers: HeaderMap::new(),
            framed: frame(porch_fn_proto::Chunks::default()),
            message: porch_fn_proto::Chunks::default(),
            deadline: Instant::now() + Duration::from_mins(1),
            charge: Charge::default(),
            span: Span::default(),
            place: None,
        };
        assert_eq!(runner.evaluate(empty).await.code(), Code::InvalidArgument);
        let told: Vec<_> = runner.failures().all().into_iter().map(|one| (one.image, one.code)).collect();
        assert_eq!(told, [("example.com/f:v1".to_owned(), "DEADLINE_EXCEEDED")], "nor one that went away");
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(!text.contains("INVALID_ARGUMENT"), "a router's try is no failed call: {text}");
        for code in ["DEADLINE_EXCEEDED", "CANCELLED"] {
            assert!(text.contains(&format!("code=\"{code}\"}} 1")), "{text}");
        }
    }
}
