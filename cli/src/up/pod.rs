//! One pod in a sandbox: a wrapper-server that has an image's files.

use std::io::PipeWriter;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use porch_fn_images::Stored;
use porch_fn_runner::pods::local::{Control, Place};
use porch_fn_sandbox::{Launch, Pipes, Running, Sandbox, SandboxError};
use tempfile::{Builder, TempPath};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;

use crate::one_shot::reached;

/// A sandbox that runs, and what it needs.
pub(super) struct SandboxPod {
    running: Running,
    _stdin: PipeWriter,
    /// Removes the socket.
    _socket: TempPath,
    /// Keeps the image's files.
    _stored: Stored,
    /// The flags of the limits that the log names already.
    reported: Vec<&'static str>,
}

/// Starts a sandbox whose wrapper-server listens on a socket in `folder`. `args` are the
/// wrapper-server's arguments, without the function's command.
pub(super) async fn start(
    sandbox: Sandbox,
    stored: Stored,
    folder: &Path,
    args: Vec<String>,
) -> Result<(Child, Place, SandboxPod), SandboxError> {
    let listen = |source| SandboxError::Open { path: folder.to_owned(), source };
    let socket = Builder::new().make_in(folder, |path| UnixListener::bind(path)).map_err(listen)?;
    let (listener, socket) = socket.into_parts();
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
    let place = Place::Unix(socket.to_path_buf());
    let reported = Vec::new();
    Ok((child, place, SandboxPod { running, _stdin: stdin, _socket: socket, _stored: stored, reported }))
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

/// Copies a pipe to its end.
async fn copy(pipe: OwnedFd, mut to: impl tokio::io::AsyncWrite + Unpin) {
    if let Ok(mut pipe) = tokio::net::unix::pipe::Receiver::from_owned_fd(pipe) {
        let _ = tokio::io::copy(&mut pipe, &mut to).await;
    }
}
