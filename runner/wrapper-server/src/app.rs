//! Wires the wrapper-server, and runs it as a process.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use porch_fn_flags::Ignored;
use porch_fn_grpc::listen::{ListenError, Listener, listen};
use porch_fn_grpc::serve;
use porch_fn_grpc::{ADDED_HEADERS, CALL_OVERHEAD, Hop, Inflight, MAX_REQUEST_HEADERS, Server};
use porch_fn_lifecycle::drain;
use porch_fn_lifecycle::health::Health;
use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_lifecycle::{App, DrainTimes};
use porch_fn_telemetry::Log;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot};

use crate::announce::{Announcement, without_announcement};
use crate::config::{self, Flags};
use crate::health_probe;
use crate::install::{self, copy_to, idle};
use crate::process::{Environment, Program, adopt_orphans};
use crate::service::Wrapper;

/// Largest number of concurrent connections. Each runner needs one.
const MAX_CONNECTIONS: usize = 1000;
/// Maximum calls at once on one connection, run or refused. A runner sends `--max-concurrent-per-pod`.
const MAX_STREAMS: u32 = 1000;

/// Where a wrapper-server in a sandbox listens, and what its function gets. The process of a
/// sandbox was not started with `exec`, so it has no environment of its own.
#[derive(Debug)]
pub struct Inherited {
    /// An open socket.
    pub listener: std::os::unix::net::UnixListener,
    /// The function's whole environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// Binds the port and serves.
///
/// # Errors
/// Returns an error only if the port cannot be bound. If the function is not found, each call
/// returns that error.
pub async fn start(flags: &Flags) -> Result<App, ListenError> {
    let (listener, address) = listen(flags.address, flags.port, "--port")?;
    let announcement = Announcement::of(|name| std::env::var_os(name));
    let environment = match announcement {
        Some(_) => Environment::Only(without_announcement(std::env::vars_os())),
        None => Environment::Inherit,
    };
    Ok(serve_on(Listener::Tcp(listener), Some(address), environment, announcement, flags))
}

fn serve_on(
    listener: Listener,
    address: Option<SocketAddr>,
    environment: Environment,
    announcement: Option<Announcement>,
    flags: &Flags,
) -> App {
    let (signal, drain) = drain::channel();
    let health = Health::new();
    let mut words = flags.entrypoint.iter().cloned();
    let program = Program::new(words.next().unwrap_or_default(), words, environment);
    if let Err(error) = program.executable() {
        tracing::error!(%error, "the function's entry point cannot be run");
    }
    let max_calls = flags.max_concurrent_calls;
    let wrapper = Wrapper {
        program,
        max_message: flags.max_request_body_size,
        flatten_log: flags.flatten_log,
        max_calls,
        free: Arc::new(Semaphore::new(max_calls.clamp(1, Semaphore::MAX_PERMITS))),
    };
    // Calls whose messages are not complete have this limit of their own.
    let limit = flags.max_request_body_size.saturating_add(CALL_OVERHEAD).saturating_mul(max_calls.max(2));
    let options = porch_fn_grpc::Options {
        max_message: flags.max_request_body_size,
        max_headers: MAX_REQUEST_HEADERS + ADDED_HEADERS,
        default_timeout: flags.request_timeout.into(),
        // The runner sets the deadlines.
        max_timeout: Duration::MAX,
        inflight: Inflight::new(limit, Hop::Wrapper),
        report_load: false,
        observer: None,
        tracer: None,
    };
    let service = Server::new(Arc::new(wrapper), &health, options);
    let handler = move |request| {
        let service = Arc::clone(&service);
        async move { service.handle(request).await }
    };
    let mut tasks = Tasks::new();
    let listening =
        serve::Options { max_streams: MAX_STREAMS, ..serve::Options::between_hops(MAX_CONNECTIONS) };
    tasks.keep(tracing::info_span!("serve"), serve::serve(listener, None, listening, handler, drain));
    health.set("", true);
    if let Some(announcement) = announcement {
        tasks.spawn(tracing::info_span!("announce"), announcement.send());
    }
    // No drain delay: only runners send calls here, and they see that the pod terminates.
    let drain_times = DrainTimes { delay: Duration::ZERO, timeout: flags.drain_timeout.into() };
    App { address, admin_address: None, health, signal, drain_times, tasks, at_end: Vec::new() }
}

/// Runs the program with its arguments and returns its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().peekable();
    let called = args.peek().and_then(|program| Path::new(program).file_name()).map(OsStr::to_owned);
    if called.as_deref() == Some(install::CP.as_ref()) {
        return install::run_cp(args.skip(1));
    }
    if called.as_deref() == Some(health_probe::NAME.as_ref()) {
        return health_probe::run(args);
    }
    let (flags, ignored) = match Flags::from_args(args) {
        Ok(parsed) => parsed,
        Err(error) => return error.report(),
    };
    let log = porch_fn_telemetry::init(config::NAME, flags.verbosity, flags.log_format);
    if ignored != Ignored::default() {
        tracing::warn!(
            flags = ignored.flags.join(" "),
            other_words = ignored.words,
            "unknown arguments are ignored: remove them from the args of the pod template"
        );
    }
    // Runners of the version before set it.
    if std::env::var_os("PORCH_FN_PRESTART").is_some() {
        tracing::warn!(
            "the variable PORCH_FN_PRESTART has no effect any more: remove it from the pod template"
        );
    }
    if let Some(directory) = &flags.copy_to {
        return copy_to(directory);
    }
    if flags.idle {
        return idle();
    }
    serve_with(log, &flags, None)
}

/// Runs the server in a sandbox, with the flags in `args`, and returns its exit code.
pub fn run_in_sandbox(args: impl IntoIterator<Item = OsString>, inherited: Inherited) -> ExitCode {
    match Flags::from_args(args) {
        Ok((flags, _)) => {
            let log = porch_fn_telemetry::init(config::NAME, flags.verbosity, flags.log_format);
            serve_with(log, &flags, Some(inherited))
        }
        Err(error) => error.report(),
    }
}

fn serve_with(log: Log, flags: &Flags, inherited: Option<Inherited>) -> ExitCode {
    adopt_orphans();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log.failed(&format_args!("cannot start threads: {error}; raise the pod's limit of processes"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(serve_until_stopped(log, flags, inherited));
    // Cancels the remaining calls. Waits at most a second for a thread that checks a large output.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

async fn serve_until_stopped(log: Log, flags: &Flags, inherited: Option<Inherited>) -> ExitCode {
    let started = async {
        let Some(Inherited { listener, environment }) = inherited else {
            return start(flags).await.map_err(text);
        };
        listener.set_nonblocking(true).map_err(text)?;
        let listener = UnixListener::from_std(listener).map_err(text)?;
        Ok(serve_on(Listener::Unix(listener), None, Environment::Only(environment), None, flags))
    };
    tokio::select! {
        code = porch_fn_lifecycle::run(log, started, |_: &String| ExitCode::FAILURE) => code,
        () = stdin_closed(), if flags.exit_with_stdin => ExitCode::SUCCESS,
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Returns when the other end of standard input is closed.
async fn stdin_closed() {
    let (sender, closed) = oneshot::channel::<()>();
    // This read cannot be cancelled. Tokio would wait for it at the end, so it has its own thread.
    thread::spawn(move || {
        // An error also means that the other end is gone.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        drop(sender);
    });
    let _ = closed.await;
}
