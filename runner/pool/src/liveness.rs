//! Finds out whether a pod serves and still answers. Its process may hang, or its node may be gone.
//!
//! A runner probes only the pods that it needs, and gives up after a while.
//!
//! A pod is checked when it has calls and has not answered for a while, and when one of its calls
//! has reached its deadline. It stays in use during the check, because a slow function is not the
//! pod's fault. A pod that does not answer is silent. Its calls move to other pods. It does not
//! count towards the limit, so that another pod starts at once. The runner probes it until it
//! serves again.
//!
//! The wrapper-server in a pod may answer checks although no call in the pod finishes. So a pod is
//! also given up when two calls in a row, of different packages, ran for at least 10 s until their
//! deadlines. Another pod of the image must have served a call after the first of these deadlines.
//! Only the owner or creator of the pod decides this, because only they may delete it. The pod may
//! finish its other calls.

use std::time::Duration;

use crate::event::{Action, DeleteReason, Rejection};
use crate::function::Function;
use crate::shared::Shared;
use crate::tracked::{Check, Health, Liveness, Tracked};
use crate::types::{Phase, Reason, Time};

/// A pod with calls is checked when it has not answered for this long.
const CHECK_AFTER: Duration = Duration::from_secs(1);
/// The time that a pod has to answer a check.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// The time that a pod has to answer a check after one of its calls reached its deadline.
const LATE_ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// If a call reaches its deadline after less than this time, the call does not count as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// A pod that could not be reached counts as silent after this long.
const SILENT_AFTER: Duration = Duration::from_secs(3);

// === impl Function ===

impl Function {
    /// Checks the pods that have calls and have not answered for a while.
    pub(crate) fn check_pods(&mut self, shared: &mut Shared) {
        for tracked in &mut self.pods {
            let liveness = &tracked.liveness;
            let busy = tracked.lives() && tracked.served && !tracked.calls.is_empty();
            let due = busy && liveness.check.is_none() && liveness.silent_from.is_none();
            if due && shared.reached(liveness.last_sign + CHECK_AFTER) {
                tracked.check(ANSWERS_WITHIN, shared);
            }
        }
    }

    /// A call reached its deadline. The call had been on this pod since `granted`.
    pub(crate) fn record_late(&mut self, index: usize, package: u64, granted: Time, shared: &mut Shared) {
        if !self.pods[index].lives() {
            return;
        }
        self.pods[index].check(LATE_ANSWERS_WITHIN, shared);
        if shared.now.since(granted) < HANGS_AFTER {
            return;
        }
        let (first, at) = *self.pods[index].liveness.late.get_or_insert((package, shared.now));
        // The second call must have started after the first one's deadline: calls that run at the
        // same time may slow each other down.
        let in_a_row = first != package && granted >= at;
        let served_since = |(other, tracked): (usize, &Tracked)| {
            other != index && tracked.ready() && tracked.liveness.last_served > at
        };
        if in_a_row && self.pods[index].ours() && self.pods.iter().enumerate().any(served_since) {
            self.fail(index, Reason::new("other", "calls to the pod do not end"), shared);
            self.pods[index].health = Health::Hung;
        }
    }

    /// A check was answered, or was not answered in time.
    pub(crate) fn checked(&mut self, index: usize, number: u64, answered: bool, shared: &mut Shared) {
        let liveness = &mut self.pods[index].liveness;
        let check = liveness.check.take_if(|_| liveness.checks == number);
        if answered {
            liveness.last_sign = shared.now;
        } else if check.is_some_and(|check| liveness.last_served <= check.started) {
            self.record_silent(index, shared);
        }
    }

    /// The pod does not answer at all.
    pub(crate) fn record_silent(&mut self, index: usize, shared: &mut Shared) {
        let tracked = &mut self.pods[index];
        if tracked.ready() || !tracked.calls.is_empty() {
            let (uid, name) = (tracked.pod.uid.clone(), tracked.pod.name.clone());
            shared.act(Action::Disconnect { uid, name });
        }
        if tracked.health == Health::Ready {
            tracked.health = Health::Unknown;
        }
        if tracked.served {
            tracked.liveness.silent_from = Some(shared.now);
        }
    }

    /// The pod is lost. This counts as a failed start only if the pod never served.
    pub(crate) fn fail(&mut self, index: usize, reason: Reason, shared: &mut Shared) {
        let tracked = &mut self.pods[index];
        if matches!(tracked.health, Health::Failed | Health::Hung) {
            return;
        }
        // A pod may be dead when the watch first reports it. This counts as a failed start only if
        // this runner is creating a pod of that name.
        let awaited = tracked.awaited() || self.starts.iter().any(|start| start.name == tracked.pod.name);
        Self::stop_probe(tracked, shared);
        tracked.health = Health::Failed;
        if awaited {
            self.start_failed(Some(Rejection::PodFailed { reason }), None, shared);
        }
    }

    /// Probes the pods that this runner needs, and deletes the failed pods that it may delete.
    pub(crate) fn probe_pods(&mut self, shared: &mut Shared) {
        // A runner that uses one pod of the image also probes the others, so that it can switch to
        // them when the owner retires that pod.
        let used = self.pods.iter().any(|tracked| tracked.health == Health::Ready);
        let wanted = !self.queue.is_empty() || self.warms(shared) || used;
        for tracked in &mut self.pods {
            if tracked.health == Health::Unknown && tracked.lives() && (wanted || tracked.ours()) {
                let reclaim_after = tracked.pod.reclaim_after;
                tracked.health = Health::Probing { since: shared.now, reclaim_after, given_up: false };
                let (uid, name) = (tracked.pod.uid.clone(), tracked.pod.name.clone());
                shared.act(Action::Probe { uid, name, on: true });
            }
        }
        for tracked in &mut self.pods {
            let failed = tracked.failed() && tracked.stays() && tracked.ours();
            if failed && tracked.delete.is_none() && shared.reached(tracked.delete_after) {
                let hung = tracked.health == Health::Hung;
                tracked.send_delete(if hung { DeleteReason::Hung } else { DeleteReason::Failed }, shared);
            }
        }
    }

    /// This runner's own probe succeeded.
    pub(crate) fn probed_ready(&mut self, index: usize, shared: &mut Shared) {
        let tracked = &mut self.pods[index];
        if !tracked.stays() || matches!(tracked.health, Health::Failed | Health::Hung) {
            return;
        }
        tracked.health = Health::Ready;
        tracked.served = true;
        let checks = tracked.liveness.checks;
        tracked.liveness = Liveness { last_sign: shared.now, checks, ..Liveness::default() };
        self.backoff = None;
        self.warm = None;
    }

    /// Gives up the pods that were not ready in time.
    pub(crate) fn expire_probes(&mut self, shared: &mut Shared) {
        let timeout = shared.config.ready_timeout;
        let pending_timeout = shared.config.pending_timeout.max(timeout);
        for index in 0..self.pods.len() {
            let tracked = &mut self.pods[index];
            let Health::Probing { since, reclaim_after, given_up } = tracked.health else { continue };
            let patience = if given_up { pending_timeout } else { timeout };
            if !tracked.lives() || !shared.reached(since + patience) {
                continue;
            }
            let (pending, waiting) = match &tracked.pod.phase {
                Phase::Pending(waiting) => (true, waiting.clone()),
                _ => (false, None),
            };
            // Only a runner that reaches the pod writes a later `reclaim_after`. If another runner
            // wrote it, the fault is between this runner and the pod.
            let used_by_others =
                tracked.pod.reclaim_after > reclaim_after && tracked.pod.reclaim_after != tracked.pushed;
            tracked.health = if pending && !given_up {
                // The pod may be pulling its image. Only reject the waiting calls.
                Health::Probing { since, reclaim_after, given_up: true }
            } else if tracked.ours() && !used_by_others {
                Health::Overdue
            } else {
                Health::Probing { since: shared.now, reclaim_after: tracked.pod.reclaim_after, given_up }
            };
            if !tracked.served || tracked.health != Health::Overdue {
                let uid = tracked.pod.uid.clone();
                self.start_failed(Some(Rejection::NotReady { timeout, waiting }), Some(&uid), shared);
            }
        }
    }
}

// === impl Tracked ===

impl Tracked {
    /// The pod could not be reached, or its connection was lost. The pod may answer again at once.
    pub(crate) fn record_broken(&mut self, now: Time) {
        if self.health == Health::Ready {
            self.liveness.silent_from = Some(now + SILENT_AFTER);
            self.health = Health::Unknown;
        }
    }

    /// Whether the pod does not answer this runner. This includes a pod that was never ready for
    /// this runner, if another runner created it. Both may have run on a node that failed.
    pub(crate) fn is_silent(&self, shared: &Shared) -> bool {
        let never_reached = match self.health {
            Health::Probing { since, .. } if !self.served && !self.created_here => {
                self.running_since.map(|running| running.max(since) + SILENT_AFTER)
            }
            _ => None,
        };
        self.liveness.silent_from.or(never_reached).is_some_and(|at| shared.reached(at))
    }

    /// Starts a check of whether the pod answers. A running check with an earlier deadline stays.
    fn check(&mut self, within: Duration, shared: &mut Shared) {
        let due = shared.now + within;
        if self.liveness.check.is_some_and(|check| check.due <= due) {
            return;
        }
        self.liveness.checks += 1;
        self.liveness.check = Some(Check { started: shared.now, due });
        let (uid, name, number) = (self.pod.uid.clone(), self.pod.name.clone(), self.liveness.checks);
        shared.act(Action::Check { uid, name, number, within });
    }
}
