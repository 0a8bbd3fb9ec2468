//! The tasks of a server. No task may end unnoticed: without its discovery task, a server would
//! look healthy but use old data.
//!
//! [`Tasks::failed`] names the task that ended. The process then drains and exits with code 1, so
//! that it is restarted. Tasks of single connections and calls are not included: a panic there ends
//! only that connection or call.

use std::any::Any;
use std::future::{Future, pending};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tracing::{Instrument, Span};

/// A task that panics drops its channels. This may end a second task, and its result may arrive
/// first. So [`Tasks::failed`] waits this long for a panic.
const CAUSE_WAIT: Duration = Duration::from_secs(1);

/// The tasks of a server. Dropping this ends all tasks.
#[derive(Debug, Default)]
pub struct Tasks {
    running: JoinSet<Ended>,
}

/// A task that ended, by a panic or normally.
struct Ended {
    task: &'static str,
    may_end: bool,
    result: Result<(), Box<dyn Any + Send>>,
}

/// Why the server must stop: one of its tasks ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// The task panicked.
    #[error("task {task:?} panicked ({message}): this is a bug, report it with the log")]
    Panicked {
        /// The task's name.
        task: &'static str,
        /// The panic's message.
        message: String,
    },
    /// The task returned.
    #[error("task {task:?} ended while the server was running; see the log")]
    Ended {
        /// The task's name.
        task: &'static str,
    },
}

// === impl Tasks ===

impl Tasks {
    /// Creates an empty set of tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task that lives as long as the server. The name of `span` becomes the task's name.
    pub fn keep(&mut self, span: Span, task: impl Future<Output = ()> + Send + 'static) {
        self.start(span, task, false);
    }

    /// Starts a task that may end when its work is done.
    pub fn spawn(&mut self, span: Span, task: impl Future<Output = ()> + Send + 'static) {
        self.start(span, task, true);
    }

    fn start(&mut self, span: Span, future: impl Future<Output = ()> + Send + 'static, may_end: bool) {
        let task = span.metadata().map_or("task", |metadata| metadata.name());
        let future = AssertUnwindSafe(test_panic::or(task, future)).catch_unwind();
        self.running.spawn(async move { Ended { task, may_end, result: future.await } }.instrument(span));
    }

    /// Returns when a task has ended unexpectedly. If another task panics directly after it, the
    /// panic is the cause and is returned instead.
    pub async fn failed(&mut self) -> Failed {
        let failed = self.next_failed().await;
        match failed {
            Failed::Panicked { .. } => failed,
            Failed::Ended { .. } => timeout(CAUSE_WAIT, self.next_panicked()).await.unwrap_or(failed),
        }
    }

    async fn next_panicked(&mut self) -> Failed {
        loop {
            let failed = self.next_failed().await;
            if matches!(failed, Failed::Panicked { .. }) {
                return failed;
            }
        }
    }

    async fn next_failed(&mut self) -> Failed {
        while let Some(ended) = self.running.join_next().await {
            match ended {
                Ok(Ended { task, result: Err(panic), .. }) => {
                    return Failed::Panicked { task, message: message(&*panic).to_owned() };
                }
                Ok(Ended { task, may_end: false, .. }) => return Failed::Ended { task },
                Ok(_) | Err(_) => {}
            }
        }
        pending().await
    }

    /// Ends all tasks.
    pub async fn shutdown(&mut self) {
        self.running.shutdown().await;
    }
}

/// Panics if a task panicked. `ended` is the result of that task from a `JoinSet`.
pub fn pass_on_panic<T>(ended: Result<T, JoinError>) {
    if let Err(error) = ended
        && let Ok(payload) = error.try_into_panic()
    {
        std::panic::resume_unwind(payload);
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    payload.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no message")
}

/// Lets tests make a task panic. With `PORCH_FN_TEST_PANIC=NAME@FILE`, the task of this name panics
/// when the file exists. Release builds ignore the variable.
pub mod test_panic {
    use std::future::Future;

    /// Runs `task`, and panics if a test requests it.
    pub async fn or<F: Future>(name: &'static str, task: F) -> F::Output {
        if !cfg!(debug_assertions) {
            return task.await;
        }
        let asked = std::env::var("PORCH_FN_TEST_PANIC").ok();
        let file = asked.as_deref().and_then(|asked| asked.split_once('@')).filter(|(task, _)| *task == name);
        let Some((_, file)) = file else { return task.await };
        let panic = async {
            while !std::path::Path::new(file).exists() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            panic!("a test asked for it");
        };
        tokio::select! {
            output = task => output,
            () = panic => unreachable!("it panicked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tracing::info_span;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_or_ends_too_early_is_named() {
        let mut tasks = Tasks::new();
        tasks.keep(info_span!("lives"), pending());
        tasks.spawn(info_span!("once"), async {});
        tokio::task::yield_now().await;
        assert_eq!(tasks.failed().now_or_never(), None);
        tasks.keep(info_span!("ends"), async {});
        assert_eq!(tasks.failed().await, Failed::Ended { task: "ends" });
        tasks.spawn(info_span!("panics"), async { panic!("number {}", 1) });
        let message = "number 1".to_owned();
        assert_eq!(tasks.failed().await, Failed::Panicked { task: "panics", message });
        tasks.shutdown().await;
        assert_eq!(tasks.failed().now_or_never(), None, "a task that was shut down has not failed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_named_and_not_the_task_that_ends_because_of_it() {
        let (sender, receiver) = oneshot::channel();
        let mut tasks = Tasks::new();
        tasks.keep(info_span!("effect"), async move { _ = receiver.await });
        tasks.keep(info_span!("cause"), async move {
            drop::<oneshot::Sender<()>>(sender);
            // The dropped sender ends the task `effect` half of `CAUSE_WAIT` before the panic.
            tokio::time::sleep(CAUSE_WAIT / 2).await;
            panic!("lost");
        });
        let message = "lost".to_owned();
        assert_eq!(tasks.failed().await, Failed::Panicked { task: "cause", message });
    }

    #[tokio::test]
    async fn a_panic_of_a_task_reaches_its_owner() {
        let mut owned = JoinSet::new();
        owned.spawn(async { panic!("boom") });
        let mut tasks = Tasks::new();
        let owner = async move { owned.join_next().await.into_iter().for_each(pass_on_panic) };
        tasks.spawn(info_span!("owner"), owner);
        let message = "boom".to_owned();
        assert_eq!(tasks.failed().await, Failed::Panicked { task: "owner", message });
    }
}
