//! One call through the runner: the exec runtime first, then pods. The order is fixed.

use porch_fn_proto::peek;
use porch_fn_service::grpc::{Call, Evaluate, Reply};
use tokio::time::Instant;
use tonic::Code;
use wrapper_server::go_quote;

use std::sync::Arc;

use crate::exec::ExecRuntime;
use crate::metrics::{Metrics, Runtime};
use crate::pods::PodRuntime;

/// What is kept of a function's standard error, in bytes, at either end.
pub(crate) const STDERR_HEAD: usize = 32 * 1024;
pub(crate) const STDERR_TAIL: usize = 32 * 1024;

/// The runner's evaluator.
#[derive(Debug)]
pub struct Runner {
    exec: Option<ExecRuntime>,
    pods: Option<PodRuntime>,
    metrics: Arc<Metrics>,
}

impl Runner {
    /// A runner with these runtimes. With none it answers `NOT_FOUND` to everything.
    pub fn new(exec: Option<ExecRuntime>, pods: Option<PodRuntime>, metrics: Arc<Metrics>) -> Self {
        Self { exec, pods, metrics }
    }

    async fn run(&self, call: Call) -> (Reply, Runtime) {
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
        if let Some(exec) = &self.exec {
            let resource_list = call.message.slice(peeked.resource_list.clone());
            if let Some(reply) = exec.evaluate(image, resource_list).await {
                return (reply, Runtime::Exec);
            }
        }
        if let Some(pods) = &self.pods
            && let Some(reply) = pods.evaluate(image, &peeked.tag, &call).await
        {
            return (reply, Runtime::Pod);
        }
        let text = format!("function {} not found", go_quote(image));
        (Reply::failed(Code::NotFound, &text), Runtime::None)
    }
}

impl Evaluate for Runner {
    async fn evaluate(&self, call: Call) -> Reply {
        let started = Instant::now();
        let (reply, runtime) = self.run(call).await;
        self.metrics.answered(runtime, reply.code(), started.elapsed());
        reply
    }
}
