//! How local pods start. That of a local function is a wrapper-server that runs a command of this
//! machine, and ends when the runner ends.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;

use porch_fn_flags::LogFormat;
use porch_fn_pool::{ImageKey, Reason};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::pod::{Control, GRACE, Place, Pod, Pulling, Sandboxes, exited};
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

/// A wrapper-server process.
struct Wrapper {
    pid: Option<Pid>,
    /// When this process or the pod ends, the wrapper's stdin closes, so the wrapper ends its functions
    /// and itself. A killed wrapper would leave its functions running.
    _stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
}

// === impl LocalOptions ===

impl LocalOptions {
    /// Starts a pod. Calls `pulling` if that takes a pull.
    pub(super) async fn start(&self, image: &ImageKey, pulling: Pulling<'_>) -> Result<Pod, Reason> {
        match (self.functions.command(image), &self.sandboxes) {
            (Some(command), _) => start(self, command).await,
            (None, Some(sandboxes)) => sandboxes.start(image, self.wrapper_args(), pulling).await,
            (None, None) => {
                Err(Reason::new("other", "the image has no command: add it to --local-functions"))
            }
        }
    }

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

/// Starts a pod, and waits until its wrapper listens.
async fn start(options: &LocalOptions, command: &[String]) -> Result<Pod, Reason> {
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
