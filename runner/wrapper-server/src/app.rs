//! Wires the wrapper-server, and runs it as a process.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_service::drain;
use porch_fn_service::flags::Ignored;
use porch_fn_service::grpc::{self, Server};
use porch_fn_service::health::Health;
use porch_fn_service::lifecycle::{self, DrainTimes, Drained, StopSignals};
use porch_fn_service::listen::{ListenError, listen};
use porch_fn_service::tasks::{Failed, Tasks};
use porch_fn_service::{serve, telemetry};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;

use crate::config::Flags;
use crate::copy;
use crate::health_probe;
use crate::install::{copy_to, idle};
use crate::process::{Environment, Program, adopt_orphans};
use crate::service::Wrapper;

/// Connections at once. Its runner needs one.
const MAX_CONNECTIONS: usize = 1000;

/// A running wrapper. Dropping it ends calls in flight and their processes.
#[derive(Debug)]
pub struct App {
    address: SocketAddr,
    health: Health,
    signal: drain::Signal,
    drain_times: DrainTimes,
    tasks: Tasks,
}

impl App {
    /// Binds the port and serves. Returns an error only for the port: a function that cannot be found is
    /// told to each caller.
    pub async fn start(flags: &Flags) -> Result<Self, ListenError> {
        let (listener, address) = listen(flags.address, flags.port, "--port").await?;
        let (signal, drain) = drain::channel();
        let health = Health::new();
        let (name, args) = flags
            .entrypoint
            .split_first()
            .map_or((OsString::new(), &[][..]), |(name, args)| (name.clone(), args));
        let program = Program::new(name, args, Environment::Inherit);
        if let Err(error) = program.executable() {
            tracing::error!(%error, "the function's entry point cannot be run");
        }
        let wrapper = Wrapper::new(program, flags.max_request_body_size, flags.flatten_log);
        let options = grpc::Options {
            max_message: flags.max_request_body_size,
            default_timeout: flags.request_timeout.into(),
            // Its runner says how long.
            max_timeout: Duration::MAX,
            default_timeout_text: "no answer within --request-timeout, which bounds calls without a deadline",
            // Its places bound what is held.
            inflight: None,
            places: Some(Wrapper::places(flags.max_concurrent_calls)),
            tell_load: false,
            observer: None,
            tracer: None,
        };
        let service = Server::new(Arc::new(wrapper), &health, options);
        let handler = move |request| {
            let service = Arc::clone(&service);
            async move { service.handle(request).await }
        };
        let mut tasks = Tasks::new();
        let listening = serve::Options { max_age: None, max_connections: MAX_CONNECTIONS };
        tasks.keep(
            tracing::info_span!("serve"),
            serve::serve(listener, serve::Plain, listening, handler, drain),
        );
        health.set("", true);
        // Nothing routes to a wrapper but its runner, which sees the pod terminate: no delay.
        let drain_times = DrainTimes { delay: Duration::ZERO, timeout: flags.drain_timeout.into() };
        Ok(Self { address, health, signal, drain_times, tasks })
    }

    /// Where calls are taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns when a part of it ended that should not have. Then it can only be drained.
    pub async fn failed(&mut self) -> Failed {
        self.tasks.failed().await
    }

    /// Stops accepting, finishes calls in flight, and ends those that outlast the deadline.
    pub async fn drain(mut self) -> Drained {
        let drained = lifecycle::drain(&self.health, &mut self.signal, self.drain_times).await;
        self.tasks.shutdown().await;
        drained
    }
}

/// The whole process, from its arguments to its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().peekable();
    let called = args.peek().and_then(|program| Path::new(program).file_name()).map(OsStr::to_owned);
    if called.as_deref() == Some(copy::NAME.as_ref()) {
        return copy::run(args.skip(1));
    }
    if called.as_deref() == Some(health_probe::NAME.as_ref()) {
        return health_probe::run(args.skip(1));
    }
    let (flags, ignored) = match Flags::from_args(args) {
        Ok(parsed) => parsed,
        Err(error) => return error.report(),
    };
    telemetry::init(flags.verbosity);
    if ignored != Ignored::default() {
        tracing::warn!(
            flags = ignored.flags.join(" "),
            other_words = ignored.words,
            "arguments that this wrapper-server does not know are ignored: remove them from the args of the pod template"
        );
    }
    if let Some(directory) = &flags.copy_to {
        return match copy_to(directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("wrapper-server: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if flags.idle {
        return idle();
    }
    adopt_orphans();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("wrapper-server: cannot start threads: {error}; raise the pod's limits");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(serve_until_stopped(&flags));
    // A read of a standard input that is no pipe cannot be cancelled; waiting for it would keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

async fn serve_until_stopped(flags: &Flags) -> ExitCode {
    let Ok(mut signals) = StopSignals::catch() else {
        eprintln!("wrapper-server: cannot catch SIGTERM and SIGINT");
        return ExitCode::FAILURE;
    };
    let mut app = match App::start(flags).await {
        Ok(app) => app,
        Err(error) => {
            eprintln!("wrapper-server: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("wrapper-server: listening on {}", app.address());
    let serve = async {
        let code = signals.first(app.failed()).await;
        signals.drain(app.drain()).await;
        code
    };
    tokio::select! {
        code = serve => code,
        () = stdin_closed(), if flags.exit_with_stdin => ExitCode::SUCCESS,
    }
}

/// Returns when whoever holds the other end of standard input is gone.
async fn stdin_closed() {
    // Tokio's own stdin blocks a thread, which would hold up the exit.
    let pipe = std::io::stdin().as_fd().try_clone_to_owned().and_then(pipe::Receiver::from_owned_fd);
    match pipe {
        Ok(pipe) => end_of(pipe).await,
        Err(_no_pipe) => end_of(tokio::io::stdin()).await,
    }
}

async fn end_of(mut input: impl AsyncRead + Unpin) {
    let mut ignored = [0; 256];
    while matches!(input.read(&mut ignored).await, Ok(1..)) {}
}
