//! Carries out the actions of the pools: it runs calls in pods, delivers requests to the API
//! server, and returns the answers. Most invariants are checked here. The crate's head comment
//! (lib.rs) explains notice, push and the surge slot.

use super::faults::is_limited;
use super::server::{GRACE, Hang, Object, Truth};
use super::world::{Call, World};
use crate::event::{Action, Creation, DeleteReason, Event, Rejection, Verdict, WriteOutcome};
use crate::types::{Pod, PodName, Reason, RequestId, ResourceVersion, Uid};

/// The time in milliseconds after which a runner stops waiting for an answer.
const API_TIMEOUT: u64 = 10_000;

// === impl World ===

impl World {
    pub(crate) fn perform(&mut self, runner: usize, action: Action) {
        match &action {
            Action::Grant { id, uid } => return self.granted(runner, *id, uid),
            Action::Reject { id, error } => return self.rejected(runner, *id, error),
            Action::Probe { uid, on, .. } => return self.probe(runner, uid.clone(), *on),
            Action::Check { uid, number, .. } => return self.check(runner, uid.clone(), *number),
            Action::Disconnect { uid, .. } => return self.disconnect(runner, uid),
            Action::Create { name, .. } => self.check_create(runner, name),
            Action::Delete { uid, name, reason, .. } => {
                self.check_delete(runner, uid, name, *reason);
                self.provoke(100);
            }
            Action::Push { uid, until, .. } => {
                let before = self.server.get(uid).and_then(|object| object.pod.reclaim_after);
                if before > Some(*until) {
                    self.provoke(300);
                }
            }
        }
        let (life, sent) = (self.runners[runner].life, self.now);
        let latency = self.latency();
        self.at(self.now + latency, move |world| world.arrive(runner, life, sent, action));
    }

    fn latency(&mut self) -> u64 {
        let slow = !self.faults_over && self.rng.chance(self.slow);
        if slow { self.rng.between(500, 5000) } else { self.rng.between(1, 200) }
    }

    /// Causes requests while an owner is about to delete a pod: the worst time for a request.
    fn provoke(&mut self, within: u64) {
        if !self.faults_over && self.rng.chance(50) {
            self.after(0, within, Self::burst);
        }
    }

    fn check_create(&mut self, runner: usize, name: &PodName) {
        let state = &self.runners[runner];
        let limit = state.config.limits.max_pods;
        if !state.synced {
            self.violate("a pod is created before the existing ones are known");
        } else if name.slot > limit {
            self.violate(format!("slot {} with a limit of {limit}", name.slot));
        } else if name.slot == limit {
            self.count("surge");
            let waits = |call: &Call| call.runner == runner && call.image == name.image && call.pod.is_none();
            if !self.runners[runner].view_owns(&name.image) && !self.calls.values().any(waits) {
                self.violate("a runner that is not the owner uses the surge slot without a call");
            }
        }
        let asked = |call: &Call| call.runner == runner && call.image == name.image;
        if !self.runners[runner].view_owns(&name.image) && !self.calls.values().any(asked) {
            self.violate("a runner that is not the owner starts a pod without a call");
        }
        // By this age of a pod, every runner has seen it.
        let known = |object: &&Object| object.made + 2000 < self.now && !object.is_terminating();
        let known = self.server.objects.values().filter(known).count();
        let capacity = self.runners[runner].config.capacity.map(|pods| pods as usize);
        if self.gentle && capacity.is_some_and(|capacity| known >= capacity) {
            self.violate(format!("a pod is created although {known} exist, the capacity is {capacity:?}"));
        }
        if name.past.is_some() {
            self.count("passed a stuck pod");
        }
    }

    fn check_delete(&mut self, runner: usize, uid: &Uid, name: &PodName, reason: DeleteReason) {
        let state = &self.runners[runner];
        let owns = state.view_owns(&name.image);
        let cleans_up =
            matches!(reason, DeleteReason::Failed | DeleteReason::Hung) && state.created.contains(uid);
        if !owns && !cleans_up {
            self.violate(format!("a pod is deleted ({reason:?}) by a runner that is not the owner"));
        }
    }

    /// A call is granted a pod and runs, unless the pod is gone.
    fn granted(&mut self, runner: usize, id: RequestId, uid: &Uid) {
        self.count("granted");
        let waiting = self.calls.get_mut(&id).filter(|call| call.runner == runner && call.pod.is_none());
        let Some(call) = waiting else {
            return self.violate(format!("call {id:?} is granted a second time or after its end"));
        };
        call.pod = Some(uid.clone());
        let (deadline, takes) = (call.deadline, if self.faults_over { usize::MAX } else { self.pod_takes });
        let per_pod = self.runners[runner].config.limits.per_pod as usize;
        let alive = |object: &&mut Object| object.truth != Truth::Dead && !object.is_terminating();
        let Some(object) = self.server.get_mut(uid).filter(alive) else {
            self.count("granted a dead pod");
            return self.after(1, 500, move |world| world.call_ends(id, Verdict::Broken));
        };
        if object.truth == Truth::Starting {
            return self.violate("a pod is granted that was never ready");
        }
        if object.calls.len() >= takes {
            self.count("refused by a full pod");
            return self.after(1, 100, move |world| world.call_ends(id, Verdict::Full));
        }
        object.calls.push((runner, id));
        let hang = object.hang;
        if object.calls.iter().filter(|(other, _)| *other == runner).count() > per_pod {
            self.violate("more calls in a pod than allowed");
        }
        if let Some(hang) = hang {
            self.count("granted a pod that hangs");
            if hang != Hang::Calls && self.rng.chance(50) {
                return self.after(3000, 25_000, move |world| world.call_ends(id, Verdict::Silent));
            }
            let package = if hang == Hang::Calls { id.0 } else { 0 };
            return self.at(deadline, move |world| world.call_ends(id, Verdict::Late { package }));
        }
        let longest = if self.faults_over { 2000 } else { self.rng.pick(&[500, 5000, 120_000, 280_000]) };
        let verdict = if !self.faults_over && self.rng.chance(3) { Verdict::Broken } else { Verdict::Served };
        self.after(10, longest, move |world| world.call_ends(id, verdict));
        // If the call is still running at its deadline, the function is slow.
        self.at(deadline, move |world| world.call_ends(id, Verdict::Late { package: 0 }));
    }

    fn rejected(&mut self, runner: usize, id: RequestId, error: &Rejection) {
        self.count(match error {
            Rejection::QueueFull { .. } => "rejected: queue full",
            Rejection::NoRoom => "rejected: no room",
            Rejection::DeadlineExceeded { .. } => "rejected: deadline",
            Rejection::PodFailed { .. } => "rejected: pod failed",
            Rejection::NotReady { .. } => "rejected: not ready",
        });
        match self.calls.remove(&id) {
            Some(call) if call.runner == runner && call.pod.is_none() => {
                if call.must_succeed {
                    self.violate(format!("a call is rejected although all is well: {error:?}"));
                }
            }
            _ => self.violate(format!("call {id:?} is rejected a second time or after its end")),
        }
    }

    fn probe(&mut self, runner: usize, uid: Uid, on: bool) {
        if !on {
            self.runners[runner].probing.remove(&uid);
            return;
        }
        self.runners[runner].probing.insert(uid.clone());
        if self.server.seems_ready(&uid) {
            self.after(1, 300, move |world| world.probed(runner, uid));
        } else if self.server.get(&uid).is_none() {
            // The driver checks whether a pod that does not answer still exists: a late answer of
            // the API server may have added the pod to the view after the pod was gone.
            self.after(1000, 2000, move |world| {
                if world.runners[runner].probing.remove(&uid) {
                    world.runners[runner].report_gone(&uid);
                    world.feed(runner, Event::Gone(uid));
                }
            });
        }
    }

    fn check(&mut self, runner: usize, uid: Uid, number: u64) {
        let life = self.runners[runner].life;
        let answered = self.server.seems_ready(&uid);
        let (low, high) = if answered { (1, 900) } else { (1000, 3000) };
        let delay = self.rng.between(low, high);
        let event = Event::Checked { uid, number, answered };
        self.at(self.now + delay, move |world| world.answer(runner, life, None, event));
    }

    /// Ends the runner's calls on the pod. (The real driver moves them to other pods.)
    fn disconnect(&mut self, runner: usize, uid: &Uid) {
        self.count("cut");
        let calls = self.server.get(uid).map(|object| object.calls.clone()).unwrap_or_default();
        for (_, id) in calls.into_iter().filter(|(of, _)| *of == runner) {
            self.after(1, 100, move |world| world.call_ends(id, Verdict::Broken));
        }
    }

    pub(crate) fn call_ends(&mut self, id: RequestId, verdict: Verdict) {
        let pod = self.calls.get(&id).and_then(|call| call.pod.clone());
        let hang = pod.and_then(|uid| self.server.get(&uid)?.hang);
        if hang.is_some() && verdict == Verdict::Served {
            return;
        }
        let refused = self.calls.get(&id).filter(|_| verdict == Verdict::Full);
        let again = refused.map(|call| (call.image.clone(), call.deadline, call.must_succeed));
        if let Some(runner) = self.forget_call(id) {
            self.feed(runner, Event::Finished { id, verdict });
            if let Some((image, deadline, must_succeed)) = again {
                let image = self.images.iter().position(|other| *other == image).unwrap_or_default();
                self.request(runner, image, deadline.saturating_sub(self.now), must_succeed);
            }
        }
    }

    pub(crate) fn caller_gone(&mut self, id: RequestId) {
        if let Some(runner) = self.forget_call(id) {
            self.count("cancelled");
            self.feed(runner, Event::Cancel(id));
        }
    }

    fn forget_call(&mut self, id: RequestId) -> Option<usize> {
        let call = self.calls.remove(&id)?;
        if let Some(object) = call.pod.and_then(|uid| self.server.get_mut(&uid)) {
            object.calls.retain(|&(_, other)| other != id);
        }
        Some(call.runner)
    }

    /// A create, delete or push reaches the API server, if the server is available.
    fn arrive(&mut self, runner: usize, life: u64, sent: u64, action: Action) {
        let cut_off = self.outage.1 > self.now || self.outage.0 >= sent;
        // Do not drop single pushes. If the API server does not answer a push, the pool uses the
        // pod anyway, by design. If the owner still reaches the API server, it may then delete a
        // pod in use, which would count as a violation.
        let may_drop = !self.faults_over && !matches!(action, Action::Push { .. });
        let lost = cut_off || (may_drop && self.rng.chance(3));
        let result = WriteOutcome::Unreachable;
        let unknown = match action.clone() {
            Action::Create { name, .. } => Event::Created { name, result: Creation::Unreachable },
            Action::Delete { uid, .. } => Event::Deleted { uid, result },
            Action::Push { uid, .. } => Event::Pushed { uid, result },
            _ => return,
        };
        let timeout = sent + API_TIMEOUT;
        if lost {
            self.count("request lost");
            return self.at(timeout, move |world| world.answer(runner, life, None, unknown));
        }
        let (event, written) = self.apply(runner, action);
        if !self.faults_over && !self.gentle && matches!(event, Event::Pushed { .. }) && self.rng.chance(10) {
            let time = self.now + self.rng.between(0, API_TIMEOUT);
            return self.at(time, move |world| world.answer(runner, life, written, event));
        }
        if !self.faults_over && self.rng.chance(3) {
            self.count("answer lost");
            return self.at(timeout, move |world| world.answer(runner, life, None, unknown));
        }
        let latency = self.latency();
        self.at(self.now + latency, move |world| world.answer(runner, life, written, event));
    }

    fn apply(&mut self, runner: usize, action: Action) -> (Event, Option<Pod>) {
        match action {
            Action::Create { name, shard_key, recipe, reclaim_after } => {
                let reclaim_after = Some(reclaim_after);
                let pod = Pod { name: name.clone(), shard_key, recipe, reclaim_after, ..Pod::default() };
                match self.apply_create(pod) {
                    Ok(pod) => (Event::Created { name, result: Creation::Ok(pod.uid.clone()) }, Some(pod)),
                    Err(result) => (Event::Created { name, result }, None),
                }
            }
            Action::Delete { uid, resource_version, reason, .. } => {
                let result = self.apply_delete(runner, &uid, &resource_version, reason);
                (Event::Deleted { uid, result }, None)
            }
            Action::Push { uid, resource_version, until, place_wanted, .. } => {
                let terminating = self.server.get(&uid).is_some_and(Object::is_terminating);
                let checked = self.server.check(&uid, &resource_version);
                let result = if terminating { WriteOutcome::Gone } else { checked };
                let accepted = result == WriteOutcome::Ok;
                let pod = accepted.then(|| self.server.push(&uid, until, place_wanted)).flatten();
                self.count(if result == WriteOutcome::Conflict { "push: conflict" } else { "push" });
                (Event::Pushed { uid, result }, pod)
            }
            _ => unreachable!("only writes travel to the API server"),
        }
    }

    fn apply_create(&mut self, pod: Pod) -> Result<Pod, Creation> {
        if !self.faults_over && self.rng.chance(4) {
            return Err(Creation::Refused(Reason::new("other", "exceeded quota")));
        }
        let image = pod.name.image.clone();
        if self.quota.is_some_and(|quota| self.server.objects.len() >= quota) {
            self.count("create: over quota");
            return Err(Creation::OverQuota(Reason::new("other", "exceeded quota")));
        }
        let Some(pod) = self.server.create(pod, self.now) else {
            self.count("create: exists");
            return Err(Creation::Exists);
        };
        self.count("created");
        self.draw_fate(pod.uid.clone());
        let counted = |object: &&Object| object.pod.name.image == image && !object.is_terminating();
        let counted = self.server.objects.values().filter(counted);
        // A pod that avoids the name of a stuck pod has an additional name (`past`) for the same
        // slot.
        let (passing, counted): (Vec<_>, Vec<_>) = counted.partition(|object| object.pod.name.past.is_some());
        // Runners with different views of terminating pods avoid different names, so there may be
        // one more such pod per runner.
        let (limit, runners) = (self.highest_limit as usize, self.runners.len());
        if counted.len() > limit + 1 || passing.len() > limit + runners {
            self.violate(format!("{} + {} pods, limit {}", counted.len(), passing.len(), self.highest_limit));
        }
        Ok(pod)
    }

    fn apply_delete(
        &mut self,
        runner: usize,
        uid: &Uid,
        judged: &ResourceVersion,
        reason: DeleteReason,
    ) -> WriteOutcome {
        let result = self.server.check(uid, judged);
        if result == WriteOutcome::Conflict {
            self.count("delete: conflict");
            return result;
        }
        let Some(object) = self.server.get(uid) else { return result };
        if object.is_terminating() {
            return result;
        }
        let in_use = !object.calls.is_empty();
        let (image, serves) = (object.pod.name.image.clone(), object.truth == Truth::Ready);
        // A pod may become ready just when its start times out, so a pod counts as healthy only
        // after `GRACE`.
        let well = object.truth == Truth::Ready
            && object.hang.is_none()
            && object.ready_since.is_some_and(|at| at + GRACE < self.now);
        let faulty = matches!(reason, DeleteReason::Failed | DeleteReason::Hung);
        // The notice of an eviction is short. A runner that uses the pod loses it if the runner
        // sees the notice late, or if the runner's push arrives late.
        let limited = is_limited(&self.config, self.quota);
        let short = reason == DeleteReason::Evicted || (reason == DeleteReason::Expired && limited);
        let unheard = short && !self.gentle && object.calls.iter().all(|&(user, _)| user != runner);
        if in_use && unheard {
            self.count("evicted in use elsewhere");
        } else if in_use && (!faulty || well) {
            self.violate(format!("pod {uid} is deleted ({reason:?}) while in use"));
        } else if faulty && well {
            self.violate(format!("pod {uid} is deleted as failed although it serves"));
        }
        if self.settled && serves && self.serving(&image) <= self.to_be_kept(&image) {
            self.violate(format!("pod {uid} is deleted ({reason:?}) although it is to be kept"));
        }
        self.count(format!("deleted: {reason:?}"));
        self.terminate(uid);
        WriteOutcome::Ok
    }
}
