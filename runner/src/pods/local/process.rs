//! One local pod's process: a wrapper-server that ends when we do.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::timeout;
use wrapper_server::go_exit_text;
use wrapper_server::process::collect_orphans;

use super::cluster::LocalOptions;
use crate::environment::environment;

/// How long a pod may take to drain before its calls are ended.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// How long it may take after that to end its functions and itself.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// How a process ended.
pub(super) enum Ended {
    /// As it was told to.
    Stopped,
    /// By itself, or it never started.
    Failed(String),
}

/// Starts a wrapper for `command`, says where it listens, and returns when it has ended.
pub(super) async fn run(
    options: &LocalOptions,
    command: &[String],
    mut stopped: watch::Receiver<bool>,
    listening: impl FnOnce(SocketAddr),
) -> Ended {
    let mut child = match start(options, command) {
        Ok(child) => child,
        Err(error) => {
            return Ended::Failed(format!(
                "the wrapper-server cannot be started: {error}; see --wrapper-server"
            ));
        }
    };
    let told = async {
        // A lost sender means that the cluster is gone: the same.
        let _ = stopped.wait_for(|&stopped| stopped).await;
    };
    // Held until the end: `wait` would close it. When this process ends, or this future, however it does, the
    // wrapper's standard input does, and with it the wrapper and the functions that it runs. To kill it would
    // leave those behind.
    let stdin = child.stdin.take();
    let mut stdout = child.stdout.take();
    let ended = async {
        if let Some(stdout) = stdout.as_mut()
            && let Some(address) = first_address(stdout).await
        {
            listening(address);
        }
        child.wait().await
    };
    let ended = tokio::select! {
        ended = ended => Some(ended),
        () = told => None,
    };
    let ended = match ended {
        Some(Ok(status)) => Ended::Failed(died(status)),
        Some(Err(error)) => Ended::Failed(format!("its process cannot be waited for: {error}")),
        None => {
            stop(&mut child, stdin).await;
            Ended::Stopped
        }
    };
    // The functions of a wrapper that was killed are this process's now.
    collect_orphans();
    ended
}

fn start(options: &LocalOptions, command: &[String]) -> std::io::Result<Child> {
    let (program, leading) = options
        .wrapper
        .split_first()
        .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "no wrapper-server is named"))?;
    let mut child = Command::new(program);
    child
        .args(leading)
        .arg("--address=127.0.0.1")
        .arg("--port=0")
        .arg(format!("--max-request-body-size={}", options.max_message))
        .arg(format!("--verbosity={}", options.log_level))
        .arg("--exit-with-stdin")
        .arg("--")
        .args(command)
        .env_clear()
        .envs(environment(std::env::vars_os(), &[]))
        // An interrupt at the terminal is for us: we drain, and then end our pods.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

/// Reads `...listening on ADDRESS` from the wrapper's first line.
async fn first_address(stdout: &mut ChildStdout) -> Option<SocketAddr> {
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).await.ok()?;
    line.trim_end().rsplit(' ').next()?.parse().ok()
}

async fn stop(child: &mut Child, stdin: Option<ChildStdin>) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended this moment.
        let _ = kill_process(pid, Signal::TERM);
    }
    if timeout(GRACE, child.wait()).await.is_ok() {
        return;
    }
    tracing::warn!("local pod did not drain in time; its calls are ended");
    drop(stdin);
    if timeout(LAST_GRACE, child.wait()).await.is_err() {
        tracing::warn!("local pod did not end and is killed");
        let _ = child.kill().await;
    }
}

fn died(status: ExitStatus) -> String {
    format!(
        "its process ended ({}); run its command from --local-functions by hand to see why",
        go_exit_text(status)
    )
}

#[cfg(test)]
mod tests {
    use super::super::functions::LocalFunctions;
    use super::*;
    use futures_util::FutureExt;

    /// A wrapper that is killed could not end the functions that it runs.
    #[tokio::test]
    async fn a_pod_that_is_let_go_ends_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ended");
        let script = format!("read line; echo >{}", file.display());
        let options = LocalOptions {
            wrapper: ["sh", "-c", &script].map(Into::into).to_vec(),
            max_message: 1 << 20,
            log_level: 0,
            functions: LocalFunctions::default(),
        };
        let (_stop, stopped) = watch::channel(false);
        assert!(run(&options, &[], stopped, |_| ()).now_or_never().is_none());
        let ended = timeout(Duration::from_secs(20), async {
            while !file.exists() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        ended.await.unwrap();
    }
}
