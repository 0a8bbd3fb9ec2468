//! The loop that updates a membership, for routers and runners.

use std::future::pending;
use std::ops::Deref;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Membership;
use crate::Snapshot;

/// A [`Membership`] that is updated by discovery's snapshots and by time.
#[derive(Debug)]
pub struct LiveMembership {
    membership: Membership,
    snapshots: watch::Receiver<Snapshot>,
    origin: Instant,
}

impl LiveMembership {
    /// A membership without members. The first [`changed`](Self::changed) adds them.
    pub fn new(mut snapshots: watch::Receiver<Snapshot>) -> Self {
        snapshots.mark_changed();
        Self { membership: Membership::default(), snapshots, origin: Instant::now() }
    }

    /// Waits until members may have changed: discovery has answered, or a timer is due. A member
    /// that is no longer listed stays for a while if `answers` returns true for it. Cancel-safe.
    pub async fn changed(&mut self, answers: impl Fn(&str) -> bool) {
        loop {
            let timer = self.membership.next_timer().map(|at| self.origin + at);
            tokio::select! {
                changed = self.snapshots.changed() => {
                    if changed.is_err() {
                        // Discovery has ended, so the server is shutting down.
                        return pending().await;
                    }
                    let snapshot = self.snapshots.borrow_and_update();
                    if snapshot.is_answered {
                        tracing::trace!(addresses = ?snapshot.endpoints, "discovery answered");
                        let listed = snapshot.endpoints.iter().map(String::as_str);
                        return self.membership.update(listed, answers, self.origin.elapsed());
                    }
                }
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {
                    return self.membership.tick(self.origin.elapsed());
                }
            }
        }
    }

    /// Removes unlisted members for which `answers` returns false.
    pub fn retain_unlisted(&mut self, answers: impl Fn(&str) -> bool) {
        self.membership.retain_unlisted(answers, self.origin.elapsed());
    }
}

impl Deref for LiveMembership {
    type Target = Membership;

    fn deref(&self) -> &Membership {
        &self.membership
    }
}
