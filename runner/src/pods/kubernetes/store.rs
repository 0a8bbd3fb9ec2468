//! What the watches have shown, trimmed to what is needed: where pods are, and which Services stand before them.
//!
//! Pods are told of by the watch, by answers to writes and by the probes' own questions, in no certain order. Here
//! they come together: what is older than what is known, or of a pod that is gone, is dropped, and the pool is told
//! under the same lock, so that it hears of each pod in order.

mod connections;
mod news;
mod services;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_pool::{Event, ImageKey, Phase, ShardKey, Uid};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::metadata::ImageSource;
use super::observe::{Observed, Tries, observe};
use connections::Link;
pub(super) use connections::close_idle;
use news::{Logged, News};
pub(super) use services::KnownService;

/// Uids that are remembered after their pods are gone.
const MAX_GONE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// How pods are reached (`--pod-connect`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Connect {
    /// By the cluster IP of the pod's Service; requests name `<service>.<namespace>.svc.<domain>`.
    Service {
        /// What follows the Service's name.
        suffix: String,
    },
    /// By the pod's own address.
    PodIp,
}

/// Pods and Services as last seen.
#[derive(Debug)]
pub(super) struct Store {
    connect: Connect,
    /// To the pool.
    events: mpsc::UnboundedSender<Event>,
    /// What becomes doubtful when a pod's image is not there.
    images: Option<Arc<ImageSource>>,
    state: Mutex<State>,
    services_listed: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    pods: HashMap<Uid, KnownPod>,
    /// Answers may come after the end.
    gone: LruCache<Uid, ()>,
    services: HashMap<String, KnownService>,
    /// Pods with a connection, and when it was last handed out. The longest ago comes first.
    used: LruCache<Uid, Instant>,
}

#[derive(Debug)]
struct KnownPod {
    object_name: String,
    pod: porch_fn_pool::Pod,
    ip: Option<IpAddr>,
    tries: Tries,
    /// It served once: if it does not answer any more, it may be gone without our having seen it.
    served: bool,
    /// When it was first heard that it terminates.
    ending: Option<Instant>,
    logged: Logged,
    /// What its image runs was learned from it.
    learned: bool,
    link: Link,
}

/// A pod object, read.
#[derive(Debug)]
struct Read {
    observed: Observed,
    /// What it and earlier states have shown.
    tries: Tries,
}

/// A pod as of now: what was shown, or what is known in a newer state.
#[derive(Debug)]
enum Sight {
    New(porch_fn_pool::Pod),
    Old(porch_fn_pool::Pod),
}

// === impl Store ===

impl Store {
    pub(super) fn new(connect: Connect, events: mpsc::UnboundedSender<Event>) -> Self {
        let state = State {
            pods: HashMap::new(),
            gone: LruCache::new(MAX_GONE),
            services: HashMap::new(),
            used: LruCache::unbounded(),
        };
        let services_listed = watch::Sender::new(false);
        Self { connect, events, images: None, state: Mutex::new(state), services_listed }
    }

    /// Has it doubt what is known of an image that a node did not find.
    pub(super) fn doubting(self, images: Arc<ImageSource>) -> Self {
        Self { images: Some(images), ..self }
    }

    pub(super) fn connect(&self) -> &Connect {
        &self.connect
    }

    /// Tells the pool. A driver that is gone needs no events.
    pub(super) fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// A pod was added or changed, or is as an answer says.
    pub(super) fn pod_seen(&self, object: &Pod) {
        let mut news = Vec::new();
        let mut state = self.state.lock();
        let read = Read::of(object, state.tries_of(object));
        if let Some(Sight::New(pod)) = read.and_then(|read| self.see(&mut state, object, read, &mut news)) {
            self.tell(Event::Seen(pod));
        }
        drop(state);
        news.iter().for_each(News::log);
    }

    /// A pod was deleted, or is not there when asked for.
    pub(super) fn pod_gone(&self, uid: &Uid) {
        let mut state = self.state.lock();
        state.pods.remove(uid);
        state.gone.put(uid.clone(), ());
        self.tell(Event::Gone(uid.clone()));
    }

    /// The full list. It may be older than what is known of some pods, and than the creation of others.
    pub(super) fn pods_listed(&self, objects: &[Pod]) {
        let mut news = Vec::new();
        let listed: HashSet<_> = objects.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        // To read thousands of objects takes long, and calls wait for the lock.
        let mut tries = self.state.lock().tries();
        let read = objects.iter().filter_map(|object| {
            let tries = tries.remove(&Uid::from(object.metadata.uid.as_deref()?));
            Some((object, Read::of(object, tries.unwrap_or_default())?))
        });
        let read: Vec<_> = read.collect();
        let mut state = self.state.lock();
        state.pods.retain(|uid, _| listed.contains(uid.as_str()));
        let sights =
            read.into_iter().filter_map(|(object, read)| self.see(&mut state, object, read, &mut news));
        let pods = sights.map(Sight::into_pod).collect();
        self.tell(Event::Synced(pods));
        drop(state);
        news.iter().for_each(News::log);
    }

    /// Takes note of a pod, before the pool hears of it: the next one that it orders is made of what the registry says
    /// then.
    fn see(&self, state: &mut State, object: &Pod, mut read: Read, news: &mut Vec<News>) -> Option<Sight> {
        let entrypoint = read.observed.entrypoint.take();
        let refused = |state: &State| {
            let known = state.pods.get(&Uid::from(object.metadata.uid.as_deref()?))?;
            known.tries.image_was_refused().then(|| known.pod.name.image.clone())
        };
        let before = refused(state);
        let sight = state.see(object, read, news);
        if let (Some(images), Some(entrypoint)) = (&self.images, entrypoint)
            && let Some(Sight::New(pod)) = &sight
            && pod.phase == Phase::Running
            && let Some(known) = state.pods.get_mut(&pod.uid)
            && !std::mem::replace(&mut known.learned, true)
        {
            images.learn(&pod.name.image, pod.recipe.content.as_ref(), entrypoint);
        }
        if before.is_none()
            && let Some(images) = &self.images
            && let Some(image) = refused(state)
        {
            images.distrust(&image);
        }
        sight
    }

    /// The pod's wrapper serves.
    pub(super) fn served(&self, uid: &Uid) {
        if let Some(pod) = self.state.lock().pods.get_mut(uid) {
            pod.served = true;
        }
    }

    /// Whether it ever served, as far as known here.
    pub(super) fn has_served(&self, uid: &Uid) -> bool {
        self.state.lock().pods.get(uid).is_some_and(|pod| pod.served)
    }

    /// Our delete was accepted; the watch may never tell.
    pub(super) fn pod_ending(&self, uid: &Uid) {
        if let Some(pod) = self.state.lock().pods.get_mut(uid) {
            pod.ending.get_or_insert_with(Instant::now);
        }
    }

    /// Pods that were heard to terminate so long ago, and what their objects are called.
    pub(super) fn ending_for(&self, long: Duration) -> Vec<(Uid, String)> {
        let state = self.state.lock();
        let ending = state.pods.iter().filter(|(_, pod)| pod.ending.is_some_and(|at| at.elapsed() >= long));
        ending.map(|(uid, pod)| (uid.clone(), pod.object_name.clone())).collect()
    }

    /// Images that have pods, each with the key of its owner.
    pub(super) fn images(&self) -> BTreeSet<(ImageKey, ShardKey)> {
        let state = self.state.lock();
        let pods = state.pods.values().map(|known| &known.pod);
        pods.map(|pod| (pod.name.image.clone(), pod.shard_key.clone())).collect()
    }

    /// What the pod's object is called.
    pub(super) fn object_name(&self, uid: &Uid) -> Option<String> {
        self.state.lock().pods.get(uid).map(|pod| pod.object_name.clone())
    }
}

// === impl Read ===

impl Read {
    /// `None` if it is none of ours.
    fn of(object: &Pod, mut tries: Tries) -> Option<Self> {
        Some(Self { observed: observe(object, &mut tries)?, tries })
    }
}

// === impl State ===

impl State {
    /// What earlier states of all pods have shown, to read newer ones by.
    fn tries(&self) -> HashMap<Uid, Tries> {
        self.pods.iter().map(|(uid, known)| (uid.clone(), known.tries.clone())).collect()
    }

    /// The same of one.
    fn tries_of(&self, object: &Pod) -> Tries {
        let uid = object.metadata.uid.as_deref().map(Uid::from);
        uid.and_then(|uid| Some(self.pods.get(&uid)?.tries.clone())).unwrap_or_default()
    }

    /// Takes note of a pod; `None` if it is gone.
    fn see(&mut self, object: &Pod, read: Read, news: &mut Vec<News>) -> Option<Sight> {
        let uid = Uid::from(object.metadata.uid.as_deref()?);
        if self.gone.contains(&uid) {
            return None;
        }
        let known = self.pods.get(&uid);
        if let Some(known) = known
            && is_older(object.metadata.resource_version.as_deref()?, known.pod.resource_version.as_str())
        {
            return Some(Sight::Old(known.pod.clone()));
        }
        let Read { observed: Observed { pod, ip, object_name, entrypoint: _ }, tries } = read;
        let known = self.pods.entry(uid).or_insert_with(|| KnownPod {
            object_name,
            pod: pod.clone(),
            ip: None,
            tries: Tries::default(),
            served: false,
            ending: None,
            logged: Logged::default(),
            learned: false,
            link: Link::None,
        });
        if pod.terminating_since.is_some() {
            known.ending.get_or_insert_with(Instant::now);
        }
        known.pod = pod.clone();
        known.ip = ip;
        known.tries = tries;
        known.logged.add_news(&known.object_name, object, news);
        Some(Sight::New(pod))
    }
}

/// Resource versions are numbers to whoever does not ask for more; others are taken as newer.
fn is_older(version: &str, known: &str) -> bool {
    matches!((version.parse::<u64>(), known.parse::<u64>()), (Ok(version), Ok(known)) if version < known)
}

impl Sight {
    fn into_pod(self) -> porch_fn_pool::Pod {
        match self {
            Self::New(pod) | Self::Old(pod) => pod,
        }
    }
}
