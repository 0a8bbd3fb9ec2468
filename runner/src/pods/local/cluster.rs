//! The set of local pods, shared by the runners of one process: names, versions, preconditions,
//! events.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use porch_fn_grpc_client::conn::Connection;
use porch_fn_lifecycle::tasks::pass_on_panic;
use porch_fn_pool::{
    Action, Creation, Event, ImageKey, Phase, Pod, PodName, PodRecipe, Reason, ResourceVersion, ShardKey,
    Time, Uid, WriteOutcome,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tonic::async_trait;
use tracing::Instrument;

use super::process::{self, LocalOptions, Place};
use super::sandboxes::Sandboxes;
use crate::clock::now;
use crate::pods::backend::{Backend, PodFacts};
use crate::pods::commands::ImageCommands;
use crate::pods::probe::{CONNECTION, until_serving};

/// All local pods. Cheap to clone. [`stop`](Self::stop) ends the processes. Dropping the last clone
/// also ends them: it closes the wrappers' stdin, and each wrapper then ends.
#[derive(Debug, Clone)]
pub struct LocalCluster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Distinguishes this cluster from other local clusters.
    id: u64,
    options: LocalOptions,
    state: Mutex<State>,
    /// Changes with every pod.
    changes: watch::Sender<()>,
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
        let (changes, _) = watch::channel(());
        Self(Arc::new(Inner { id: fastrand::u64(..), options, state: Mutex::default(), changes }))
    }

    /// The cluster's unique name. Runners with the same scope share the same pods.
    pub(crate) fn scope(&self) -> String {
        format!("local/{:016x}", self.0.id)
    }

    /// The functions that have pods here.
    pub(crate) fn functions(&self) -> &ImageCommands {
        &self.0.options.functions
    }

    /// The sandboxes of all other images.
    pub(crate) fn sandboxes(&self) -> Option<&Arc<dyn Sandboxes>> {
        self.0.options.sandboxes.as_ref()
    }

    /// The images that have pods, each with its shard key.
    pub(crate) fn images(&self) -> BTreeSet<(ImageKey, ShardKey)> {
        let state = self.0.state.lock();
        let pods = state.pods.values().map(|local| &local.pod);
        pods.map(|pod| (pod.name.image.clone(), pod.shard_key.clone())).collect()
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
        let refused = |reason: &str| Creation::Refused(Reason::new("other", reason));
        let command = self.functions().command(&name.image).map(<[String]>::to_vec);
        if command.is_none() && self.sandboxes().is_none() {
            return refused("the image has no command: add it to --local-functions");
        }
        let mut state = self.0.state.lock();
        if state.stopping {
            return refused("the runner is shutting down");
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
        let supervisor = supervise(Arc::downgrade(&self.0), uid.clone(), image, command, stopped);
        state.supervisors.spawn(supervisor.in_current_span());
        Creation::Ok(uid)
    }

    fn delete(&self, uid: &Uid, judged: &ResourceVersion) -> WriteOutcome {
        let mut state = self.0.state.lock();
        let outcome = state.write(uid, judged, |local| {
            local.pod.terminating_since = Some(now() + process::GRACE);
            drop(local.keep_alive.take());
        });
        // A running pod is removed when its process ends. The process of a failed pod has already
        // ended, so remove the pod here.
        if let Some(LocalPod { pod: Pod { phase: Phase::Failed(_), .. }, .. }) = state.pods.get(uid)
            && outcome == WriteOutcome::Ok
        {
            state.remove(uid);
        }
        outcome
    }

    fn push(
        &self,
        uid: &Uid,
        judged: &ResourceVersion,
        until: Time,
        place_wanted: Option<Time>,
    ) -> WriteOutcome {
        self.0.state.lock().write(uid, judged, |local| {
            local.pod.reclaim_after = Some(until);
            local.pod.place_wanted = place_wanted.or(local.pod.place_wanted);
        })
    }

    /// Waits until the pod's wrapper listens. If the pod ends before, waits until the caller stops.
    async fn until_located(&self, uid: &Uid) {
        let mut changes = self.0.changes.subscribe();
        while self.connection(uid).is_none() {
            // The sender is here.
            let _ = changes.changed().await;
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
                let result = self.delete(&uid, &resource_version);
                Event::Deleted { uid, result }
            }
            Action::Push { uid, resource_version, until, place_wanted, .. } => {
                let result = self.push(&uid, &resource_version, until, place_wanted);
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
            local.wrapper = connect(place);
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

fn connect(place: Place) -> Option<(Place, Arc<Connection>)> {
    let connection = match &place {
        // This cannot fail: any socket address is a valid address.
        Place::Tcp(address) => Connection::new(address.to_string(), CONNECTION, None).ok()?,
        Place::Unix(path) => Connection::unix(path.as_path(), CONNECTION),
    };
    Some((place, Arc::new(connection)))
}

/// Runs one pod's process and records its state. Holds only a weak reference to the cluster:
/// dropping the cluster drops its supervisors, which end their processes.
async fn supervise(
    cluster: Weak<Inner>,
    uid: Uid,
    image: ImageKey,
    command: Option<Vec<String>>,
    mut stopped: oneshot::Receiver<Infallible>,
) {
    let Some(options) = cluster.upgrade().map(|inner| inner.options.clone()) else { return };
    let change = |change: &dyn Fn(&mut LocalPod)| {
        if let Some(inner) = cluster.upgrade() {
            inner.state.lock().change(&uid, change);
            inner.changes.send_replace(());
        }
    };
    let listening = |place: Place| {
        change(&|local| {
            local.wrapper = connect(place.clone());
            local.pod.phase = Phase::Running;
        });
    };
    let failure = match (command, &options.sandboxes) {
        (Some(command), _) => process::run(&options, &command, &mut stopped, listening).await,
        // An image without a command and sandboxes has no pods.
        (None, None) => None,
        (None, Some(sandboxes)) => {
            let pulling = || {
                let reason = Reason::new("pulling", "its image is being pulled");
                change(&|local| local.pod.phase = Phase::Pending(Some(reason.clone())));
            };
            let prepared = tokio::select! {
                prepared = sandboxes.prepare(&image, options.wrapper_args(), &pulling) => Some(prepared),
                Err(_) = &mut stopped => None,
            };
            match prepared {
                Some(Ok(pod)) => {
                    // What the store has, which may be older than what the registry has.
                    let content = pod.content();
                    change(&|local| local.pod.recipe.content.clone_from(&content));
                    pod.run(&mut stopped, &|socket| listening(Place::Unix(socket))).await
                }
                Some(Err(reason)) => Some(reason),
                None => None,
            }
        }
    };
    if let Some(inner) = cluster.upgrade() {
        inner.state.lock().ended(&uid, failure);
    }
}

// === impl State ===

impl State {
    /// Records that a pod's process has ended. Without a `failure`, the process was stopped on
    /// request.
    fn ended(&mut self, uid: &Uid, failure: Option<Reason>) {
        let Some(local) = self.pods.get(uid) else { return };
        match failure {
            Some(reason) if local.pod.terminating_since.is_none() => {
                tracing::warn!(error = &*reason.text, "local pod failed");
                self.change(uid, |local| {
                    local.wrapper = None;
                    local.pod.phase = Phase::Failed(reason);
                });
            }
            // A pod that died during its deletion counts as deleted.
            _ => self.remove(uid),
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
