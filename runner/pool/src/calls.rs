//! The life of a call: granted at once or queued, handed a pod later, cancelled or finished. A call is counted in
//! exactly one place at any time, so that leaving that place is all there is to leaving.

use std::time::Duration;

use crate::breakage::Breakage;
use crate::event::{Action, Rejection, Verdict};
use crate::function::Function;
use crate::queue::Waiter;
use crate::shared::{Call, Place, Turn};
use crate::tracked::{Full, Tracked};
use crate::types::{RequestId, Time};

/// How long a pod that refused a call gets no more calls than it had: others may need its places for as long.
const FULL_FOR: Duration = Duration::from_millis(500);

// === impl Function ===

impl Function {
    /// Takes in a call.
    pub(crate) fn request(&mut self, id: RequestId, deadline: Time, turn: &mut Turn<'_>) {
        if deadline <= turn.now {
            turn.reject(id, Rejection::DeadlineExceeded);
        } else if let Some(error) = self.paused_error(turn.now) {
            turn.reject(id, error);
        } else if let Some(index) = self.pick(turn) {
            let crowded = self.is_crowded(turn);
            self.grant(index, id, deadline, turn);
            if crowded {
                self.scale_beyond(turn);
            }
        } else if self.queue.len() >= self.settings.limits.queue as usize {
            turn.reject(id, Rejection::QueueFull { limit: self.settings.limits.queue });
        } else {
            let ticket = self.queue.push(Waiter { id, deadline, since: turn.now });
            let place = Place::Queue(ticket);
            turn.shared.calls.insert(id, Call { image: self.image.clone(), place, since: turn.now });
        }
    }

    fn grant(&mut self, index: usize, id: RequestId, deadline: Time, turn: &mut Turn<'_>) {
        let tracked = &mut self.pods[index];
        if tracked.calls.is_empty() {
            tracked.hearing.heard = turn.now;
        }
        tracked.calls.push((id, deadline));
        let (uid, name) = (tracked.pod.uid.clone(), tracked.pod.name.clone());
        let place = Place::Pod(uid.clone());
        turn.shared.calls.insert(id, Call { image: self.image.clone(), place, since: turn.now });
        turn.out.push(Action::Grant { id, uid, name });
    }

    /// Hands pods to the calls that wait, in their order.
    pub(crate) fn grant_waiters(&mut self, turn: &mut Turn<'_>) {
        while !self.queue.is_empty() {
            let Some(index) = self.pick(turn) else { break };
            let Some(waiter) = self.queue.pop() else { break };
            self.grant(index, waiter.id, waiter.deadline, turn);
            if turn.shared.broken(Breakage::UncountedHandover) {
                self.pods[index].calls.pop();
            }
        }
    }

    /// Removes a call from wherever it is. Without a verdict it was cancelled.
    pub(crate) fn leave(
        &mut self,
        id: RequestId,
        Call { place, since, .. }: &Call,
        verdict: Option<Verdict>,
        turn: &mut Turn<'_>,
    ) {
        match place {
            Place::Queue(ticket) => {
                self.queue.remove(*ticket);
            }
            Place::Pod(uid) => {
                let Some(index) = self.find(uid) else {
                    return turn.shared.forget_orphan(id, place);
                };
                let tracked = &mut self.pods[index];
                tracked.calls.retain(|&(other, _)| other != id);
                match verdict {
                    None => {}
                    Some(Verdict::Served) => tracked.hearing.answered(turn.now),
                    Some(Verdict::Full) => tracked.refuse(turn.now),
                    Some(Verdict::Broken) => Self::broken(tracked, turn),
                    Some(Verdict::Silent) => self.silent(index, turn),
                    Some(Verdict::Late { package }) => self.late(index, package, *since, turn),
                }
            }
        }
    }

    /// A waiter whose deadline has come.
    pub(crate) fn pop_expired(&mut self, turn: &Turn<'_>) -> Option<RequestId> {
        if turn.shared.broken(Breakage::IgnoreDeadline) {
            return None;
        }
        self.queue.pop_expired(turn.now).map(|waiter| waiter.id)
    }
}

// === impl Tracked ===

impl Tracked {
    /// The pod refused a call that is no longer counted.
    fn refuse(&mut self, now: Time) {
        self.full = Some(Full { room: self.load(), until: now + FULL_FOR });
    }

    /// How many calls it takes from here, of `most`.
    pub(crate) fn room(&self, most: usize, now: Time) -> usize {
        self.full.filter(|full| now < full.until).map_or(most, |full| most.min(full.room))
    }
}
