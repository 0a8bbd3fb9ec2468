//! The runner's process: flags, logs, signals, exit code. Everything else is in the library.

use std::process::ExitCode;

use porch_fn_runner::{AppError, Flags, start};
use wrapper_server::process::adopt_orphans;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let (flags, set) = match porch_fn_flags::parse_with_set::<Flags>(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => return error.report(),
    };
    let log = porch_fn_telemetry::init("porch-fn-runner", flags.server.log_level, flags.server.log_format);
    adopt_orphans();
    let threads = flags.server.worker_threads;
    porch_fn_lifecycle::block_on(threads, move || async move {
        porch_fn_lifecycle::run(log, start(flags, &set, None), AppError::exit_code).await
    })
}
