//! The pod of a local function: a wrapper-server that runs a command of this machine, and ends when the
//! runner ends.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::process::Stdio;

use porch_fn_pool::Reason;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::options::LocalOptions;
use super::pod::{Control, Place, Pod, exited};
use crate::environment::environment;

/// A wrapper-server process.
struct Wrapper {
    pid: Option<Pid>,
    /// When this process or the pod ends, the wrapper's stdin closes, so the wrapper ends its functions
    /// and itself. A killed wrapper would leave its functions running.
    _stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
}

/// Starts a pod, and waits until its wrapper listens.
pub(super) async fn start(options: &LocalOptions, command: &[String]) -> Result<Pod, Reason> {
    let mut child = spawn_wrapper(options, command).map_err(|error| {
        Reason::new("exited", format!("the wrapper-server cannot be started: {error}; see --wrapper-server"))
    })?;
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let mut wrapper = Wrapper { pid, _stdin: child.stdin.take(), stdout: child.stdout.take() };
    match first_line(wrapper.stdout.as_mut()).await {
        Some(address) => {
            Ok(Pod { child, place: Place::Tcp(address), content: None, control: Box::new(wrapper) })
        }
        None => Err(exited(child.wait().await, &wrapper)),
    }
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

// === impl Wrapper ===

impl Control for Wrapper {
    fn terminate(&self) {
        // The process may have just ended, so an error is ignored.
        let _ = self.pid.map(|pid| kill_process(pid, Signal::TERM));
    }

    fn advice(&self) -> String {
        "run its command from --local-functions by hand to see why".to_owned()
    }
}
