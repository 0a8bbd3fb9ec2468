//! Whether a pod serves: asked of the pod itself, only where somebody here is interested, and not for ever.

use std::time::Duration;

use crate::breakage::Breakage;
use crate::config::Config;
use crate::event::{Action, Rejection, Why};
use crate::function::Function;
use crate::shared::{Turn, Watch};
use crate::tracked::{Health, Hearing, Tracked};
use crate::types::Phase;

// === impl Function ===

impl Function {
    /// The pod is lost. Only a pod that never served makes this a failed start.
    pub(crate) fn fail(&mut self, index: usize, error: Rejection, turn: &mut Turn<'_>) {
        let tracked = &mut self.pods[index];
        if tracked.health == Health::Failed {
            return;
        }
        // One that was found dead is nobody's failed start, unless a create of ours has just made it.
        let awaited = tracked.awaited() || self.starts.iter().any(|start| start.name == tracked.pod.name);
        Self::stop_probe(tracked, turn);
        tracked.health = Health::Failed;
        if awaited {
            self.start_failed(Some(error), None, turn);
        }
    }

    /// Asks for probes of the pods that somebody here is interested in.
    pub(crate) fn probe_pods(&mut self, turn: &mut Turn<'_>) {
        // Whoever uses one pod of the image uses the others as well, so that the owner can retire that one.
        let used = self.pods.iter().any(|tracked| tracked.health == Health::Ready);
        let wanted = !self.queue.is_empty() || self.warms(turn) || used;
        for tracked in &mut self.pods {
            if tracked.health == Health::Unknown && tracked.lives() && (wanted || tracked.ours()) {
                tracked.health =
                    Health::Probing { since: turn.now, reclaim_after: tracked.pod.reclaim_after };
                let (uid, name) = (tracked.pod.uid.clone(), tracked.pod.name.clone());
                turn.out.push(Action::Probe { uid, name, on: true });
            }
        }
    }

    /// Our own probe succeeded.
    pub(crate) fn probed_ready(&mut self, index: usize, turn: &mut Turn<'_>) {
        let first = self.pods.iter().position(|tracked| tracked.starting(turn.now));
        let index = first.filter(|_| turn.shared.broken(Breakage::ReadyFirstStarting)).unwrap_or(index);
        let tracked = &mut self.pods[index];
        if !tracked.stays() || tracked.health == Health::Failed {
            return;
        }
        tracked.health = Health::Ready;
        tracked.served = true;
        tracked.given_up = false;
        let checks = tracked.hearing.checks;
        tracked.hearing = Hearing { heard: turn.now, checks, ..Hearing::default() };
        self.backoff = None;
        self.warm = None;
    }

    /// The pod does not serve at the moment: it must be probed anew.
    pub(crate) fn unready(tracked: &mut Tracked) {
        if tracked.health == Health::Ready {
            tracked.health = Health::Unknown;
        }
    }

    pub(crate) fn expire_probes(&mut self, turn: &mut Turn<'_>) {
        let timeout = turn.shared.config.ready_timeout;
        for index in 0..self.pods.len() {
            let tracked = &self.pods[index];
            let Health::Probing { since, reclaim_after } = tracked.health else { continue };
            if turn.now < since + tracked.patience(&turn.shared.config) || !tracked.lives() {
                continue;
            }
            let error = match &tracked.pod.phase {
                Phase::Pending(waiting) => Rejection::NotReady { timeout, waiting: waiting.clone() },
                _ => Rejection::NotReady { timeout, waiting: None },
            };
            if matches!(tracked.pod.phase, Phase::Pending(_)) && !tracked.given_up {
                let uid = tracked.uid().clone();
                self.pods[index].given_up = true;
                self.start_failed(Some(error), Some(&uid), turn);
                continue;
            }
            // Whoever pushes can use the pod: then the fault is between us and it.
            let used_by_others =
                tracked.pod.reclaim_after > reclaim_after && tracked.pod.reclaim_after != tracked.asked;
            if tracked.ours() && !used_by_others {
                let awaited = tracked.awaited();
                self.pods[index].health = Health::Overdue;
                if awaited {
                    self.start_failed(Some(error), None, turn);
                }
            } else {
                let uid = tracked.pod.uid.clone();
                let reclaim_after = tracked.pod.reclaim_after;
                self.pods[index].health = Health::Probing { since: turn.now, reclaim_after };
                self.start_failed(Some(error), Some(&uid), turn);
            }
        }
    }

    /// A pod that is known from a create's answer alone and that the watch never showed is gone.
    pub(crate) fn expire_unconfirmed(&mut self, turn: &mut Turn<'_>) {
        if turn.shared.watch == Watch::Lost {
            return;
        }
        let now = turn.now;
        let expired = |tracked: &Tracked| tracked.confirm_by.is_some_and(|by| by <= now);
        while let Some(index) = self.pods.iter().position(expired) {
            self.untrack(index, turn);
        }
    }

    pub(crate) fn delete_failed(&mut self, turn: &mut Turn<'_>) {
        for tracked in &mut self.pods {
            let failed = tracked.failed() && tracked.stays() && tracked.ours();
            if failed && tracked.delete.is_none() && turn.now >= tracked.delete_after {
                let why = if tracked.hangs { Why::Hung } else { Why::Failed };
                tracked.send_delete(why, turn);
            }
        }
    }
}

// === impl Tracked ===

impl Tracked {
    /// How long it is probed before something is done about it.
    pub(crate) fn patience(&self, config: &Config) -> Duration {
        if self.given_up { config.ready_timeout.max(config.pending_timeout) } else { config.ready_timeout }
    }
}
