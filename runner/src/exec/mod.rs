//! The exec runtime: functions that are executables on the runner's own disk. No pod, no start-up time.

mod config;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use porch_fn_proto::Chunks;
use porch_fn_service::grpc::Reply;
use tokio::sync::Semaphore;
use tonic::Code;
use wrapper_server::process::{Environment, Limits, Program, RunError, run};
use wrapper_server::{go_exit_text, go_quote};

pub use config::{ConfigError, Executables};

use crate::environment::environment;
use crate::evaluate::{STDERR_HEAD, STDERR_TAIL};

/// Calls that wait for one of `--max-parallel-executions` places.
const MAX_QUEUE: usize = 1000;

/// Runs local executables, a bounded number at once.
#[derive(Debug)]
pub struct ExecRuntime {
    executables: Executables,
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    places: Arc<Semaphore>,
    parallel: usize,
    waiting: AtomicUsize,
    max_message: usize,
}

impl ExecRuntime {
    /// A runtime for `executables`; `parallel` run at once. `exec_env` names variables to pass on beside
    /// the usual ones.
    pub fn new(executables: Executables, exec_env: &[String], parallel: usize, max_message: usize) -> Self {
        for (image, path) in executables.iter() {
            if path.exists() {
                tracing::info!(image, path = %path.display(), "exec function");
            } else {
                tracing::warn!(image, path = %path.display(), "exec function is missing; see --functions");
            }
        }
        let environment = environment(std::env::vars_os(), exec_env);
        Self {
            executables,
            environment,
            places: Arc::new(Semaphore::new(parallel)),
            parallel,
            waiting: AtomicUsize::new(0),
            max_message,
        }
    }

    /// Runs `image`; `None` if it has no executable, so that the next runtime is asked. Queueing and running end when the future is dropped.
    pub(crate) async fn evaluate(&self, image: &str, resource_list: Chunks) -> Option<Reply> {
        let path = self.executables.find(image)?;
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
        Some(self.run(image, path, resource_list).await)
    }

    async fn run(&self, image: &str, path: &Path, resource_list: Chunks) -> Reply {
        let environment = Environment::Only(self.environment.clone());
        let program = Program::new(path, std::iter::empty::<&str>(), environment);
        let limits = Limits { stdout: self.max_message, stderr_head: STDERR_HEAD, stderr_tail: STDERR_TAIL };
        let quoted = go_quote(image);
        // The server drops this future at the deadline, which ends the process.
        match run(&program, resource_list, &limits, None).await {
            Ok(finished) if finished.status.success() && finished.stdout.is_empty() => {
                let log = finished.stderr.into_bytes();
                let log = String::from_utf8_lossy(&log);
                let text = format!(
                    "Failed to execute function {quoted}: it wrote nothing to standard output ({log})"
                );
                Reply::failed(Code::Internal, &text)
            }
            Ok(finished) if finished.status.success() => {
                let room = self.max_message.saturating_sub(finished.stdout.len()).saturating_sub(64);
                let mut log = finished.stderr.into_bytes();
                log.truncate(room);
                Reply::evaluated(finished.stdout.into(), log)
            }
            Ok(finished) => {
                let log = finished.stderr.into_bytes();
                let (exit, log) = (go_exit_text(finished.status), String::from_utf8_lossy(&log));
                Reply::failed(Code::Internal, &format!("Failed to execute function {quoted}: {exit} ({log})"))
            }
            Err(RunError::StdoutTooLarge { limit }) => Reply::failed(
                Code::ResourceExhausted,
                &format!(
                    "grpc: trying to send message larger than max ({} vs. {limit}): function {quoted} wrote more \
                     than --max-request-body-size allows; raise it on router and runners, and Porch's limit with it",
                    limit + 1
                ),
            ),
            Err(error) => {
                Reply::failed(Code::Internal, &format!("Failed to execute function {quoted}: {error} ()"))
            }
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
