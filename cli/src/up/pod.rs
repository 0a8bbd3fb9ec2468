//! One pod in a sandbox: a wrapper-server that has an image's files.

use std::io::PipeWriter;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use porch_fn_images::Stored;
use porch_fn_runner::pods::local::Control;
use porch_fn_sandbox::{Launch, Pipes, Running, Sandbox, SandboxError};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;

use crate::one_shot::reached;

/// A sandbox that runs, and what it needs.
pub(super) struct SandboxPod {
    running: Running,
    _stdin: PipeWriter,
    _socket: Socket,
    /// Keeps the image's files.
    _stored: Stored,
    /// The flags of the limits that the log names already.
    reported: Vec<&'static str>,
}

/// A socket, which is removed when this is dropped.
struct Socket(PathBuf);

/// Starts a sandbox whose wrapper-server listens on `socket`. `args` are the wrapper-server's arguments,
/// without the function's command.
pub(super) async fn start(
    sandbox: Sandbox,
    stored: Stored,
    socket: PathBuf,
    args: Vec<String>,
) -> Result<(Child, SandboxPod), SandboxError> {
    let listen = |source| SandboxError::Open { path: socket.clone(), source };
    let listener = UnixListener::bind(&socket).map_err(listen)?;
    let socket = Socket(socket);
    let spawn = |source| SandboxError::Step { step: "start its process", source };
    let (launch, pipes) = Launch::new(sandbox, Some((listener, args)))?;
    let child = Command::from(launch.command().map_err(spawn)?).spawn().map_err(spawn)?;
    let Pipes { stdin, stdout, stderr } = pipes;
    // Its log is part of ours.
    tokio::spawn(copy(stdout.into(), tokio::io::sink()));
    tokio::spawn(copy(stderr.into(), tokio::io::stderr()));
    let process = child.id().unwrap_or_default();
    let running = spawn_blocking(move || {
        let mut running = launch.start(process)?;
        running.started().map(|()| running)
    });
    let running = running.await.map_err(|error| spawn(error.into()))??;
    let reported = Vec::new();
    Ok((child, SandboxPod { running, _stdin: stdin, _socket: socket, _stored: stored, reported }))
}

// === impl SandboxPod ===

impl Control for SandboxPod {
    fn terminate(&self) {
        self.running.terminate();
    }

    /// Reports the limits that the kernel had to enforce.
    fn look(&mut self) {
        for (_, flag) in self.running.exceeded().into_iter().map(reached) {
            if !self.reported.contains(&flag) {
                tracing::warn!(
                    limit = format!("--sandbox-{flag}"),
                    "a function reached a limit of its sandbox"
                );
                self.reported.push(flag);
            }
        }
    }

    fn advice(&self) -> String {
        match self.running.exceeded().into_iter().map(reached).next() {
            None => "run the image by hand with porch-fn run to see why".to_owned(),
            Some((what, flag)) => format!("{what}: raise --sandbox-{flag}"),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Copies a pipe to its end.
async fn copy(pipe: OwnedFd, mut to: impl tokio::io::AsyncWrite + Unpin) {
    if let Ok(mut pipe) = tokio::net::unix::pipe::Receiver::from_owned_fd(pipe) {
        let _ = tokio::io::copy(&mut pipe, &mut to).await;
    }
}
