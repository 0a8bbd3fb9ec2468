//! One function process that waits for its request (`--prestart`), so that a slow start of the
//! function is over before the call.
//!
//! The caller cannot tell the difference. The waiting process gets its request only if it has
//! written nothing and closed nothing. If not, it is ended, and from then on each call starts its
//! own process. The trace context of a call is in the environment of its process, which is set at
//! the start. So a call with a trace context starts its own process, too.
//!
//! At most one process waits. It starts when no call runs, so calls do not compete with it. It ends
//! after [`IDLE`] without a call.

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant, sleep_until};

use crate::process::{Program, Started};

/// How long a process waits.
const IDLE: Duration = Duration::from_mins(1);

/// The waiting process, and the calls that run.
pub(crate) struct Prestart {
    program: Program,
    state: Mutex<State>,
    /// Notified when the last running call has ended.
    no_call_runs: Notify,
}

#[derive(Default)]
struct State {
    waiting: Option<Started>,
    calls: usize,
    /// The function does something before its request.
    is_off: bool,
}

/// Counts a call until it is dropped.
pub(crate) struct Running<'a>(&'a Prestart);

// === impl Prestart ===

impl Prestart {
    pub(crate) fn new(program: Program) -> Self {
        Self { program, state: Mutex::default(), no_call_runs: Notify::new() }
    }

    /// Starts and ends waiting processes, until the future is dropped.
    pub(crate) async fn keep(&self) {
        loop {
            self.start();
            let idle = Instant::now() + IDLE;
            tokio::select! {
                () = self.no_call_runs.notified() => {}
                () = sleep_until(idle) => {
                    // Dropped after the lock is released.
                    let idle = self.state.lock().waiting.take();
                    drop(idle);
                    self.no_call_runs.notified().await;
                }
            }
        }
    }

    /// Begins a call. Also returns the waiting process, if there is one that the call may use.
    pub(crate) fn begin(&self, has_own_environment: bool) -> (Running<'_>, Option<Started>) {
        let mut state = self.state.lock();
        state.calls += 1;
        let waiting = if has_own_environment { None } else { state.waiting.take() };
        let is_touched = waiting.as_ref().is_some_and(|waiting| !waiting.is_untouched());
        if is_touched {
            state.is_off = true;
        }
        drop(state);
        if is_touched {
            tracing::warn!(
                "--prestart has no effect: before its request, the function exited, wrote something or closed its \
                 stdin; each call starts its own process"
            );
        }
        (Running(self), waiting.filter(|_| !is_touched))
    }

    fn start(&self) {
        let mut state = self.state.lock();
        if state.is_off || state.calls > 0 || state.waiting.is_some() {
            return;
        }
        match Started::new(&self.program) {
            Ok(started) => state.waiting = Some(started),
            // Calls report the same error to their callers.
            Err(error) => {
                state.is_off = true;
                tracing::warn!(%error, "--prestart has no effect: the function cannot be started");
            }
        }
    }
}

// === impl Running ===

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.calls -= 1;
        if state.calls == 0 {
            self.0.no_call_runs.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
