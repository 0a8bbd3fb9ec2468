//! The runner's process: flags, logs, signals, exit code. Everything else is in the library.

use std::process::ExitCode;

use porch_fn_runner::{AppError, Flags, start};
use wrapper_server::process::adopt_orphans;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let (flags, set) = match porch_fn_flags::parse_with_set::<Flags>(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => return error.report(),
    };
    porch_fn_telemetry::init(flags.server.log_level);
    adopt_orphans();
    porch_fn_lifecycle::run("porch-fn-runner", start(flags, &set, None), AppError::exit_code).await
}
