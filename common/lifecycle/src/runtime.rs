//! The threads of a server.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::thread;

use tokio::runtime::Builder;

/// Runs the server that `start` returns on `threads` threads (`--worker-threads`), and waits for
/// its end. Other threads run only blocking work, such as the inflation of messages.
///
/// With one thread, a task that wakes another costs no system call, and no switch between threads.
/// The main thread only waits, because the children of the main thread are taken for orphans of
/// function calls (`wrapper_server::process::adopt_orphans`).
pub fn block_on<S: Future<Output = ExitCode>>(
    threads: NonZeroUsize,
    start: impl FnOnce() -> S + Send,
) -> ExitCode {
    let mut builder = match threads.get() {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let serve = || match builder.worker_threads(threads.get()).enable_all().build() {
        Ok(runtime) => runtime.block_on(start()),
        Err(error) => {
            tracing::error!(%error, "the threads cannot be started: check the limits of processes and open files");
            ExitCode::FAILURE
        }
    };
    // A panic has printed its message already.
    thread::scope(|scope| scope.spawn(serve).join().unwrap_or(ExitCode::FAILURE))
}
