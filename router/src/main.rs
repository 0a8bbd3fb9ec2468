//! The router's process: flags, logs, signals, exit code. Everything else is in the library.

use std::process::ExitCode;

use porch_fn_router::{AppError, Flags, start};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let flags: Flags = match porch_fn_flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(error) => return error.report(),
    };
    porch_fn_telemetry::init(flags.server.log_level);
    porch_fn_lifecycle::run("porch-fn-router", start(flags), AppError::exit_code).await
}
