//! One call through the runner: the exec runtime first, then pods. The order is fixed.

use porch_fn_image::Image;
use porch_fn_proto::peek;
use porch_fn_service::grpc::{Call, Evaluate, Reply};
use tokio::time::Instant;
use tonic::Code;
use wrapper_server::go_quote;

use std::sync::Arc;

use crate::exec::ExecRuntime;
use crate::metrics::{Metrics, Runtime};
use crate::pods::PodRuntime;

/// The runner's evaluator.
#[derive(Debug)]
pub struct Runner {
    exec: Option<ExecRuntime>,
    pods: Option<PodRuntime>,
    default_prefix: String,
    metrics: Arc<Metrics>,
}

impl Runner {
    /// A runner with these runtimes. With none it answers `NOT_FOUND` to everything. Images without a registry are
    /// those of `default_prefix`.
    pub fn new(
        exec: Option<ExecRuntime>,
        pods: Option<PodRuntime>,
        default_prefix: String,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { exec, pods, default_prefix, metrics }
    }

    async fn run(&self, mut call: Call) -> (Reply, Runtime) {
        let peeked = match peek(&call.message) {
            Ok(peeked) => peeked,
            // What grpc-go's servers answer to a message they cannot unmarshal.
            Err(error) => return (Reply::failed(Code::Internal, &error.to_string()), Runtime::None),
        };
        let image = &*peeked.image;
        if image.is_empty() {
            let text = "the request names no function image";
            return (Reply::failed(Code::InvalidArgument, text), Runtime::None);
        }
        let parsed = Image::parse(image, &self.default_prefix);
        if let Err(refused) = call.charge.claim(parsed.as_ref().map_or(image, Image::as_str)) {
            return (refused.into(), Runtime::None);
        }
        if let Some(exec) = &self.exec {
            let resource_list = call.message.slice(peeked.resource_list.clone());
            let meant = parsed.as_ref().ok();
            if let Some(mut reply) = exec.evaluate(image, meant, &peeked.tag, resource_list).await {
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
        let (started, deadline) = (Instant::now(), call.deadline);
        let mut counted = Counted { metrics: &self.metrics, started, deadline, answer: None };
        let (reply, runtime) = self.run(call).await;
        counted.answer = Some((runtime, reply.code()));
        reply
    }
}

/// Counts its call when it is dropped, since the server drops calls: at their deadlines, and when their callers go
/// away.
struct Counted<'a> {
    metrics: &'a Metrics,
    started: Instant,
    deadline: Instant,
    answer: Option<(Runtime, Code)>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let cut_off = if Instant::now() >= self.deadline { Code::DeadlineExceeded } else { Code::Cancelled };
        let (runtime, code) = self.answer.unwrap_or((Runtime::None, cut_off));
        self.metrics.answered(runtime, code, self.started.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use http::HeaderMap;
    use porch_fn_pool::Config;
    use porch_fn_proto::{encode_request, frame};
    use porch_fn_service::grpc::{Charge, Hop, Inflight};
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::pods::local::{LocalCluster, LocalFunctions, LocalOptions};

    #[tokio::test]
    async fn calls_that_the_server_drops_are_counted() {
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
        let runner = Runner::new(None, Some(pods), "example.com".to_owned(), metrics);
        for wait in [Duration::ZERO, Duration::from_mins(1)] {
            let message = encode_request(bytes::Bytes::new().into(), "f:v1", "");
            let deadline = Instant::now() + wait;
            let (headers, framed) = (HeaderMap::new(), frame(message.clone()));
            let call = Call { headers, framed, message, deadline, charge: Charge::default() };
            assert!(runner.evaluate(call).now_or_never().is_none());
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for code in ["DEADLINE_EXCEEDED", "CANCELLED"] {
            assert!(text.contains(&format!("code=\"{code}\"}} 1")), "{text}");
        }
    }
}
