//! The runner's process: flags, logs, signals, exit code. Everything else is in the library.

use std::process::ExitCode;

use porch_fn_runner::{App, Flags, Pods};
use porch_fn_service::lifecycle::StopSignals;
use porch_fn_service::{flags, telemetry};
use wrapper_server::process::adopt_orphans;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let (flags, set) = match flags::parse_with_set::<Flags>(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => return error.report(),
    };
    telemetry::init(flags.log_level);
    adopt_orphans();
    let Ok(mut signals) = StopSignals::catch() else {
        eprintln!("porch-fn-runner: cannot catch SIGTERM and SIGINT");
        return ExitCode::FAILURE;
    };
    let mut app = match App::start(flags, &set, Pods::Flags).await {
        Ok(app) => app,
        Err(error) => {
            eprintln!("porch-fn-runner: {error}");
            return error.exit_code();
        }
    };
    println!("porch-fn-runner: listening on {}, admin on {}", app.address(), app.admin_address());
    let code = signals.first(app.failed()).await;
    signals.drain(app.drain()).await;
    code
}
