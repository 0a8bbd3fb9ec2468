//! The threads of a server.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::interval;

/// How often an idle server returns memory.
const RETURN: Duration = Duration::from_secs(5);
/// A block that the allocator keeps for nobody, in bytes. It is never written, so it takes no memory.
const LARGE: usize = 8 * 1024 * 1024;

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
        Ok(runtime) => runtime.block_on(async {
            tokio::select! {
                code = start() => code,
                never = return_memory() => never,
            }
        }),
        Err(error) => {
            tracing::error!(%error, "the threads cannot be started: check the limits of processes and open files");
            ExitCode::FAILURE
        }
    };
    // A panic has printed its message already.
    thread::scope(|scope| scope.spawn(serve).join().unwrap_or(ExitCode::FAILURE))
}

/// Returns what calls have freed to the system. mimalloc does so when a large block is freed a second
/// later, and a server without calls frees none.
async fn return_memory() -> ! {
    let mut turns = interval(RETURN);
    loop {
        turns.tick().await;
        drop(black_box(Vec::<u8>::with_capacity(LARGE)));
    }
}
