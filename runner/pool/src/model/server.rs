//! The model's API server and the kubelets behind it: the true state, as opposed to the views of
//! the pools.

use std::collections::BTreeMap;

use crate::event::WriteOutcome;
use crate::types::{Phase, Pod, PodName, Reason, RequestId, ResourceVersion, Time, Uid};

/// Milliseconds between a delete and the deletion timestamp (the grace period).
pub(crate) const GRACE: u64 = 30_000;

/// A pod object and the truth about its containers.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) pod: Pod,
    pub(crate) truth: Truth,
    /// Calls that run in it right now, by runner.
    pub(crate) calls: Vec<(usize, RequestId)>,
    /// The start of the current uninterrupted readiness.
    pub(crate) ready_since: Option<u64>,
    pub(crate) hang: Option<Hang>,
    /// When the pod was created.
    pub(crate) made: u64,
}

/// What keeps a pod from serving although it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hang {
    /// The pod answers neither calls nor checks nor probes.
    Silent,
    /// Like `Silent`, and its node is gone: no kubelet ends its containers, so a delete leaves it
    /// terminating for a long time.
    NodeGone,
    /// The pod answers checks and probes, but its calls never end.
    Calls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    Starting,
    Ready,
    Dead,
}

/// What a watch reports.
#[allow(clippy::large_enum_variant, reason = "only tests use this model, and hold few values")]
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Seen(Pod),
    Gone(Uid),
}

#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) objects: BTreeMap<PodName, Object>,
    /// All changes since the start.
    pub(crate) log: Vec<Change>,
    /// An earlier list, and the length of the log at that time. A lagging replica of the API server
    /// answers with this list.
    pub(crate) stale: (Vec<Pod>, usize),
    versions: u64,
    uids: u64,
}

// === impl Object ===

impl Object {
    pub(crate) fn is_terminating(&self) -> bool {
        self.pod.terminating_since.is_some()
    }
}

// === impl Server ===

impl Server {
    fn next_version(&mut self) -> ResourceVersion {
        self.versions += 1;
        ResourceVersion::from(self.versions.to_string())
    }

    pub(crate) fn get(&self, uid: &Uid) -> Option<&Object> {
        self.objects.values().find(|object| object.pod.uid == *uid)
    }

    pub(crate) fn get_mut(&mut self, uid: &Uid) -> Option<&mut Object> {
        self.objects.values_mut().find(|object| object.pod.uid == *uid)
    }

    /// Creates a pod like this one, unless the name is taken.
    pub(crate) fn create(&mut self, pod: Pod, now: u64) -> Option<Pod> {
        if self.objects.contains_key(&pod.name) {
            return None;
        }
        self.uids += 1;
        let (uid, resource_version) = (Uid::from(self.uids.to_string()), self.next_version());
        let pod = Pod { uid, resource_version, ..pod };
        let (truth, calls, ready_since, hang) = (Truth::Starting, Vec::new(), None, None);
        let object = Object { pod: pod.clone(), truth, calls, ready_since, hang, made: now };
        self.objects.insert(pod.name.clone(), object);
        self.log.push(Change::Seen(pod.clone()));
        Some(pod)
    }

    /// Checks the preconditions of a write.
    pub(crate) fn check(&self, uid: &Uid, judged: &ResourceVersion) -> WriteOutcome {
        match self.get(uid) {
            None => WriteOutcome::Gone,
            Some(object) if object.pod.resource_version == *judged => WriteOutcome::Ok,
            Some(_) => WriteOutcome::Conflict,
        }
    }

    /// Changes an object, under a new version.
    pub(crate) fn update(&mut self, uid: &Uid, change: impl FnOnce(&mut Object)) -> Option<Pod> {
        let version = self.next_version();
        let object = self.get_mut(uid)?;
        change(object);
        object.pod.resource_version = version;
        let pod = object.pod.clone();
        self.log.push(Change::Seen(pod.clone()));
        Some(pod)
    }

    pub(crate) fn push(&mut self, uid: &Uid, until: Time, place_wanted: Option<Time>) -> Option<Pod> {
        self.update(uid, |object| {
            object.pod.reclaim_after = Some(until);
            object.pod.place_wanted = place_wanted.or(object.pod.place_wanted);
        })
    }

    /// Whether a probe of the pod succeeds.
    pub(crate) fn seems_ready(&self, uid: &Uid) -> bool {
        let ready = |object: &Object| {
            object.truth == Truth::Ready && object.hang.is_none_or(|hang| hang == Hang::Calls)
        };
        self.get(uid).is_some_and(ready)
    }

    pub(crate) fn terminate(&mut self, uid: &Uid, now: u64) {
        self.update(uid, |object| object.pod.terminating_since = Some(Time::from_millis(now + GRACE)));
    }

    pub(crate) fn fail(&mut self, uid: &Uid) {
        self.update(uid, |object| {
            object.truth = Truth::Dead;
            object.pod.phase = Phase::Failed(Reason::new("other", "it exited with code 1"));
        });
    }

    pub(crate) fn remove(&mut self, uid: &Uid) {
        let Some(name) = self.get(uid).map(|object| object.pod.name.clone()) else { return };
        self.objects.remove(&name);
        self.log.push(Change::Gone(uid.clone()));
    }

    /// The pods as they are, and the length of the log.
    pub(crate) fn list(&self) -> (Vec<Pod>, usize) {
        (self.objects.values().map(|object| object.pod.clone()).collect(), self.log.len())
    }
}
