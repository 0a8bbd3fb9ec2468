//! The exec runtime: functions that are executables on the runner's own disk. No pod, no start-up time.

mod hash;
mod queue;
mod turns;

use std::path::Path;
use std::sync::Arc;

use http::HeaderMap;
use porch_fn_grpc::{Call, Reply};
use porch_fn_image::Image;
use porch_fn_proto::Chunks;
use porch_fn_telemetry::span;
use porch_fn_telemetry::trace_context;
use tokio::sync::watch;
use tonic::Code;
use wrapper_server::outcome;
use wrapper_server::process::{Environment, Program, run};

pub(crate) use self::hash::ExecHash;
use self::queue::Queue;
use crate::environment::environment;
use crate::metrics::{Metrics, Runtime};
use crate::settings::CurrentSettings;

/// Runs local executables, a bounded number at once.
#[derive(Debug)]
pub struct ExecRuntime {
    current: watch::Receiver<CurrentSettings>,
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    queue: Queue,
    parallel: usize,
    max_waiting: usize,
    max_message: usize,
    metrics: Arc<Metrics>,
}

impl ExecRuntime {
    /// A runtime for the executables that the settings name; `parallel` run at once (zero counts as one), and
    /// `max_waiting` of each image wait. `exec_env` names variables to pass on beside the usual ones.
    pub(crate) fn new(
        current: watch::Receiver<CurrentSettings>,
        exec_env: &[String],
        parallel: usize,
        max_waiting: usize,
        max_message: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        let environment = environment(std::env::vars_os(), exec_env);
        let parallel = parallel.max(1);
        let queue = Queue::new(parallel, max_waiting);
        Self { current, environment, queue, parallel, max_waiting, max_message, metrics }
    }

    /// Runs `image`; `None` if it has no executable, so that the next runtime is asked. Queueing and running
    /// end when the future is dropped. `parsed` is what `image` means, if anything; `call` has the rest.
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
        // However an image is written, it is one.
        let Ok(_turn) = self.queue.turn(parsed.map_or(image, Image::as_str)).await else {
            let text = format!(
                "{} calls of this function already wait for the exec runtime, which runs {} at once: retry later, or \
                 raise --max-queue-per-function or --max-parallel-executions",
                self.max_waiting, self.parallel
            );
            self.metrics.rejected(Runtime::Exec, "queue_full");
            return Some(Reply::shed(Code::ResourceExhausted, &text));
        };
        waits.granted();
        drop(waiting);
        let (_evaluates, span) = (self.metrics.evaluates(Runtime::Exec), call.span.stage(span::EVALUATION));
        Some(self.run(image, &path, resource_list, &span.injected(&call.headers)).await)
    }

    async fn run(&self, image: &str, path: &Path, resource_list: Chunks, headers: &HeaderMap) -> Reply {
        let environment = Environment::Only(self.environment.clone());
        let program = Program::new(path, std::iter::empty::<&str>(), environment);
        let program = program.with_variables(trace_context::environment(headers));
        // The server drops this future at the deadline, which ends the process.
        let ran = run(&program, resource_list, &outcome::limits(self.max_message), None).await;
        outcome::reply(outcome::judge_exit, image, ran, self.max_message, ()).await
    }
}

#[cfg(test)]
mod tests {
    use porch_fn_grpc::{Hop, Inflight};
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn any_number_of_places_is_accepted() {
        let (_task, current) = crate::settings::tests::nothing();
        let metrics = Arc::new(Metrics::new(&mut Registry::default(), &Inflight::new(0, Hop::Runner)));
        for (asked, given) in [(0, 1), (3, 3), (usize::MAX, usize::MAX)] {
            let runtime = ExecRuntime::new(current.clone(), &[], asked, 0, 1024, Arc::clone(&metrics));
            assert_eq!(runtime.parallel, given);
        }
    }
}
