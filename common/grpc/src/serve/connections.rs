//! How many connections there are. One more than allowed ends the one that has been idle for
//! longest, so that those who hold connections and ask nothing keep nobody out.

use std::sync::Arc;

use tokio::task::AbortHandle;

use crate::streams::Activity;

/// The connections that are open, and some that have ended.
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

    /// Sees to room for one more. False when all are busy.
    pub(super) fn make_room(&mut self) -> bool {
        if self.open.len() < self.limit {
            return true;
        }
        self.forget_ended();
        self.open.len() < self.limit || self.end_idle()
    }

    /// Ends the connection that has been idle for longest. False when all are busy.
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

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use hyper::rt::Executor;
    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;
    use crate::streams::Streams;

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_is_idle_for_longest_ends_and_a_busy_one_stays() {
        let mut tasks = JoinSet::new();
        let mut connections = Connections::new(3);
        let mut open = |connections: &mut Connections, busy: bool| {
            let activity = Activity::new();
            if busy {
                Streams(Arc::clone(&activity)).execute(pending());
            }
            let task = tasks.spawn(pending::<()>());
            connections.push(activity, task.clone());
            task
        };
        let busy = open(&mut connections, true);
        sleep(Duration::from_secs(1)).await;
        let idle = open(&mut connections, false);
        sleep(Duration::from_secs(1)).await;
        let idle_for_less = open(&mut connections, false);
        assert!(connections.make_room());
        tokio::task::yield_now().await;
        let ended = [&busy, &idle, &idle_for_less].map(AbortHandle::is_finished);
        assert_eq!((ended, connections.open.len()), ([false, true, false], 2));
        open(&mut connections, true);
        busy.abort();
        tokio::task::yield_now().await;
        assert!(connections.make_room());
        assert!(!idle_for_less.is_finished(), "one that has ended makes room");
        for all_busy in [false, true] {
            open(&mut connections, true);
            assert_eq!(connections.make_room(), !all_busy);
        }
    }
}
