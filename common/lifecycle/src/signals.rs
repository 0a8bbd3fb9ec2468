//! The signals that end a process.

use std::process::ExitCode;

use tokio::signal::unix::{self, SignalKind, signal};

use crate::tasks::Failed;

/// SIGTERM and SIGINT, caught from the moment this is made: a server makes it before it says that
/// it listens, or a signal that comes right after would kill it.
#[derive(Debug)]
pub struct StopSignals {
    term: unix::Signal,
    int: unix::Signal,
    /// There was one.
    signalled: bool,
}

impl StopSignals {
    /// Catches both.
    ///
    /// # Errors
    /// When the handlers cannot be installed, which only a broken system refuses.
    pub fn catch() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            signalled: false,
        })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }

    /// Waits for a signal, or for a task of the server to fail. Returns what the process is to exit
    /// with once it has drained.
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

    /// Drains. A second signal means now.
    pub async fn drain<T>(mut self, drain: impl Future<Output = T>) {
        let signalled_again = async {
            if !self.signalled {
                let signal = self.next().await;
                tracing::info!(signal, "stopping already");
            }
            self.next().await
        };
        tokio::select! {
            _ = drain => (),
            again = signalled_again => tracing::warn!(signal = again, "not waiting any longer"),
        }
    }
}
