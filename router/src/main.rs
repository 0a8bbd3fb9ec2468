//! The router's process: flags, logs, signals, exit code. Everything else is in the library.

use std::process::ExitCode;

use porch_fn_router::{App, Flags};
use porch_fn_service::lifecycle::StopSignals;
use porch_fn_service::{flags, telemetry};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let flags: Flags = match flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(error) => return error.report(),
    };
    telemetry::init(flags.log_level);
    let Ok(mut signals) = StopSignals::catch() else {
        eprintln!("porch-fn-router: cannot catch SIGTERM and SIGINT");
        return ExitCode::FAILURE;
    };
    let mut app = match App::start(flags).await {
        Ok(app) => app,
        Err(error) => {
            eprintln!("porch-fn-router: {error}");
            return error.exit_code();
        }
    };
    println!("porch-fn-router: listening on {}, admin on {}", app.address(), app.admin_address());
    let code = signals.first(app.failed()).await;
    signals.drain(app.drain()).await;
    code
}
