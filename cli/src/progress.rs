//! Displays a line while an operation takes long, so that the user sees that it is not stuck.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, interval_at};

/// How long to stay silent, and how often to update the line after that.
const SECOND: Duration = Duration::from_secs(1);

/// Shows progress on standard error, if that is a terminal, until it is dropped.
#[derive(Debug)]
pub(crate) struct Progress(Option<JoinHandle<()>>);

impl Progress {
    /// Starts to display progress after one second.
    pub(crate) fn start(what: String) -> Self {
        let show = async move {
            let started = Instant::now();
            let mut ticks = interval_at(started + SECOND, SECOND);
            loop {
                ticks.tick().await;
                let mut stderr = std::io::stderr().lock();
                let _ = write!(stderr, "\r{what} ... {}s", started.elapsed().as_secs());
                let _ = stderr.flush();
            }
        };
        Self(std::io::stderr().is_terminal().then(|| tokio::spawn(show)))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
            // Erase the line before other output follows.
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
