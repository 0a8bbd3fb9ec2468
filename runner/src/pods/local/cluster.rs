//! The set of local pods, shared by the runners of one process: names, versions, preconditions, events.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use porch_fn_lifecycle::tasks::pass_on_panic;
use porch_fn_pool::{
    Creation, Event, Phase, Pod, PodName, PodRecipe, Reason, ResourceVersion, ShardKey, Time, Uid,
    WriteOutcome,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::Instrument;

use super::backend::LocalBackend;
use super::functions::LocalFunctions;
use super::process::{self, Ended};
use crate::clock::now;
use crate::pods::probe::NoPod;

/// How local pods are made.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// The wrapper-server's command line, up to its own flags.
    pub wrapper: Vec<OsString>,
    /// `--max-request-body-size` for the wrapper.
    pub max_message: usize,
    /// `--log-level` for the wrapper.
    pub log_level: u8,
    /// Which command stands for which image.
    pub functions: LocalFunctions,
}

/// All local pods. Cheap to clone; the processes end with [`stop`](Self::stop), or when it is dropped
/// everywhere, since each wrapper ends when its stdin does.
#[derive(Debug, Clone)]
pub struct LocalCluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Tells it from other clusters.
    id: u64,
    options: LocalOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<Uid, LocalPod>,
    last_number: u64,
    subscribers: Vec<mpsc::UnboundedSender<Event>>,
    supervisors: JoinSet<()>,
    stopping: bool,
}

#[derive(Debug)]
struct LocalPod {
    pod: Pod,
    address: Option<SocketAddr>,
    /// Tells the supervisor to end the process.
    stop: watch::Sender<bool>,
}

impl LocalCluster {
    /// No pods yet.
    pub fn new(options: LocalOptions) -> Self {
        Self { inner: Arc::new(Inner { id: fastrand::u64(..), options, state: Mutex::default() }) }
    }

    /// A name that it has in common with no other: who sees these pods sees the same ones.
    pub(crate) fn scope(&self) -> String {
        format!("local/{:016x}", self.inner.id)
    }

    /// A backend for one runner, which is told of all pods from now on, with those there are first.
    pub fn attach(&self, events: mpsc::UnboundedSender<Event>) -> LocalBackend {
        let mut state = self.inner.state.lock();
        let pods = state.pods.values().map(|local| local.pod.clone()).collect();
        // A runner that is gone already is dropped at the first event.
        let _ = events.send(Event::Synced(pods));
        state.subscribers.push(events.clone());
        LocalBackend::new(self.clone(), events)
    }

    /// Ends all processes and waits for them.
    pub async fn stop(&self) {
        let mut supervisors = {
            let mut state = self.inner.state.lock();
            state.stopping = true;
            for local in state.pods.values() {
                local.stop.send_replace(true);
            }
            std::mem::take(&mut state.supervisors)
        };
        while supervisors.join_next().await.is_some() {}
    }

    pub(super) fn create(
        &self,
        name: PodName,
        shard_key: ShardKey,
        recipe: PodRecipe,
        reclaim_after: Time,
    ) -> Creation {
        let Some(command) = self.inner.options.functions.command(&name.image).map(<[String]>::to_vec) else {
            return refused("no command stands for this image; add it to --local-functions");
        };
        let mut state = self.inner.state.lock();
        if state.stopping {
            return refused("the runner is shutting down");
        }
        if state.pods.values().any(|local| local.pod.name == name) {
            return Creation::Exists;
        }
        let uid = Uid::from(format!("local-{}", state.number()));
        let pod = Pod {
            name,
            uid: uid.clone(),
            resource_version: state.version(),
            shard_key,
            terminating_since: None,
            phase: Phase::Pending(None),
            recipe,
            reclaim_after: Some(reclaim_after),
            place_wanted: None,
        };
        let (stop, stopped) = watch::channel(false);
        state.pods.insert(uid.clone(), LocalPod { pod: pod.clone(), address: None, stop });
        state.tell(&Event::Seen(pod.clone()));
        let span = tracing::info_span!("pod", image = %pod.name.image, slot = pod.name.slot);
        while let Some(ended) = state.supervisors.try_join_next() {
            pass_on_panic(ended);
        }
        let supervisor = supervise(Arc::downgrade(&self.inner), uid.clone(), command, stopped);
        state.supervisors.spawn(supervisor.instrument(span));
        Creation::Ok(uid)
    }

    pub(super) fn delete(&self, uid: &Uid, judged: &ResourceVersion) -> WriteOutcome {
        let mut state = self.inner.state.lock();
        let version = state.version();
        let Some(local) = state.pods.get_mut(uid) else { return WriteOutcome::Gone };
        if local.pod.resource_version != *judged {
            return WriteOutcome::Conflict;
        }
        if matches!(local.pod.phase, Phase::Failed(_)) {
            // Its process is gone already.
            state.pods.remove(uid);
            state.tell(&Event::Gone(uid.clone()));
            return WriteOutcome::Ok;
        }
        local.pod.resource_version = version;
        local.pod.terminating_since = Some(now() + process::GRACE);
        local.stop.send_replace(true);
        let seen = Event::Seen(local.pod.clone());
        state.tell(&seen);
        WriteOutcome::Ok
    }

    pub(super) fn push(
        &self,
        uid: &Uid,
        judged: &ResourceVersion,
        until: Time,
        place_wanted: Option<Time>,
    ) -> WriteOutcome {
        let mut state = self.inner.state.lock();
        let version = state.version();
        let Some(local) = state.pods.get_mut(uid) else { return WriteOutcome::Gone };
        if local.pod.terminating_since.is_some() {
            return WriteOutcome::Gone;
        }
        if local.pod.resource_version != *judged {
            return WriteOutcome::Conflict;
        }
        local.pod.resource_version = version;
        local.pod.reclaim_after = Some(until);
        local.pod.place_wanted = place_wanted.or(local.pod.place_wanted);
        let seen = Event::Seen(local.pod.clone());
        state.tell(&seen);
        WriteOutcome::Ok
    }

    /// Where the pod's wrapper listens. `None` when it does not yet; an error when there is no such pod.
    pub(super) fn address(&self, uid: &Uid) -> Result<Option<SocketAddr>, NoPod> {
        self.inner.state.lock().pods.get(uid).map(|local| local.address).ok_or(NoPod)
    }
}

/// Follows one process from its start to its end. Holds the cluster weakly: a cluster that is dropped drops its
/// supervisors, and they their processes.
async fn supervise(cluster: Weak<Inner>, uid: Uid, command: Vec<String>, stopped: watch::Receiver<bool>) {
    let Some(options) = cluster.upgrade().map(|inner| inner.options.clone()) else { return };
    let listening = |address| {
        if let Some(inner) = cluster.upgrade() {
            inner.state.lock().listening(&uid, address);
        }
    };
    let ended = process::run(&options, &command, stopped, listening).await;
    if let Some(inner) = cluster.upgrade() {
        inner.state.lock().ended(&uid, ended);
    }
}

impl State {
    fn listening(&mut self, uid: &Uid, address: SocketAddr) {
        self.change(uid, |local| {
            local.address = Some(address);
            local.pod.phase = Phase::Running;
        });
    }

    fn ended(&mut self, uid: &Uid, ended: Ended) {
        let Some(local) = self.pods.get(uid) else { return };
        match ended {
            // One that died while it was being deleted is deleted.
            Ended::Failed(reason) if local.pod.terminating_since.is_none() => {
                tracing::warn!(reason, "local pod failed");
                self.change(uid, |local| {
                    local.address = None;
                    local.pod.phase = Phase::Failed(Reason::Found { kind: "exited", text: reason.into() });
                });
            }
            Ended::Failed(_) | Ended::Stopped => {
                self.pods.remove(uid);
                self.tell(&Event::Gone(uid.clone()));
            }
        }
    }

    fn change(&mut self, uid: &Uid, change: impl FnOnce(&mut LocalPod)) {
        let version = self.version();
        let Some(local) = self.pods.get_mut(uid) else { return };
        change(local);
        local.pod.resource_version = version;
        let seen = Event::Seen(local.pod.clone());
        self.tell(&seen);
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn version(&mut self) -> ResourceVersion {
        ResourceVersion::from(self.number().to_string())
    }

    fn tell(&mut self, event: &Event) {
        self.subscribers.retain(|subscriber| subscriber.send(event.clone()).is_ok());
    }
}

fn refused(reason: &str) -> Creation {
    Creation::Refused(Reason::Other(reason.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(wrapper: &[&str]) -> LocalCluster {
        let mut functions = LocalFunctions::default();
        functions.add("example.com/f:v1", vec!["cat".to_owned()], "example.com").unwrap();
        let wrapper = wrapper.iter().map(OsString::from).collect();
        LocalCluster::new(LocalOptions { wrapper, max_message: 1 << 20, log_level: 0, functions })
    }

    fn create(cluster: &LocalCluster) -> Creation {
        let name = PodName { image: "example.com/f:v1".into(), slot: 0, past: None };
        cluster.create(name, "key".into(), PodRecipe::of("version", None), now())
    }

    #[tokio::test]
    async fn a_pod_that_dies_while_it_is_deleted_is_gone_and_frees_its_name() {
        let cluster = cluster(&["sh", "-c", "read line"]);
        let (sender, mut events) = mpsc::unbounded_channel();
        let _backend = cluster.attach(sender);
        assert!(matches!(create(&cluster), Creation::Ok(_)));
        let seen = |event| if let Event::Seen(pod) = event { Some(pod) } else { None };
        let pod = std::iter::from_fn(|| events.try_recv().ok()).find_map(seen).unwrap();
        assert_eq!(cluster.delete(&pod.uid, &pod.resource_version), WriteOutcome::Ok);
        cluster.inner.state.lock().ended(&pod.uid, Ended::Failed("signal: killed".to_owned()));
        let gone = std::iter::from_fn(|| events.try_recv().ok())
            .any(|event| matches!(event, Event::Gone(uid) if uid == pod.uid));
        assert!(gone);
        assert!(matches!(create(&cluster), Creation::Ok(_)));
    }

    #[tokio::test]
    async fn a_cluster_that_is_dropped_lets_go_of_its_pods() {
        let cluster = cluster(&["sh", "-c", "read line"]);
        assert!(matches!(create(&cluster), Creation::Ok(_)));
        let inner = Arc::downgrade(&cluster.inner);
        tokio::task::yield_now().await;
        drop(cluster);
        assert!(inner.upgrade().is_none());
    }
}
