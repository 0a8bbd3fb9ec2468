//! How a server ends: unready, stop accepting, finish what is in hand, deadline, exit.

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::drain::Signal;
use crate::health::Health;
use crate::tasks::Failed;

/// The two times of a drain.
#[derive(Debug, Clone, Copy)]
pub struct DrainTimes {
    /// How long the server goes on accepting after it said `NOT_SERVING` (`--drain-delay`).
    pub delay: Duration,
    /// How long calls in flight may take after that (`--drain-timeout`).
    pub timeout: Duration,
}

/// How a drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Everything finished.
    Finished,
    /// Work was left when `--drain-timeout` had passed.
    TimedOut,
}

/// SIGTERM and SIGINT, caught from the moment this is made: a server makes it before it says that it listens,
/// or a signal that comes right after would kill it.
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
    pub async fn drain(mut self, drain: impl Future<Output = Drained>) {
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

/// Takes a server down in order. Returns when all drain watches are gone or the time is up.
pub async fn drain(health: &Health, signal: &mut Signal, times: DrainTimes) -> Drained {
    tracing::info!(delay = ?times.delay, timeout = ?times.timeout, "draining");
    health.stop();
    sleep(times.delay).await;
    health.close();
    signal.drain();
    if timeout(times.timeout, signal.drained()).await.is_ok() {
        tracing::info!("drained");
        Drained::Finished
    } else {
        tracing::warn!("calls were still in flight when --drain-timeout passed");
        Drained::TimedOut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain;
    use tokio::time::Instant;

    const TIMES: DrainTimes = DrainTimes { delay: Duration::from_secs(5), timeout: Duration::from_mins(5) };

    #[tokio::test(start_paused = true)]
    async fn goes_unready_before_it_stops_accepting() {
        let health = Health::new();
        health.set("", true);
        let (mut signal, mut watch) = drain::channel();
        let start = Instant::now();
        let observer = health.clone();
        let task = tokio::spawn(async move {
            watch.draining().await;
            (Instant::now(), observer.is_serving())
        });
        assert_eq!(super::drain(&health, &mut signal, TIMES).await, Drained::Finished);
        let (stopped, serving) = task.await.unwrap();
        assert_eq!(stopped - start, TIMES.delay);
        assert!(!serving);
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_the_timeout() {
        let (mut signal, _held) = drain::channel();
        let start = Instant::now();
        assert_eq!(super::drain(&Health::new(), &mut signal, TIMES).await, Drained::TimedOut);
        assert_eq!(start.elapsed(), TIMES.delay + TIMES.timeout);
    }
}
