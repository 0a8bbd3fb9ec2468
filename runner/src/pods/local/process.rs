//! The process of one local pod: a wrapper-server that ends when the runner ends, or the parent of
//! a sandbox with one.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_flags::LogFormat;
use porch_fn_pool::Reason;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;
use wrapper_server::go_exit_text;
use wrapper_server::process::collect_orphans;

use super::sandboxes::Sandboxes;
use crate::environment::environment;
use crate::pods::commands::ImageCommands;

/// Options of all local pods.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// The wrapper-server's command line, without its flags.
    pub wrapper: Vec<OsString>,
    /// `--max-request-body-size` for the wrapper.
    pub max_message: usize,
    /// `--log-level` for the wrapper.
    pub log_level: u8,
    /// `--log-format` for the wrapper.
    pub log_format: LogFormat,
    /// The command of each image that runs as a process of this machine.
    pub functions: ImageCommands,
    /// Sandboxes for all other images.
    pub sandboxes: Option<Arc<dyn Sandboxes>>,
}

/// Where a pod's wrapper listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A port of loopback.
    Tcp(SocketAddr),
    /// A socket, for the wrapper in a sandbox.
    Unix(PathBuf),
}

/// How long a stopping pod may wait for its calls before it ends them.
pub const GRACE: Duration = Duration::from_secs(10);

/// How long the pod may then take to end its functions and itself.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// Runs a pod's process until it ends, and passes its address to `listening`. Dropping the sender of
/// `stopped` stops it, and the result is `None`. If it ends by itself, the result is the reason.
pub(super) async fn run(
    options: &LocalOptions,
    command: &[String],
    stopped: &mut oneshot::Receiver<Infallible>,
    listening: impl FnOnce(Place),
) -> Option<Reason> {
    let mut child = match spawn_wrapper(options, command) {
        Ok(spawned) => spawned,
        Err(error) => {
            let text = format!("the wrapper-server cannot be started: {error}; see --wrapper-server");
            return Some(Reason::new("exited", text));
        }
    };
    // Keeps stdin open, because `wait` would close it. When this process or this future ends, the
    // wrapper's stdin closes, so the wrapper ends its functions and itself. A killed wrapper would
    // leave its functions running.
    let _stdin = child.stdin.take();
    let mut stdout = child.stdout.take();
    let ended = async {
        if let Some(address) = first_line(stdout.as_mut()).await {
            listening(Place::Tcp(address));
        }
        child.wait().await
    };
    let failure = tokio::select! {
        ended = ended => Some(match ended {
            Ok(status) => Reason::new("exited", format!(
                "its process ended ({}); run its command from --local-functions by hand to see why",
                go_exit_text(status)
            )),
            Err(error) => Reason::new("exited", format!("the runner cannot wait for its process: {error}")),
        }),
        Err(_) = stopped => {
            stop(&mut child).await;
            None
        }
    };
    // A killed wrapper leaves its functions running. They are now children of this process, which
    // kills them here.
    collect_orphans();
    failure
}

fn spawn_wrapper(options: &LocalOptions, command: &[String]) -> io::Result<Child> {
    let (program, leading) = options.wrapper.split_first().ok_or(ErrorKind::InvalidInput)?;
    Command::new(program)
        .args(leading)
        .args(["--address=127.0.0.1", "--port=0"])
        .args(options.wrapper_args())
        .arg("--")
        .args(command)
        .env_clear()
        .envs(environment(&[]))
        // An interrupt from the terminal must reach only the runner, which drains and then ends its
        // pods.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

/// Reads the first line: `...listening on ADDRESS`, or an object with the field `address`.
async fn first_line(stdout: Option<&mut ChildStdout>) -> Option<SocketAddr> {
    let mut line = String::new();
    BufReader::new(stdout?).read_line(&mut line).await.ok()?;
    match serde_json::from_str::<Value>(&line) {
        Ok(object) => object["address"].as_str().and_then(|address| address.parse().ok()),
        Err(_) => line.trim_end().rsplit(' ').next().and_then(|address| address.parse().ok()),
    }
}

async fn stop(child: &mut Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The process may have just ended, so an error is ignored.
        let _ = kill_process(pid, Signal::TERM);
    }
    if timeout(GRACE + LAST_GRACE, child.wait()).await.is_err() {
        tracing::warn!("a local pod did not end and is killed");
        let _ = child.kill().await;
    }
}

// === impl LocalOptions ===

impl LocalOptions {
    /// The wrapper's flags, without its address.
    pub(super) fn wrapper_args(&self) -> Vec<String> {
        let mut args = vec![
            format!("--max-request-body-size={}", self.max_message),
            format!("--verbosity={}", self.log_level),
            format!("--drain-timeout={}s", GRACE.as_secs()),
            "--exit-with-stdin".to_owned(),
        ];
        // Other wrappers, such as Porch's, do not have this flag and refuse it.
        args.extend((self.log_format == LogFormat::Json).then(|| "--log-format=json".to_owned()));
        args
    }
}
