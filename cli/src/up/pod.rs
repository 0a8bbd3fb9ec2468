//! One pod in a sandbox: a wrapper-server that has an image's files.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use porch_fn_images::Stored;
use porch_fn_pool::{ImageContent, Reason};
use porch_fn_runner::pods::local::{GRACE, SandboxPod};
use porch_fn_sandbox::{Launch, Pipes, Running, Sandbox, SandboxError, Server};
use tokio::process::{Child, Command};
use tokio::sync::oneshot::Receiver;
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};
use wrapper_server::go_exit_text;

use crate::advice::explain;
use crate::one_shot::reached;

/// How long a pod may take to end its functions and itself after its calls have ended.
const LAST_GRACE: Duration = Duration::from_secs(2);
/// How often a pod's limits are looked at.
const LIMITS_EVERY: Duration = Duration::from_secs(2);

/// A pod that does not run yet.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) sandbox: Sandbox,
    /// The wrapper-server's arguments, without the function's command.
    pub(super) wrapper: Vec<String>,
    pub(super) socket: PathBuf,
    pub(super) content: Option<ImageContent>,
    /// Keeps the image's files while the pod exists.
    pub(super) stored: Stored,
}

// === impl Pod ===

impl SandboxPod for Pod {
    fn content(&self) -> Option<ImageContent> {
        self.content.clone()
    }

    fn run<'a>(
        self: Box<Self>,
        stopped: &'a mut Receiver<Infallible>,
        listening: &'a (dyn Fn(PathBuf) + Sync),
    ) -> BoxFuture<'a, Option<Reason>> {
        async move {
            let socket = self.socket.clone();
            let _stored = self.stored;
            let started = start(self.sandbox, &socket, self.wrapper).await;
            let failure = match started {
                Ok((child, running, _stdin)) => {
                    listening(socket.clone());
                    watch(child, running, stopped).await
                }
                Err(error) => Some(Reason::new("not_started", explain(&error))),
            };
            // It may never have been there.
            let _ = std::fs::remove_file(socket);
            failure
        }
        .boxed()
    }
}

type Started = (Child, Running, io::PipeWriter);

async fn start(sandbox: Sandbox, socket: &PathBuf, args: Vec<String>) -> Result<Started, SandboxError> {
    let listen = |error| SandboxError::Open { path: socket.clone(), source: error };
    let listener = UnixListener::bind(socket).map_err(listen)?;
    let spawn = |source| SandboxError::Step { step: "start its process", source };
    let (launch, pipes) = Launch::new(sandbox, Some(Server { listener, args }))?;
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
    Ok((child, running, stdin))
}

/// Waits for the end of the pod, or ends it.
async fn watch(mut child: Child, running: Running, stopped: &mut Receiver<Infallible>) -> Option<Reason> {
    let mut reported = Vec::new();
    let mut look = interval(LIMITS_EVERY);
    loop {
        tokio::select! {
            ended = child.wait() => return Some(Reason::new("exited", match ended {
                Ok(status) => ended_text(status, &running),
                Err(error) => format!("the runner cannot wait for its process: {error}"),
            })),
            Err(_) = &mut *stopped => break,
            _ = look.tick() => for (_, flag) in running.exceeded().into_iter().map(reached) {
                if !reported.contains(&flag) {
                    tracing::warn!(limit = format!("--sandbox-{flag}"), "a function reached a limit of its sandbox");
                    reported.push(flag);
                }
            }
        }
    }
    running.terminate();
    if timeout(GRACE + LAST_GRACE, child.wait()).await.is_err() {
        tracing::warn!("a local pod did not end and is killed");
        drop(running);
        let _ = child.wait().await;
    }
    None
}

fn ended_text(status: ExitStatus, running: &Running) -> String {
    let advice = match running.exceeded().into_iter().map(reached).next() {
        None => "run the image by hand with porch-fn run to see why".to_owned(),
        Some((what, flag)) => format!("{what}: raise --sandbox-{flag}"),
    };
    format!("its process ended ({}); {advice}", go_exit_text(status))
}

/// Copies a pipe to its end.
async fn copy(pipe: OwnedFd, mut to: impl tokio::io::AsyncWrite + Unpin) {
    if let Ok(mut pipe) = tokio::net::unix::pipe::Receiver::from_owned_fd(pipe) {
        let _ = tokio::io::copy(&mut pipe, &mut to).await;
    }
}
