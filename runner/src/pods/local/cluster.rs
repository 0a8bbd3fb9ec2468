//! The set of local pods, shared by the runners of one process: names, versions, preconditions,
//! events.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use porch_fn_grpc_client::conn::Connection;
use porch_fn_lifecycle::tasks::pass_on_panic;
use porch_fn_pool::{
    Action, Creation, Event, ImageKey, Phase, Pod, PodName, PodRecipe, Reason, ResourceVersion, ShardKey,
    Time, Uid, WriteOutcome,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tonic::async_trait;
use tracing::Instrument;
use wrapper_server::process::collect_orphans;

use super::pod::{GRACE, Place};
use super::wrapper::LocalOptions;
use crate::clock::now;
use crate::pods::backend::{Backend, PodFacts};
use crate::pods::images::ImageSource;
use crate::pods::probe::until_serving;

/// All local pods. Cheap to clone. [`stop`](Self::stop) ends the processes. Dropping the last clone
/// also ends them: it closes the wrappers' stdin, and each wrapper then ends.
#[derive(Debug, Clone)]
pub struct LocalCluster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Distinguishes this cluster from other local clusters.
    id: u64,
    options: LocalOptions,
    images: Arc<ImageSource>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<Uid, LocalPod>,
    last_version: u64,
    subscribers: Vec<mpsc::UnboundedSender<Event>>,
    supervisors: JoinSet<()>,
    stopping: bool,
}

#[derive(Debug)]
struct LocalPod {
    pod: Pod,
    created: Time,
    /// The address of the pod's wrapper, and the connection that all runners share.
    wrapper: Option<(Place, Arc<Connection>)>,
    /// Dropping this makes the supervisor end the process.
    keep_alive: Option<oneshot::Sender<Infallible>>,
}

// === impl LocalCluster ===

impl LocalCluster {
    /// Creates a cluster without pods.
    pub fn new(options: LocalOptions) -> Self {
        let registries = options.sandboxes.as_ref().map(|sandboxes| sandboxes.registries());
        let images = Arc::new(ImageSource { file: options.functions.clone(), registries });
        Self(Arc::new(Inner { id: fastrand::u64(..), options, images, state: Mutex::default() }))
    }

    /// The cluster's unique name. Runners with the same scope share the same pods.
    pub(crate) fn scope(&self) -> String {
        format!("local/{:016x}", self.0.id)
    }

    /// The images that can have pods here.
    pub(crate) fn images(&self) -> Arc<ImageSource> {
        Arc::clone(&self.0.images)
    }

    /// Sends the existing pods to `events`, and then every change.
    pub(crate) fn subscribe(&self, events: mpsc::UnboundedSender<Event>) {
        let mut state = self.0.state.lock();
        let pods = state.pods.values().map(|local| local.pod.clone()).collect();
        // This fails if the runner has stopped. The next event then removes its subscription.
        let _ = events.send(Event::Synced(pods));
        state.subscribers.push(events);
    }

    /// Ends all processes and waits for them.
    pub async fn stop(&self) {
        let mut supervisors = {
            let mut state = self.0.state.lock();
            state.stopping = true;
            state.pods.values_mut().for_each(|local| drop(local.keep_alive.take()));
            std::mem::take(&mut state.supervisors)
        };
        while supervisors.join_next().await.is_some() {}
    }

    fn create(&self, name: PodName, shard_key: ShardKey, recipe: PodRecipe, reclaim_after: Time) -> Creation {
        let mut state = self.0.state.lock();
        if state.stopping {
            return Creation::Refused(Reason::new("other", "the runner is shutting down"));
        }
        if state.pods.values().any(|local| local.pod.name == name) {
            return Creation::Exists;
        }
        let resource_version = state.next_version();
        let uid = Uid::from(format!("local-{}", resource_version.as_str()));
        let image = name.image.clone();
        let pod = Pod {
            name,
            uid: uid.clone(),
            resource_version,
            shard_key,
            recipe,
            reclaim_after: Some(reclaim_after),
            ..Pod::default()
        };
        state.send(&Event::Seen(pod.clone()));
        let (keep_alive, stopped) = oneshot::channel();
        let local = LocalPod { pod, created: now(), wrapper: None, keep_alive: Some(keep_alive) };
        state.pods.insert(uid.clone(), local);
        while let Some(ended) = state.supervisors.try_join_next() {
            pass_on_panic(ended);
        }
        let supervisor = supervise(Arc::downgrade(&self.0), uid.clone(), image, stopped);
        state.supervisors.spawn(supervisor.in_current_span());
        Creation::Ok(uid)
    }

    /// Waits until the pod's wrapper listens. If the pod ends before, waits until the caller stops.
    async fn until_located(&self, uid: &Uid) {
        let (sender, mut events) = mpsc::unbounded_channel();
        self.subscribe(sender);
        while self.connection(uid).is_none() {
            // The cluster has the sender.
            let _ = events.recv().await;
        }
    }
}

#[async_trait]
impl Backend for LocalCluster {
    async fn execute(&self, action: Action) -> Option<Event> {
        Some(match action {
            Action::Create { name, shard_key, recipe, reclaim_after } => {
                let result = self.create(name.clone(), shard_key, recipe, reclaim_after);
                Event::Created { name, result }
            }
            Action::Delete { uid, resource_version, .. } => {
                // The pod's supervisor removes it when it has ended.
                let result = self.0.state.lock().write(&uid, &resource_version, |local| {
                    local.pod.terminating_since = Some(now() + GRACE);
                    drop(local.keep_alive.take());
                });
                Event::Deleted { uid, result }
            }
            Action::Push { uid, resource_version, until, place_wanted, .. } => {
                let result = self.0.state.lock().write(&uid, &resource_version, |local| {
                    local.pod.reclaim_after = Some(until);
                    local.pod.place_wanted = place_wanted.or(local.pod.place_wanted);
                });
                Event::Pushed { uid, result }
            }
            Action::Probe { uid, .. } => {
                // The pool stops the probe when the pod is gone.
                self.until_located(&uid).await;
                until_serving(|| self.connection(&uid)).await;
                Event::Ready(uid)
            }
            _ => return None,
        })
    }

    fn disconnect(&self, uid: &Uid) {
        if let Some(local) = self.0.state.lock().pods.get_mut(uid)
            && let Some((place, connection)) = local.wrapper.take()
        {
            connection.close();
            // The next call dials it.
            local.wrapper = place.connect();
        }
    }

    /// There is none before the wrapper listens.
    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>> {
        let state = self.0.state.lock();
        let (_, connection) = state.pods.get(uid)?.wrapper.as_ref()?;
        Some(Arc::clone(connection))
    }

    /// The pod's name is its UID.
    fn facts(&self, uid: &Uid) -> Option<PodFacts> {
        let created = self.0.state.lock().pods.get(uid)?.created;
        Some(PodFacts { name: uid.to_string(), created: Some(created), cause: None })
    }
}

/// Runs one pod and records its state. Holds only a weak reference to the cluster: dropping the cluster
/// drops its supervisors, which end their pods.
async fn supervise(
    cluster: Weak<Inner>,
    uid: Uid,
    image: ImageKey,
    mut stopped: oneshot::Receiver<Infallible>,
) {
    let Some(options) = cluster.upgrade().map(|inner| inner.options.clone()) else { return };
    let record = |change: &mut dyn FnMut(&mut State)| {
        if let Some(inner) = cluster.upgrade() {
            change(&mut inner.state.lock());
        }
    };
    let pulling = || {
        let reason = Reason::new("pulling", "its image is being pulled");
        let phase = Phase::Pending(Some(reason));
        record(&mut |state| state.change(&uid, |local| local.pod.phase.clone_from(&phase)));
    };
    let started = tokio::select! {
        started = options.start(&image, &pulling) => started.map(Some),
        Err(_) = &mut stopped => Ok(None),
    };
    let failure = match started {
        Ok(Some(pod)) => {
            record(&mut |state| {
                state.change(&uid, |local| {
                    local.wrapper = pod.place.clone().connect();
                    local.pod.phase = Phase::Running;
                    // What the image store has may be older than what the registry has.
                    local.pod.recipe.content.clone_from(&pod.content);
                });
            });
            pod.run(&mut stopped).await
        }
        Ok(None) => None,
        Err(reason) => Some(reason),
    };
    // A killed wrapper leaves its functions running. They are now children of this process, which
    // kills them here.
    collect_orphans();
    if let Some(reason) = failure {
        record(&mut |state| state.failed(&uid, reason.clone()));
        // A failed pod stays until it is deleted.
        let Err(_) = stopped.await;
    }
    record(&mut |state| state.remove(&uid));
}

// === impl State ===

impl State {
    /// Records that a pod has ended by itself.
    fn failed(&mut self, uid: &Uid, reason: Reason) {
        // A pod that died during its deletion counts as deleted.
        if self.pods.get(uid).is_some_and(|local| local.pod.terminating_since.is_none()) {
            tracing::warn!(error = &*reason.text, "local pod failed");
            self.change(uid, |local| {
                local.wrapper = None;
                local.pod.phase = Phase::Failed(reason);
            });
        }
    }

    /// Changes the pod only if it still has the resource version `judged`.
    fn write(
        &mut self,
        uid: &Uid,
        judged: &ResourceVersion,
        change: impl FnOnce(&mut LocalPod),
    ) -> WriteOutcome {
        match self.pods.get(uid) {
            None => return WriteOutcome::Gone,
            Some(local) if local.pod.resource_version != *judged => return WriteOutcome::Conflict,
            Some(_) => self.change(uid, change),
        }
        WriteOutcome::Ok
    }

    fn change(&mut self, uid: &Uid, change: impl FnOnce(&mut LocalPod)) {
        let version = self.next_version();
        let Some(local) = self.pods.get_mut(uid) else { return };
        change(local);
        local.pod.resource_version = version;
        let seen = Event::Seen(local.pod.clone());
        self.send(&seen);
    }

    fn remove(&mut self, uid: &Uid) {
        self.pods.remove(uid);
        self.send(&Event::Gone(uid.clone()));
    }

    fn next_version(&mut self) -> ResourceVersion {
        self.last_version += 1;
        ResourceVersion::from(self.last_version.to_string())
    }

    fn send(&mut self, event: &Event) {
        self.subscribers.retain(|subscriber| subscriber.send(event.clone()).is_ok());
    }
}
