//! The router's process: flags, logs, signals, exit code. Everything else is in the library.

use std::process::ExitCode;

use porch_fn_router::{AppError, Flags, start};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let flags: Flags = match porch_fn_flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(error) => return error.report(),
    };
    let log = porch_fn_telemetry::init("porch-fn-router", flags.server.log_level, flags.server.log_format);
    let threads = flags.server.worker_threads;
    porch_fn_lifecycle::block_on(threads, || porch_fn_lifecycle::run(log, start(flags), AppError::exit_code))
}
