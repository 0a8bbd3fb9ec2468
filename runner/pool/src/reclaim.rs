//! `reclaim_after`, the one thing that keeps a pod from being collected while another runner uses it.
//!
//! Every user pushes it forward: far ahead of its lapse while calls are in flight, and *before* the use when the lapse
//! is so close that the owner, by its own clock, may already see it. The owner collects only past it and only in the
//! state it judged, so a push and a delete that race cannot both succeed.

use std::time::Duration;

use crate::breakage::Breakage;
use crate::config::Config;
use crate::event::{Action, Pushing};
use crate::function::{ANSWER_TIMEOUT, Function};
use crate::shared::Turn;
use crate::tracked::{Push, Tracked};
use crate::types::{Time, Uid};

/// No deadline reserves a pod for longer at once; calls in flight push again.
const LONGEST_RESERVATION: Duration = Duration::from_hours(1);
const SHORTEST_LIFETIME: Duration = Duration::from_secs(1);
const LONGEST_THROTTLE: Duration = Duration::from_mins(1);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

// === impl Config ===

impl Config {
    /// How long an unused pod stays: the TTL, but never so short that clocks could tell it differently.
    pub(crate) fn lifetime(&self, ttl: Duration) -> Duration {
        ttl.max(self.skew.saturating_mul(4)).max(SHORTEST_LIFETIME)
    }

    /// How far ahead a pod's end is announced: time enough for a late watch and a push.
    pub(crate) fn notice(&self) -> Duration {
        self.skew.saturating_mul(2)
    }

    /// How close a lapse must be for a pod to be left alone where there is a choice. More than the notice by any
    /// clock, and less than what is left to a pod in regular use, which is three quarters of its lifetime.
    pub(crate) fn leaving(&self) -> Duration {
        self.skew.saturating_mul(3)
    }

    /// How far `reclaim_after` may lag behind before it is pushed again.
    pub(crate) fn throttle(&self, ttl: Duration) -> Duration {
        (self.lifetime(ttl) / 4).min(LONGEST_THROTTLE)
    }

    /// The pause after an answer that was a conflict or none. Well below the scan interval, which the owner waits
    /// after an outage: by then every user has pushed.
    pub(crate) fn retry_interval(&self) -> Duration {
        (self.scan_interval / 4).clamp(Duration::from_millis(100), LONGEST_RETRY)
    }
}

// === impl Function ===

impl Function {
    /// The `reclaim_after` for a use that starts now and lasts until `deadline` at most.
    pub(crate) fn reclaim_at(&self, deadline: Option<Time>, turn: &Turn<'_>) -> Time {
        let lifetime = turn.shared.config.lifetime(self.settings.limits.ttl);
        let reserved = deadline.map_or(turn.now, |deadline| deadline.min(turn.now + LONGEST_RESERVATION));
        reserved.max(turn.now + lifetime)
    }

    /// Pushes what is in use or kept and lags behind, and what is wanted but too close to its lapse.
    pub(crate) fn push_pods(&mut self, turn: &mut Turn<'_>) {
        self.choose_kept(turn);
        let throttle = turn.shared.config.throttle(self.settings.limits.ttl);
        let waiting = self.queue.front().map(|waiter| waiter.deadline);
        for index in 0..self.pods.len() {
            let tracked = &self.pods[index];
            if tracked.push.is_some() || turn.now < tracked.push_after || !tracked.lives() {
                continue;
            }
            let wanted =
                waiting.filter(|_| self.has_room(tracked, turn) && !tracked.guarded(turn.skew(), turn.now));
            let until = self.reclaim_at(tracked.last_deadline().max(wanted), turn);
            let lags =
                tracked.pod.reclaim_after.is_none_or(|reclaim_after| until >= reclaim_after + throttle);
            // Notice was given, but the pod is to stay after all.
            let recalled = tracked.noticed.is_some() && tracked.retiring.is_none();
            let in_use = (tracked.load() > 0 || recalled) && !turn.shared.broken(Breakage::NoPushInFlight);
            let kept = tracked.is_pushed_idle() && !turn.shared.broken(Breakage::KeepUnpushed);
            if wanted.is_some() || ((in_use || kept) && lags) {
                self.pods[index].noticed.take_if(|_| recalled);
                self.pods[index].send_push(until, turn);
            }
        }
    }

    /// When [`push_pods`](Self::push_pods) has to look at this pod again.
    pub(crate) fn push_timer(&self, tracked: &Tracked, turn: &Turn<'_>) -> Option<Time> {
        if let Some(push) = &tracked.push {
            return Some(push.sent + ANSWER_TIMEOUT);
        }
        if !tracked.lives() {
            return None;
        }
        let skew = turn.skew();
        if !self.queue.is_empty() && self.has_room(tracked, turn) && !tracked.guarded(skew, turn.now) {
            return Some(tracked.push_after);
        }
        let last_deadline = tracked.last_deadline().or(tracked.is_pushed_idle().then_some(turn.now))?;
        let throttle = turn.shared.config.throttle(self.settings.limits.ttl);
        let lifetime = turn.shared.config.lifetime(self.settings.limits.ttl);
        let Some(reclaim_after) = tracked.pod.reclaim_after else { return Some(tracked.push_after) };
        let due = reclaim_after + throttle;
        let reserves = (last_deadline >= due).then(|| due - LONGEST_RESERVATION);
        Some(reserves.map_or(due - lifetime, |at| at.min(due - lifetime)).max(tracked.push_after))
    }

    /// Takes note of a push's answer.
    pub(crate) fn pushed(&mut self, uid: &Uid, result: Pushing, turn: &mut Turn<'_>) {
        let retry = turn.shared.config.retry_interval();
        let Some(tracked) = self.pod_mut(uid) else { return };
        let Some(push) = tracked.push.take() else { return };
        let unchanged = tracked.pod.resource_version == push.judged;
        match result {
            Pushing::Ok(pod) => {
                tracked.waived_until = Time::default();
                // Once the watch has moved on, the answer may be older than what it showed: an owner may have given
                // notice since.
                let this_push = pod.uid == tracked.pod.uid && pod.reclaim_after == tracked.asked;
                if (unchanged && this_push) || turn.shared.broken(Breakage::BelieveLatePush) {
                    tracked.pod = pod;
                } else {
                    tracked.push_after = turn.now + retry;
                }
            }
            Pushing::Conflict => {
                tracked.waived_until = Time::default();
                if unchanged {
                    tracked.push_after = turn.now + retry;
                }
            }
            Pushing::Gone => {
                tracked.doomed = true;
                Self::stop_probe(tracked, turn);
            }
            Pushing::Unknown => {
                tracked.unreachable(turn);
                self.doubt(turn);
            }
            Pushing::Unreachable => {
                tracked.unreachable(turn);
                turn.doubt();
            }
        }
    }

    /// Treats answers that never came as lost.
    pub(crate) fn expire_answers(&mut self, turn: &Turn<'_>) {
        let retry = turn.shared.config.retry_interval();
        for tracked in &mut self.pods {
            if tracked.push.as_ref().is_some_and(|push| push.sent + ANSWER_TIMEOUT <= turn.now) {
                tracked.push = None;
                tracked.unreachable(turn);
            }
            if tracked.delete.as_ref().is_some_and(|delete| delete.expires_at(retry) <= turn.now) {
                tracked.delete = None;
            }
        }
    }
}

// === impl Tracked ===

impl Tracked {
    pub(crate) fn send_push(&mut self, until: Time, turn: &mut Turn<'_>) {
        self.send(until, None, turn);
    }

    /// Marks it: its place is wanted. Its `reclaim_after` stays.
    pub(crate) fn send_request_for_place(&mut self, turn: &mut Turn<'_>) {
        let Some(until) = self.pod.reclaim_after else { return };
        self.send(until, Some(turn.now), turn);
    }

    fn send(&mut self, until: Time, place_wanted: Option<Time>, turn: &mut Turn<'_>) {
        let judged = self.pod.resource_version.clone();
        self.asked = Some(until);
        self.push = Some(Push { sent: turn.now, judged: judged.clone() });
        turn.out.push(Action::Push {
            uid: self.pod.uid.clone(),
            resource_version: judged,
            name: self.pod.name.clone(),
            until,
            place_wanted,
        });
    }

    /// Without the API server, warm pods are still used; the push is tried again.
    fn unreachable(&mut self, turn: &Turn<'_>) {
        let retry = turn.shared.config.retry_interval();
        self.push_after = turn.now + retry;
        self.waived_until = turn.now + 3 * retry;
    }
}
