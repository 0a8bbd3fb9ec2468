//! Limits the number of connections. For a new connection above the limit, the server closes the
//! one idle for longest. So idle connections do not block new callers.

use std::sync::Arc;

use tokio::task::AbortHandle;

use crate::streams::Activity;

/// The open connections, and some that have ended but are not removed yet.
#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    open: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    activity: Arc<Activity>,
    task: AbortHandle,
}

// === impl Connections ===

impl Connections {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, open: Vec::new() }
    }

    /// Makes room for one more connection. Returns false when all are busy.
    pub(super) fn make_room(&mut self) -> bool {
        if self.open.len() < self.limit {
            return true;
        }
        self.forget_ended();
        self.open.len() < self.limit || self.end_idle()
    }

    /// Closes the connection that has been idle for longest. Returns false when all are busy.
    pub(super) fn end_idle(&mut self) -> bool {
        self.forget_ended();
        let idle =
            self.open.iter().zip(0..).filter_map(|(open, place)| Some((open.activity.idle_since()?, place)));
        let Some((_, place)) = idle.min() else { return false };
        self.open.swap_remove(place).task.abort();
        true
    }

    fn forget_ended(&mut self) {
        self.open.retain(|open| !open.task.is_finished());
    }

    pub(super) fn push(&mut self, activity: Arc<Activity>, task: AbortHandle) {
        self.open.push(Connection { activity, task });
    }
}
