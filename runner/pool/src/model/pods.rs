//! The life of pods in the model: they start, serve, fail and end.

use super::server::{GRACE, Hang, Object, Truth};
use super::world::World;
use crate::event::Verdict;
use crate::types::{Phase, Uid};

// === impl World ===

impl World {
    pub(crate) fn any_pod(&mut self) -> Option<Uid> {
        if self.server.objects.is_empty() {
            return None;
        }
        let index = self.rng.index(self.server.objects.len());
        self.server.objects.values().nth(index).map(|object| object.pod.uid.clone())
    }

    /// A pod fails, terminates or vanishes.
    pub(crate) fn hit_pod(&mut self) {
        let Some(uid) = self.any_pod() else { return };
        match self.rng.between(0, 2) {
            0 => self.pod_fails(&uid),
            1 => self.terminate(&uid),
            _ => self.pod_ends(&uid),
        }
    }

    /// A pod hangs, for a while or until the faults end.
    pub(crate) fn hang_pod(&mut self) {
        let Some(uid) = self.any_pod() else { return };
        let hang = self.rng.pick(&[Hang::Silent, Hang::NodeGone, Hang::Calls]);
        self.hang(&uid, hang);
        if hang == Hang::Silent && self.rng.chance(50) {
            self.after(1000, 200_000, move |world| world.pod_resumes(&uid));
        }
    }

    /// The pod hangs, and its calls get no answer. A call ends at its deadline, or when the runner
    /// disconnects.
    pub(crate) fn hang(&mut self, uid: &Uid, hang: Hang) {
        let Some(object) = self.server.get_mut(uid) else { return };
        if object.truth != Truth::Dead && object.hang.is_none() {
            object.hang = Some(hang);
            self.count("a pod hangs");
        }
    }

    pub(crate) fn pod_resumes(&mut self, uid: &Uid) {
        let now = self.now;
        let Some(object) = self.server.get_mut(uid) else { return };
        if object.hang != Some(Hang::Silent) {
            return;
        }
        object.hang = None;
        if object.truth == Truth::Ready {
            object.ready_since = Some(now);
            self.probe_succeeds(uid);
        }
    }

    fn probe_succeeds(&mut self, uid: &Uid) {
        for runner in 0..self.runners.len() {
            if self.runners[runner].probing.contains(uid) {
                let uid = uid.clone();
                self.after(1, 300, move |world| world.probed(runner, uid));
            }
        }
    }

    pub(crate) fn draw_fate(&mut self, uid: Uid) {
        let fate = if self.faults_over { 99 } else { self.rng.between(0, 99) };
        match fate {
            0..10 => self.after(100, 10_000, move |world| world.pod_fails(&uid)),
            10..15 => {}
            15..30 => self.after(10_000, 70_000, move |world| world.pod_ready(&uid)),
            _ => self.after(200, 4000, move |world| world.pod_ready(&uid)),
        }
    }

    pub(crate) fn pod_ready(&mut self, uid: &Uid) {
        let starting = |object: &Object| object.truth == Truth::Starting && !object.is_terminating();
        if !self.server.get(uid).is_some_and(starting) {
            return;
        }
        let now = self.now;
        self.server.update(uid, |object| {
            object.truth = Truth::Ready;
            object.ready_since = Some(now);
            object.pod.phase = Phase::Running;
        });
        // Send requests at about the time when the runners learn that the pod is ready. The owner
        // may then be about to retire the pod that this one replaces.
        if !self.faults_over && self.rng.chance(50) {
            self.after(1, 300, Self::burst);
        }
        self.probe_succeeds(uid);
    }

    pub(crate) fn pod_fails(&mut self, uid: &Uid) {
        if self.server.get(uid).is_some_and(|object| object.truth != Truth::Dead) {
            self.break_calls(uid);
            self.server.fail(uid);
        }
    }

    pub(crate) fn terminate(&mut self, uid: &Uid) {
        let Some(object) = self.server.get(uid).filter(|object| !object.is_terminating()) else { return };
        let (busy, lost) = (!object.calls.is_empty(), object.hang == Some(Hang::NodeGone));
        self.server.terminate(uid, self.now);
        let uid = uid.clone();
        if lost || (!self.faults_over && self.rng.chance(10)) {
            self.count("stuck pod");
            self.after(GRACE + 1000, GRACE + 200_000, move |world| world.pod_ends(&uid));
        } else if busy {
            self.at(self.now + GRACE, move |world| world.pod_ends(&uid));
        } else {
            self.after(1, 3000, move |world| world.pod_ends(&uid));
        }
    }

    pub(crate) fn pod_ends(&mut self, uid: &Uid) {
        self.break_calls(uid);
        self.server.remove(uid);
    }

    fn break_calls(&mut self, uid: &Uid) {
        let calls = self.server.get_mut(uid).map(|object| std::mem::take(&mut object.calls));
        for (_, id) in calls.into_iter().flatten() {
            self.after(1, 500, move |world| world.call_ends(id, Verdict::Broken));
        }
    }
}
