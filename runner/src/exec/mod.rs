//! The exec runtime: functions that are executables on the runner's own disk. No pod, no start-up time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use porch_fn_image::Image;
use porch_fn_proto::Chunks;
use porch_fn_service::grpc::Reply;
use tokio::sync::{Semaphore, watch};
use tonic::Code;
use wrapper_server::outcome;
use wrapper_server::process::{Environment, Program, run};

use crate::environment::environment;
use crate::settings::Current;

/// Calls that wait for one of `--max-parallel-executions` places.
const MAX_QUEUE: usize = 1000;

/// Runs local executables, a bounded number at once.
#[derive(Debug)]
pub struct ExecRuntime {
    current: watch::Receiver<Current>,
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    places: Arc<Semaphore>,
    parallel: usize,
    waiting: AtomicUsize,
    max_message: usize,
}

impl ExecRuntime {
    /// A runtime for the executables that the settings name; `parallel` run at once (zero counts as one). `exec_env`
    /// names variables to pass on beside the usual ones.
    pub(crate) fn new(
        current: watch::Receiver<Current>,
        exec_env: &[String],
        parallel: usize,
        max_message: usize,
    ) -> Self {
        let environment = environment(std::env::vars_os(), exec_env);
        let parallel = parallel.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            current,
            environment,
            places: Arc::new(Semaphore::new(parallel)),
            parallel,
            waiting: AtomicUsize::new(0),
            max_message,
        }
    }

    /// Runs `image`; `None` if it has no executable, so that the next runtime is asked. Queueing and running
    /// end when the future is dropped. `parsed` is what `image` means, if anything.
    pub(crate) async fn evaluate(
        &self,
        image: &str,
        parsed: Option<&Image>,
        tag: &str,
        resource_list: Chunks,
    ) -> Option<Reply> {
        let path = self.current.borrow().settings.executable(image, parsed, tag)?.value;
        let Some(waiting) = Waiting::enter(&self.waiting) else {
            let text = format!(
                "{MAX_QUEUE} calls already wait for the exec runtime, which runs {} at once: retry later, or raise \
                 --max-parallel-executions",
                self.parallel
            );
            return Some(Reply::shed(Code::ResourceExhausted, &text));
        };
        // The semaphore is never closed.
        let _place = self.places.acquire().await;
        drop(waiting);
        Some(self.run(image, &path, resource_list).await)
    }

    async fn run(&self, image: &str, path: &Path, resource_list: Chunks) -> Reply {
        let environment = Environment::Only(self.environment.clone());
        let program = Program::new(path, std::iter::empty::<&str>(), environment);
        // The server drops this future at the deadline, which ends the process.
        let ran = run(&program, resource_list, &outcome::limits(self.max_message), None).await;
        match outcome::judge_exit(image, ran, self.max_message) {
            Ok(evaluated) => Reply::evaluated(evaluated.resource_list.into(), evaluated.log),
            Err(failure) => Reply::failed(failure.code, &failure.message),
        }
    }
}

/// A place in the queue.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(waiting: &'a AtomicUsize) -> Option<Self> {
        if waiting.fetch_add(1, Ordering::Relaxed) < MAX_QUEUE {
            return Some(Self(waiting));
        }
        waiting.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_places_is_accepted() {
        let (_task, current) = crate::settings::tests::nothing();
        for (asked, given) in [(0, 1), (3, 3), (usize::MAX, Semaphore::MAX_PERMITS)] {
            assert_eq!(ExecRuntime::new(current.clone(), &[], asked, 1024).parallel, given);
        }
    }
}
