//! The process that creates one sandbox and stays its parent. It has one thread until the sandbox
//! runs. The runner is its parent: when standard input closes, the wrapper-server in the sandbox
//! ends, and with it the sandbox.

use std::ffi::OsString;
use std::io::{self, BufRead as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::Mutex;

use porch_fn_images::Options;
use porch_fn_sandbox::{Inside, Payload, Running, Sandbox, SandboxError, start};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use wrapper_server::{Inherited, run_in_sandbox};

/// The first argument of the process.
pub(crate) const NAME: &str = "__sandbox";
/// Begins the line on standard output with which the process reports that there is no sandbox.
pub(in crate::pods::local) const FAILED: &str = "failed: ";

/// The sandbox to create: one line of JSON on standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::pods::local) struct Order {
    pub(super) sandbox: Sandbox,
    /// The image store, to merge the image's layers if they do not stack.
    pub(super) images: Options,
    pub(super) image: String,
    /// The folder of the wrapper-server's socket, and the socket's name.
    pub(super) sockets: PathBuf,
    pub(super) socket: String,
    /// The wrapper-server's arguments, without the function's command.
    pub(super) wrapper: Vec<String>,
}

/// Runs the process, if `args`, program name included, are its command line.
pub fn sandbox_child(args: &[OsString]) -> Option<ExitCode> {
    (args.get(1)? == NAME).then(|| match create() {
        Ok(running) => stay(running),
        Err(error) => {
            // The parent process reads the first line.
            println!("{FAILED}{error}");
            ExitCode::FAILURE
        }
    })
}

fn create() -> Result<Running, String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|error| error.to_string())?;
    let order: Order = serde_json::from_str(&line).map_err(|error| error.to_string())?;
    // The path of a socket is short. It is relative to a folder whose path may be long.
    let listener = std::env::set_current_dir(&order.sockets).and_then(|()| UnixListener::bind(&order.socket));
    let listener = listener.map_err(|error| format!("the wrapper-server's socket: {error}"))?;
    std::env::set_current_dir("/").map_err(|error| error.to_string())?;
    let mut merge = || Err(SandboxError::Merge("not needed any more".to_owned()));
    let payload = serve(listener, order.wrapper.clone());
    start(order.sandbox.clone(), &mut merge, payload, "porch-fn sandbox").map_err(|error| error.to_string())
}

/// Runs the wrapper-server in the sandbox.
fn serve(listener: UnixListener, wrapper: Vec<String>) -> Payload {
    let listener = Mutex::new(Some(listener));
    Payload::Server(Arc::new(move |inside: &Inside| {
        let Some(listener) = listener.lock().ok().and_then(|mut listener| listener.take()) else { return 1 };
        let environment = inside.env.iter().filter_map(|variable| {
            let (name, value) = variable.split_once('=')?;
            Some((name.into(), value.into()))
        });
        let inherited = Inherited { listener, environment: environment.collect() };
        let args = ["wrapper-server".to_owned()].into_iter().chain(wrapper.clone()).chain(["--".to_owned()]);
        let args = args.chain(inside.command.iter().cloned()).map(OsString::from);
        let code = run_in_sandbox(args, inherited);
        u8::from(code != ExitCode::SUCCESS)
    }))
}

/// Waits for the end of the sandbox, and passes SIGTERM on to it.
fn stay(running: Running) -> ExitCode {
    let first = Pid::from_raw(running.pid());
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    runtime.block_on(async move {
        let ended = tokio::task::spawn_blocking(|| running.wait());
        let Ok(mut term) = signal(SignalKind::terminate()) else { return ExitCode::FAILURE };
        tokio::pin!(ended);
        loop {
            tokio::select! {
                ended = &mut ended => {
                    let code = ended.ok().and_then(Result::ok).and_then(|status| status.code());
                    return ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
                }
                _ = term.recv() => if let Some(first) = first {
                    // It may have just ended.
                    let _ = kill_process(first, Signal::TERM);
                }
            }
        }
    })
}
