//! Starting pods: what became of each create, and the pause after failures.
//!
//! A create's answer and the watch come in any order, and the answer may be lost. A start is therefore on the books
//! until it was both answered and seen, or until nobody can expect it any more.

use std::time::Duration;

use crate::breakage::Breakage;
use crate::event::{Creation, Ownership, Rejection};
use crate::function::{ANSWER_TIMEOUT, Function};
use crate::shared::Turn;
use crate::tracked::Delete;
use crate::types::{Pod, PodName, Time, Uid};

/// How long the watch may take to show a pod that exists, or may exist, before it is created again.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// How long a created pod is believed in although the watch does not show it.
pub(crate) const CONFIRM_WITHIN: Duration = Duration::from_mins(1);
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(30);
/// How long after a backoff the next failure still counts as a repetition.
const REMEMBER: Duration = Duration::from_mins(1);

/// A create under way.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) name: PodName,
    stage: Stage,
    /// Pods of this name that went before the answer came.
    gone: Vec<Uid>,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// No answer yet.
    Sent { at: Time },
    /// No answer yet, but the watch shows a pod.
    Shown { uid: Uid, at: Time },
    /// Answered without a pod; the watch should show one.
    Awaited { until: Time },
}

/// The pause after a failed start.
#[derive(Debug)]
pub(crate) struct Backoff {
    failures: u32,
    pub(crate) retry_at: Time,
    /// What calls are told meanwhile. `None`: they wait.
    pub(crate) error: Option<Rejection>,
}

// === impl Start ===

impl Start {
    pub(crate) fn new(name: PodName, now: Time) -> Self {
        Self { name, stage: Stage::Sent { at: now }, gone: Vec::new() }
    }

    /// Not among the known pods yet, so counted by itself.
    pub(crate) fn unseen(&self) -> bool {
        !matches!(self.stage, Stage::Shown { .. })
    }

    pub(crate) fn expires_at(&self) -> Time {
        match self.stage {
            Stage::Sent { at } | Stage::Shown { at, .. } => at + ANSWER_TIMEOUT,
            Stage::Awaited { until } => until,
        }
    }
}

// === impl Backoff ===

impl Backoff {
    /// The pause that begins now, longer than the one before.
    pub(crate) fn after(last: Option<&Self>, error: Option<Rejection>, now: Time) -> Self {
        let failures = last.map_or(0, |last| last.failures);
        let delay = FIRST_BACKOFF.saturating_mul(1 << failures.min(5)).min(LAST_BACKOFF);
        Self { failures: failures.saturating_add(1), retry_at: now + delay, error }
    }

    pub(crate) fn forget_at(&self) -> Time {
        self.retry_at + REMEMBER
    }
}

// === impl Delete ===

impl Delete {
    pub(crate) fn expires_at(&self, retry: Duration) -> Time {
        self.unknown.map_or(self.sent + ANSWER_TIMEOUT, |at| at + retry)
    }
}

// === impl Function ===

impl Function {
    /// Takes note of a create's answer.
    pub(crate) fn created(&mut self, name: &PodName, result: Creation, turn: &mut Turn<'_>) {
        let Some(index) = self.starts.iter().position(|start| start.name == *name) else { return };
        match result {
            Creation::Ok(pod) => {
                self.refusals = 0;
                let start = self.starts.swap_remove(index);
                self.adopt_created(pod, &start, turn);
            }
            Creation::Exists => {
                if turn.shared.broken(Breakage::NameByCount) {
                    self.delete_holder(name, turn);
                }
                self.await_holder(index, turn);
            }
            Creation::Unknown => {
                self.doubt(turn);
                self.await_holder(index, turn);
            }
            Creation::Unreachable => {
                turn.doubt();
                self.await_holder(index, turn);
            }
            Creation::OverQuota(reason) => {
                self.starts.swap_remove(index);
                let alone = matches!(turn.shared.ownership, Ownership::All);
                self.over_quota(reason, alone, turn);
            }
            Creation::Refused(reason) => {
                self.starts.swap_remove(index);
                self.start_failed(Some(Rejection::PodFailed { reason }), None, turn);
            }
        }
    }

    /// A pod of this name exists or may exist. What it is worth is for the watch to say: it may be terminating.
    fn await_holder(&mut self, index: usize, turn: &Turn<'_>) {
        let name = &self.starts[index].name;
        if turn.shared.broken(Breakage::ExistsIsSuccess) {
            self.starts[index].stage = Stage::Awaited { until: Time::from_millis(u64::MAX) };
        } else if self.pods.iter().any(|tracked| tracked.pod.name == *name) {
            self.starts.swap_remove(index);
        } else {
            self.starts[index].stage = Stage::Awaited { until: turn.now + SEEN_WITHIN };
        }
    }

    fn adopt_created(&mut self, pod: Pod, start: &Start, turn: &mut Turn<'_>) {
        if start.gone.contains(&pod.uid) {
            self.start_failed(None, None, turn);
            return;
        }
        // What the watch has shown meanwhile is newer than the answer.
        if self.find(&pod.uid).is_none() {
            let uid = pod.uid.clone();
            self.track(pod, turn);
            if let Some(tracked) = self.pod_mut(&uid) {
                tracked.confirm_by = Some(turn.now + CONFIRM_WITHIN);
                tracked.created_here = true;
            }
        } else if let Some(tracked) = self.pod_mut(&pod.uid) {
            tracked.created_here = true;
        }
    }

    /// The watch shows a new pod: is it one that was being created?
    pub(crate) fn start_shown(&mut self, pod: &Pod) {
        let Some(index) = self.starts.iter().position(|start| start.name == pod.name) else { return };
        match self.starts[index].stage {
            Stage::Sent { at } => {
                self.starts[index].stage = Stage::Shown { uid: pod.uid.clone(), at };
            }
            Stage::Awaited { .. } => {
                self.starts.swap_remove(index);
            }
            Stage::Shown { .. } => {}
        }
    }

    /// A pod is no longer known; its create may not have been answered yet.
    pub(crate) fn start_gone(&mut self, pod: &Pod) {
        for start in self.starts.iter_mut().filter(|start| start.name == pod.name) {
            match &start.stage {
                Stage::Shown { uid, at } if *uid == pod.uid => start.stage = Stage::Sent { at: *at },
                _ => {}
            }
            start.gone.push(pod.uid.clone());
        }
    }

    pub(crate) fn expire_starts(&mut self, turn: &Turn<'_>) {
        let now = turn.now;
        self.starts.retain_mut(|start| {
            if start.expires_at() > now {
                return true;
            }
            let unanswered = matches!(start.stage, Stage::Sent { .. });
            start.stage = Stage::Awaited { until: now + SEEN_WITHIN };
            unanswered
        });
        self.backoff.take_if(|backoff| backoff.forget_at() <= now);
    }

    /// A start came to nothing. Its waiters hear of it at once when no other pod can serve them; with no error to
    /// tell, they wait for the next start. `except` is a pod that is not to be counted on.
    pub(crate) fn start_failed(
        &mut self,
        error: Option<Rejection>,
        except: Option<&Uid>,
        turn: &mut Turn<'_>,
    ) {
        self.backoff = Some(Backoff::after(self.backoff.as_ref(), error.clone(), turn.now));
        let Some(error) = error else { return };
        let hope = self.starts.iter().any(Start::unseen)
            || self.pods.iter().any(|tracked| {
                tracked.lives() && !tracked.is_silent(turn.now) && Some(tracked.uid()) != except
            });
        if hope && turn.shared.broken(Breakage::LoseWaiters) {
            while self.queue.pop().is_some() {}
        }
        if !hope {
            while let Some(waiter) = self.queue.pop() {
                turn.reject(waiter.id, error.clone());
            }
        }
    }

    /// What a new call is told while starts are paused and there is no pod to hope for.
    pub(crate) fn paused_error(&self, now: Time) -> Option<Rejection> {
        let backoff = self.backoff.as_ref().filter(|backoff| now < backoff.retry_at)?;
        let hope = self.starting(now) > 0 || self.any_ready();
        backoff.error.clone().filter(|_| !hope)
    }

    pub(crate) fn is_paused(&self, now: Time) -> bool {
        self.backoff.as_ref().is_some_and(|backoff| now < backoff.retry_at)
    }
}
