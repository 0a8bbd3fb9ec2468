//! The signals that end a process.

use std::process::ExitCode;

use tokio::signal::unix::{self, SignalKind, signal};

use crate::tasks::Failed;

/// Catches SIGTERM and SIGINT. [`run`](crate::run) creates this before it starts the server. So a
/// signal directly after the line "listening on" does not kill the process without a drain.
#[derive(Debug)]
pub struct StopSignals {
    term: unix::Signal,
    int: unix::Signal,
    /// A signal was received.
    signalled: bool,
}

impl StopSignals {
    /// Installs both signal handlers.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn catch() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            signalled: false,
        })
    }

    /// Waits for the next signal and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }

    /// Waits for a signal or for a failed task of the server. Returns the exit code for the process
    /// after the drain.
    pub async fn first(&mut self, failed: impl Future<Output = Failed>) -> ExitCode {
        tokio::select! {
            signal = self.next() => {
                self.signalled = true;
                tracing::info!(signal, "stopping");
                ExitCode::SUCCESS
            }
            error = failed => {
                tracing::error!(%error, "stopping, with exit code 1");
                ExitCode::FAILURE
            }
        }
    }

    /// Waits for `drain`. A second signal ends the drain at once.
    pub async fn drain<T>(mut self, drain: impl Future<Output = T>) {
        let signalled_again = async {
            if !self.signalled {
                let signal = self.next().await;
                tracing::info!(signal, "the server is already stopping");
            }
            self.next().await
        };
        tokio::select! {
            _ = drain => (),
            again = signalled_again => tracing::warn!(signal = again, "second signal: the drain ends now"),
        }
    }
}
