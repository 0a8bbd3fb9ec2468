//! A running server and its process. Router, runner and wrapper-server use it.

use std::fmt::{self, Display};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::BoxFuture;
use porch_fn_flags::ServerFlags;
use porch_fn_telemetry::Log;
use tokio::time::{sleep, timeout};

use crate::drain::Signal;
use crate::health::Health;
use crate::signals::StopSignals;
use crate::tasks::Tasks;

/// The time limits of a drain.
#[derive(Debug, Clone, Copy)]
pub struct DrainTimes {
    /// How long the server still accepts calls after it has reported `NOT_SERVING`
    /// (`--drain-delay`).
    pub delay: Duration,
    /// How long calls in flight may take after that (`--drain-timeout`).
    pub timeout: Duration,
}

impl DrainTimes {
    /// The times of a router's or runner's flags.
    pub fn of(flags: &ServerFlags) -> Self {
        Self { delay: flags.drain_delay.into(), timeout: flags.drain_timeout.into() }
    }
}

/// An action that runs after a server's tasks have ended.
pub type AtEnd = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send + Sync>;

/// A running server. Dropping it ends everything at once; [`drain`](Self::drain) waits for calls.
pub struct App {
    /// The address of the gRPC listener. `None`: a Unix socket, which the parent process knows.
    pub address: Option<SocketAddr>,
    /// The address of the admin port, if there is one.
    pub admin_address: Option<SocketAddr>,
    /// The server's gRPC health.
    pub health: Health,
    /// Starts the drain of the tasks.
    pub signal: Signal,
    /// The time limits of the drain.
    pub drain_times: DrainTimes,
    /// The server's tasks.
    pub tasks: Tasks,
    /// Actions that run after the tasks have ended, in this order.
    pub at_end: Vec<AtEnd>,
}

impl App {
    /// The address of the gRPC listener. With a Unix socket, port 0 of no address.
    pub fn address(&self) -> SocketAddr {
        self.address.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// The address of the admin port; if there is none, the address of the gRPC listener.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address.unwrap_or_else(|| self.address())
    }

    /// Drains the server: it becomes unready, stops accepting, finishes calls until the deadline,
    /// and ends all tasks. Returns whether all calls have finished in time.
    pub async fn drain(mut self) -> bool {
        let times = self.drain_times;
        tracing::info!(delay = ?times.delay, timeout = ?times.timeout, "draining");
        self.health.stop();
        sleep(times.delay).await;
        self.health.close();
        self.signal.drain();
        let is_drained = timeout(times.timeout, self.signal.drained()).await.is_ok();
        if is_drained {
            tracing::info!("drained");
        } else {
            tracing::warn!("calls were still in flight after --drain-timeout");
        }
        self.tasks.shutdown().await;
        for last in self.at_end {
            last().await;
        }
        is_drained
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Runs the server that `start` returns until SIGTERM, SIGINT or a failed task, and then drains it.
/// Returns the process's exit code. If `start` fails, `exit_code` maps its error to the code.
pub async fn run<E: Display>(
    log: Log,
    start: impl Future<Output = Result<App, E>>,
    exit_code: impl FnOnce(&E) -> ExitCode,
) -> ExitCode {
    let Ok(mut signals) = StopSignals::catch() else {
        log.failed(&"cannot catch SIGTERM and SIGINT");
        return ExitCode::FAILURE;
    };
    let mut app = match start.await {
        Ok(app) => app,
        Err(error) => {
            log.failed(&error);
            return exit_code(&error);
        }
    };
    log.listening(app.address, app.admin_address);
    let code = signals.first(app.tasks.failed()).await;
    signals.drain(app.drain()).await;
    code
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::drain;

    const TIMES: DrainTimes = DrainTimes { delay: Duration::from_secs(5), timeout: Duration::from_mins(5) };

    #[tokio::test(start_paused = true)]
    async fn a_drain_reports_unready_then_stops_accepting_then_gives_up() {
        let start = Instant::now();
        let (signal, mut watch) = drain::channel();
        let health = Health::new();
        health.set("", true);
        let (observer, tasks, at_end) = (health.clone(), Tasks::new(), Vec::new());
        let address = Some(([127, 0, 0, 1], 0).into());
        let app = App { address, admin_address: None, health, signal, drain_times: TIMES, tasks, at_end };
        let task = tokio::spawn(async move {
            watch.draining().await;
            (start.elapsed(), observer.is_serving(), watch)
        });
        assert!(!app.drain().await);
        assert_eq!(start.elapsed(), TIMES.delay + TIMES.timeout);
        let (began, is_serving, _held) = task.await.unwrap();
        assert_eq!((began, is_serving), (TIMES.delay, false));
    }
}
