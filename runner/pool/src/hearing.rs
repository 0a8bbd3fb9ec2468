//! Whether a pod that has served still answers: its process may hang, its node may be gone.
//!
//! A pod is asked when it has calls and has not answered anything for a while, and when a call ended
//! by its deadline. It stays in use meanwhile: a slow function is no fault of its pod. A pod that
//! does not answer is silent. Its calls go elsewhere, it does not count towards the limit, so that
//! another one takes its place at once, and it is probed: if it turns ready it serves again.
//!
//! A wrapper may answer although its pod runs no function to its end. So a pod is also lost when two
//! calls one after the other, of different packages, run for a while and end by their deadlines while
//! another pod of the image answers. That is for its owner or creator to say, who can delete it. It
//! may finish the calls that it has.

use std::time::Duration;

use crate::breakage::Breakage;
use crate::event::{Action, Rejection};
use crate::function::Function;
use crate::shared::Turn;
use crate::tracked::{Asked, Health, Hearing, Late, Tracked};
use crate::types::{Reason, Time};

/// A pod with calls is asked when it has not answered for so long.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// How long it may take to answer then.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// The same after a call that ended by its deadline.
const LATE_ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// A call that ends by its deadline sooner says nothing about its pod.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// A pod that could not be reached is silent after so long.
const SILENT_AFTER: Duration = Duration::from_secs(3);

// === impl Function ===

impl Function {
    /// Asks the pods that have calls and have not answered for a while.
    pub(crate) fn check_pods(&mut self, turn: &mut Turn<'_>) {
        for tracked in &mut self.pods {
            if tracked.check_at().is_some_and(|at| at <= turn.now) {
                tracked.check(ANSWERS_WITHIN, turn);
            }
        }
    }

    /// A call that had been on this pod since `granted` ended by its deadline.
    pub(crate) fn late(&mut self, index: usize, package: u64, granted: Time, turn: &mut Turn<'_>) {
        if !self.pods[index].lives() {
            return;
        }
        self.pods[index].check(LATE_ANSWERS_WITHIN, turn);
        if turn.now.since(granted) < HANGS_AFTER {
            return;
        }
        let first = *self.pods[index].hearing.late.get_or_insert(Late { package, at: turn.now });
        // Calls that were in it together may have been in each other's way.
        let in_a_row = first.package != package && granted >= first.at;
        if in_a_row && self.pods[index].ours() && self.answers_since(first.at, index) {
            self.hangs(index, turn);
        }
    }

    /// Whether another pod has answered a call since then.
    fn answers_since(&self, time: Time, except: usize) -> bool {
        let others = self.pods.iter().enumerate().filter(|&(index, _)| index != except);
        others.map(|(_, tracked)| tracked).any(|other| other.ready() && other.hearing.answered > time)
    }

    /// The pod was asked whether it answers.
    pub(crate) fn checked(&mut self, index: usize, number: u64, answered: bool, turn: &mut Turn<'_>) {
        let hearing = &mut self.pods[index].hearing;
        let asked = hearing.asked.take_if(|asked| asked.number == number);
        if answered {
            hearing.heard = turn.now;
        } else if asked.is_some_and(|asked| hearing.answered <= asked.at) {
            self.silent(index, turn);
        }
    }

    /// Nothing comes back from the pod.
    pub(crate) fn silent(&mut self, index: usize, turn: &mut Turn<'_>) {
        let tracked = &mut self.pods[index];
        if tracked.ready() || tracked.load() > 0 {
            tracked.cut(turn);
        }
        Self::unready(tracked);
        if tracked.served && !turn.shared.broken(Breakage::CountSilent) {
            tracked.hearing.silent_from = Some(turn.now);
        }
    }

    /// The pod could not be reached, or its connection broke: it may be back at once.
    pub(crate) fn broken(tracked: &mut Tracked, turn: &Turn<'_>) {
        if tracked.health == Health::Ready {
            tracked.hearing.silent_from = Some(turn.now + SILENT_AFTER);
        }
        Self::unready(tracked);
    }

    /// Calls end on the pod by their deadlines alone, and its wrapper's word to the contrary does not count.
    fn hangs(&mut self, index: usize, turn: &mut Turn<'_>) {
        self.pods[index].hangs = true;
        let reason = Reason::Other("calls do not end in it".into());
        self.fail(index, Rejection::PodFailed { reason }, turn);
    }
}

// === impl Tracked ===

impl Tracked {
    /// When to ask the pod whether it still answers.
    pub(crate) fn check_at(&self) -> Option<Time> {
        let due = self.lives() && self.served && self.load() > 0 && self.hearing.asked.is_none();
        (due && self.hearing.silent_from.is_none()).then(|| self.hearing.heard + ASK_AFTER)
    }

    /// From when on it does not count: it has served and fell silent, or it is another runner's that runs and was never
    /// heard of here, such as the pod of a node that died with its owner.
    pub(crate) fn silent_at(&self) -> Option<Time> {
        let never_heard = match self.health {
            Health::Probing { since, .. } if !self.served && !self.created_here => {
                self.running_since.map(|running| running.max(since) + SILENT_AFTER)
            }
            _ => None,
        };
        self.hearing.silent_from.or(never_heard)
    }

    /// Asks it, unless an answer is due as soon.
    fn check(&mut self, within: Duration, turn: &mut Turn<'_>) {
        let by = turn.now + within;
        if self.hearing.asked.is_some_and(|asked| asked.by <= by) || turn.shared.broken(Breakage::NeverAsk) {
            return;
        }
        self.hearing.checks += 1;
        let number = self.hearing.checks;
        self.hearing.asked = Some(Asked { number, at: turn.now, by });
        let (uid, name) = (self.pod.uid.clone(), self.pod.name.clone());
        turn.out.push(Action::Check { uid, name, number, within });
    }

    fn cut(&mut self, turn: &mut Turn<'_>) {
        let (uid, name) = (self.pod.uid.clone(), self.pod.name.clone());
        turn.out.push(Action::Cut { uid, name });
    }
}

// === impl Hearing ===

impl Hearing {
    /// The pod answered a call.
    pub(crate) fn answered(&mut self, now: Time) {
        (self.heard, self.answered, self.late) = (now, now, None);
    }
}
