//! The exec runtime: functions that are executables on the runner's own disk. They need no pod and
//! start at once.

pub(crate) mod queue;

use std::ffi::OsString;
use std::sync::Arc;

use porch_fn_grpc::{Call, Reply};
use porch_fn_image::{Image, shard_key};
use porch_fn_proto::Chunks;
use porch_fn_telemetry::{span, trace_context};
use tokio::sync::watch;
use tonic::Code;
use wrapper_server::outcome;
use wrapper_server::process::{Environment, Program, run};

use self::queue::Queue;
use crate::metrics::{Metrics, Runtime};
use crate::settings::CurrentSettings;

/// Runs local executables, a bounded number at once.
#[derive(Debug)]
pub(crate) struct ExecRuntime {
    /// The settings, which name the executables.
    pub(crate) current: watch::Receiver<CurrentSettings>,
    /// The part of the runner's own environment that functions get.
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) queue: Queue,
    /// The prefix of images without a registry.
    pub(crate) default_prefix: String,
    pub(crate) max_message: usize,
    pub(crate) metrics: Arc<Metrics>,
}

impl ExecRuntime {
    /// Runs `image`. Returns `None` if the image has no executable; the next runtime is then tried.
    /// Dropping the future ends the wait and the process. `parsed` is `image` as a reference, if it
    /// is a valid one.
    pub(crate) async fn evaluate(
        &self,
        image: &str,
        parsed: Option<&Image>,
        tag: &str,
        resource_list: Chunks,
        call: &Call,
    ) -> Option<Reply> {
        let path = self.current.borrow().settings.executable(image, parsed, tag)?.value;
        let (waits, waiting) = (self.metrics.waits(Runtime::Exec), call.span.stage(span::QUEUE_WAIT));
        // All spellings of an image share one queue.
        let Some(_place) = self.queue.place(parsed.map_or(image, Image::as_str)).await else {
            let text = format!(
                "{} calls of this function already wait for the exec runtime, which runs {} at once: retry later, or \
                 raise --max-queue-per-function or --max-parallel-executions",
                self.queue.max_waiting, self.queue.parallel
            );
            self.metrics.rejected(Runtime::Exec, "queue_full");
            return Some(Reply::shed(Code::ResourceExhausted, &text));
        };
        self.metrics.waited(&shard_key(image, tag, &self.default_prefix), waits.granted());
        drop(waiting);
        let (_evaluates, span) = (self.metrics.evaluates(Runtime::Exec), call.span.stage(span::EVALUATION));
        let mut variables = self.environment.clone();
        variables.extend(trace_context::environment(&span.injected(&call.headers)));
        let program = Program::new(path, std::iter::empty::<&str>(), Environment::Only(variables));
        // The server drops this future at the deadline, which ends the process.
        let ran = run(&program, resource_list, &outcome::limits(self.max_message), None).await;
        Some(outcome::reply(outcome::judge_exit, image, ran, self.max_message, ()).await)
    }
}
