//! Limits the number of connections. For a new connection above the limit, the server closes the
//! one idle for longest. So idle connections do not block new callers.

use std::sync::Arc;

use crate::streams::Activity;

/// The open connections, and some that have ended but are not removed yet: nobody else holds their
/// activity.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) limit: usize,
    pub(super) open: Vec<Arc<Activity>>,
}

// === impl Connections ===

impl Connections {
    /// Makes room for one more connection. Returns false when all are busy.
    pub(super) fn make_room(&mut self) -> bool {
        if self.open.len() < self.limit {
            return true;
        }
        self.open.retain(|open| Arc::strong_count(open) > 1);
        let staying = self.open.iter().filter(|open| !open.ending.is_cancelled()).count();
        // Those that end take some seconds more, and no more room than those that stay.
        self.open.len() < self.limit * 2 && (staying < self.limit || self.end_idle())
    }

    /// Closes the connection that has been idle for longest. Returns false when all are busy.
    pub(super) fn end_idle(&mut self) -> bool {
        let staying =
            self.open.iter().filter(|open| !open.ending.is_cancelled() && Arc::strong_count(open) > 1);
        let idle = staying.filter_map(|open| Some((open.idle_since()?, open)));
        let Some((_, activity)) = idle.min_by_key(|(since, _)| *since) else { return false };
        activity.ending.cancel();
        true
    }
}
