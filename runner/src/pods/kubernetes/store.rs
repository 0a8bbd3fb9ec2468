//! Stores the last reported state of pods and Services, but only the fields that the runner needs.
//!
//! Reports about pods come from the watch and from the API server's answers, in any order. The
//! store drops a state that is older than the known state or belongs to a deleted pod. It records a
//! report, logs it and notifies the pool under one lock. So the pool gets each pod's events in
//! order. When the pool rejects a call because its pod failed, the log already has the reason.

mod connections;
mod services;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::{self as pool, Event, Phase, Uid};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::announce::Announcements;
use super::crash::{History, Logged, phase};
use super::observe::{Observed, observe};
use crate::pods::backend::PodFacts;
use crate::pods::images::ImageSource;
use connections::Link;
use services::KnownService;

/// How many UIDs of deleted pods are remembered.
const MAX_GONE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// How runners connect to pods (`--pod-connect`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Connect {
    /// To the cluster IP of the pod's Service. The authority of requests is
    /// `<service>.<namespace>.svc.<domain>`.
    Service {
        /// The authority after the Service's name and the dot.
        suffix: String,
    },
    /// To the pod's own address.
    PodIp,
}

/// The last reported state of pods and Services.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) connect: Connect,
    /// Sends events to the pool.
    events: mpsc::UnboundedSender<Event>,
    /// With `--pod-announce`.
    pub(super) announcements: Option<Announcements>,
    /// The metadata of images. It learns from pods the entrypoints of images, and which images a
    /// registry lacks or denies.
    pub(super) images: Arc<ImageSource>,
    /// Lock this before `state`, and hold it until the pool is notified.
    reports: Mutex<Reports>,
    /// Every call takes this lock, so hold it only briefly.
    state: Mutex<State>,
    services_listed: watch::Sender<bool>,
}

/// Earlier reports of pods. The next report of a pod is compared with them.
#[derive(Debug)]
struct Reports {
    pods: HashMap<Uid, Earlier>,
    /// UIDs of deleted pods. An answer about a pod may arrive after its deletion.
    gone: LruCache<Uid, ()>,
}

/// Facts from earlier reports of a pod.
#[derive(Debug, Default)]
struct Earlier {
    history: History,
    logged: Logged,
    /// Whether the image's entrypoint was learned from this pod.
    learned: bool,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<Uid, KnownPod>,
    services: HashMap<String, KnownService>,
}

#[derive(Debug, Default)]
struct KnownPod {
    seen: Observed,
    /// Whether the pod has served. If such a pod stops answering, it may be gone although the watch
    /// has not reported that.
    served: bool,
    /// When the pod's termination was first reported.
    ending: Option<Instant>,
    link: Option<Link>,
    /// The address that the pod announced, until the API server reports its address.
    announced: Option<IpAddr>,
    /// With [`Connect::Service`]: the connection to the pod's own address, while the pod starts.
    direct: Option<(IpAddr, Arc<Connection>)>,
    /// The cluster's last message about why the pod waits or failed. `None` if it runs.
    cause: Option<String>,
}

// === impl Store ===

impl Store {
    pub(crate) fn new(
        connect: Connect,
        announcements: Option<Announcements>,
        images: Arc<ImageSource>,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        let reports = Mutex::new(Reports { pods: HashMap::new(), gone: LruCache::new(MAX_GONE) });
        let services_listed = watch::Sender::new(false);
        Self { connect, announcements, events, images, reports, state: Mutex::default(), services_listed }
    }

    /// Notifies the pool. If the driver has stopped, the event is dropped.
    pub(super) fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Records a new or changed pod. Returns the pod as the object describes it; `None` if it is
    /// not a function pod.
    pub(super) fn record_pod(&self, object: &Pod) -> Option<pool::Pod> {
        let observed = observe(object)?;
        let shown = observed.pod.clone();
        let mut reports = self.reports.lock();
        if let Some((pod, true)) = self.record(&mut reports, object, observed) {
            self.send(Event::Seen(pod));
        }
        Some(shown)
    }

    /// Removes a pod that was deleted or that a request did not find.
    pub(super) fn remove_pod(&self, uid: &Uid) {
        let mut reports = self.reports.lock();
        reports.pods.remove(uid);
        reports.gone.put(uid.clone(), ());
        self.state.lock().pods.remove(uid);
        self.send(Event::Gone(uid.clone()));
    }

    /// Replaces all pods by the full list. If the list has an older state of a pod than the store,
    /// the store keeps its own state. The store removes each pod that is not in the list. If such a
    /// pod was created after the list, the watch reports the pod again.
    pub(super) fn replace_pods(&self, objects: &[Pod]) {
        let observed: Vec<_> = objects.iter().filter_map(|object| Some((object, observe(object)?))).collect();
        let listed: HashSet<_> = observed.iter().map(|(_, observed)| observed.pod.uid.clone()).collect();
        let mut reports = self.reports.lock();
        reports.pods.retain(|uid, _| listed.contains(uid));
        self.state.lock().pods.retain(|uid, _| listed.contains(uid));
        let pods =
            observed.into_iter().filter_map(|(object, observed)| self.record(&mut reports, object, observed));
        self.send(Event::Synced(pods.map(|(pod, _)| pod).collect()));
    }

    /// Records a pod, and what it shows about its image. The caller then notifies the pool, whose
    /// next action uses both. Returns the pod's newest known state, and whether `object` has that
    /// state. Returns `None` if the pod was deleted.
    fn record(
        &self,
        reports: &mut Reports,
        object: &Pod,
        mut observed: Observed,
    ) -> Option<(pool::Pod, bool)> {
        let Observed { pod, entrypoint, .. } = &mut observed;
        let uid = pod.uid.clone();
        if reports.gone.contains(&uid) {
            return None;
        }
        if let Some(known) = self.state.lock().pods.get(&uid)
            && is_older(pod.resource_version.as_str(), known.seen.pod.resource_version.as_str())
        {
            return Some((known.seen.pod.clone(), false));
        }
        let earlier = reports.pods.entry(uid.clone()).or_default();
        let was_refused = earlier.history.image_was_refused();
        pod.phase = phase(object, &mut earlier.history);
        if earlier.history.image_was_refused() && !was_refused {
            self.images.distrust(&pod.name.image);
        }
        if let Some(entrypoint) = entrypoint.take()
            && pod.phase == Phase::Running
            && !std::mem::replace(&mut earlier.learned, true)
        {
            self.images.learn(&pod.name.image, pod.recipe.content.as_ref(), entrypoint);
        }
        let lines = earlier.logged.take_new(object);
        for line in &lines {
            line.log(object);
        }
        let pod = pod.clone();
        let mut state = self.state.lock();
        let known = state.pods.entry(uid).or_default();
        if matches!(pod.phase, Phase::Running | Phase::Pending(None)) {
            known.cause = None;
        } else if let Some(line) = lines.first()
            && (known.cause.is_none() || known.seen.pod.phase != pod.phase)
        {
            known.cause = Some(line.cause());
        }
        known.seen = observed;
        if pod.terminating_since.is_some() {
            known.ending.get_or_insert_with(Instant::now);
        }
        Some((pod, true))
    }

    /// Records the address that a starting pod announced. Returns whether the token is valid and
    /// the pod still starts.
    pub(crate) fn announce(&self, token: &str, address: IpAddr) -> bool {
        let Some(uid) = self.announcements.as_ref().and_then(|known| known.redeem(token)) else {
            return false;
        };
        match self.state.lock().pods.get_mut(&uid) {
            Some(pod) if !pod.served => {
                pod.announced = Some(address);
                true
            }
            _ => false,
        }
    }

    /// Records that the pod's wrapper serves.
    pub(super) fn record_served(&self, uid: &Uid) {
        if let Some(pod) = self.state.lock().pods.get_mut(uid) {
            pod.served = true;
        }
    }

    /// Whether the pod has ever served, as far as this runner knows.
    pub(super) fn has_served(&self, uid: &Uid) -> bool {
        self.state.lock().pods.get(uid).is_some_and(|pod| pod.served)
    }

    /// Records that the API server accepted the delete of a pod. The watch may never report the
    /// pod's termination.
    pub(super) fn record_ending(&self, uid: &Uid) {
        if let Some(pod) = self.state.lock().pods.get_mut(uid) {
            pod.ending.get_or_insert_with(Instant::now);
        }
    }

    /// Pods whose termination was reported at least `long` ago, and their objects' names.
    pub(super) fn ending_for(&self, long: Duration) -> Vec<(Uid, String)> {
        let state = self.state.lock();
        let ending = state.pods.iter().filter(|(_, pod)| pod.ending.is_some_and(|at| at.elapsed() >= long));
        ending.map(|(uid, pod)| (uid.clone(), pod.seen.object_name.clone())).collect()
    }

    /// The name of the pod's object.
    pub(super) fn object_name(&self, uid: &Uid) -> Option<String> {
        self.state.lock().pods.get(uid).map(|pod| pod.seen.object_name.clone())
    }

    /// The pod as people know it.
    pub(super) fn facts(&self, uid: &Uid) -> Option<PodFacts> {
        let state = self.state.lock();
        let KnownPod { seen, cause, .. } = state.pods.get(uid)?;
        Some(PodFacts { name: seen.object_name.clone(), created: seen.created, cause: cause.clone() })
    }
}

/// Compares resource versions as numbers. A version that is not a number counts as newer.
fn is_older(version: &str, known: &str) -> bool {
    matches!((version.parse::<u64>(), known.parse::<u64>()), (Ok(version), Ok(known)) if version < known)
}
