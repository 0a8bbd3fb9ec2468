//! The set of local pods, shared by the runners of one process: names, versions, preconditions, events.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use porch_fn_pool::{
    Creation, Deletion, Event, Phase, Pod, PodName, Pushing, Reason, ResourceVersion, ShardKey, Time, Uid,
    Version,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::Instrument;

use super::backend::LocalBackend;
use super::functions::LocalFunctions;
use super::process::{self, Ended};

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
        Self { inner: Arc::new(Inner { options, state: Mutex::default() }) }
    }

    /// A backend for one runner, and the events of all pods from now on, with those there are first.
    pub fn attach(&self) -> (LocalBackend, mpsc::UnboundedReceiver<Event>) {
        let (sender, events) = mpsc::unbounded_channel();
        let mut state = self.inner.state.lock();
        let pods = state.pods.values().map(|local| local.pod.clone()).collect();
        // The receiver is in hand.
        let _ = sender.send(Event::Synced(pods));
        state.subscribers.push(sender.clone());
        (LocalBackend::new(self.clone(), sender), events)
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
        version: Version,
        config_time: Option<Time>,
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
            version,
            config_time,
            reclaim_after: Some(reclaim_after),
        };
        let (stop, stopped) = watch::channel(false);
        state.pods.insert(uid.clone(), LocalPod { pod: pod.clone(), address: None, stop });
        state.tell(&Event::Seen(pod.clone()));
        let span = tracing::info_span!("pod", image = %pod.name.image, slot = pod.name.slot);
        let cluster = self.clone();
        while state.supervisors.try_join_next().is_some() {}
        state
            .supervisors
            .spawn(async move { cluster.supervise(uid, &command, stopped).await }.instrument(span));
        Creation::Ok(pod)
    }

    pub(super) fn delete(&self, uid: &Uid, judged: &ResourceVersion) -> Deletion {
        let mut state = self.inner.state.lock();
        let version = state.version();
        let Some(local) = state.pods.get_mut(uid) else { return Deletion::NotFound };
        if local.pod.resource_version != *judged {
            return Deletion::Conflict;
        }
        if matches!(local.pod.phase, Phase::Failed(_)) {
            // Its process is gone already.
            state.pods.remove(uid);
            state.tell(&Event::Gone { uid: uid.clone() });
            return Deletion::Ok;
        }
        local.pod.resource_version = version;
        local.pod.terminating_since = Some(now() + process::GRACE);
        local.stop.send_replace(true);
        let seen = Event::Seen(local.pod.clone());
        state.tell(&seen);
        Deletion::Ok
    }

    pub(super) fn push(&self, uid: &Uid, judged: &ResourceVersion, until: Time) -> Pushing {
        let mut state = self.inner.state.lock();
        let version = state.version();
        let Some(local) = state.pods.get_mut(uid) else { return Pushing::Gone };
        if local.pod.terminating_since.is_some() {
            return Pushing::Gone;
        }
        if local.pod.resource_version != *judged {
            return Pushing::Conflict;
        }
        local.pod.resource_version = version;
        local.pod.reclaim_after = Some(until);
        let pod = local.pod.clone();
        state.tell(&Event::Seen(pod.clone()));
        Pushing::Ok(pod)
    }

    /// Where the pod's wrapper listens. `None` when it does not yet; an error when there is no such pod.
    pub(super) fn address(&self, uid: &Uid) -> Result<Option<SocketAddr>, NoPod> {
        self.inner.state.lock().pods.get(uid).map(|local| local.address).ok_or(NoPod)
    }

    /// Follows one process from its start to its end.
    async fn supervise(&self, uid: Uid, command: &[String], stopped: watch::Receiver<bool>) {
        let listening = |address| {
            self.change(&uid, |local| {
                local.address = Some(address);
                local.pod.phase = Phase::Running;
            });
        };
        match process::run(&self.inner.options, command, stopped, listening).await {
            Ended::Stopped => {
                let mut state = self.inner.state.lock();
                state.pods.remove(&uid);
                state.tell(&Event::Gone { uid });
            }
            Ended::Failed(reason) => {
                tracing::warn!(reason, "local pod failed");
                self.change(&uid, |local| {
                    local.address = None;
                    local.pod.phase = Phase::Failed(Reason::Other(reason.as_str().into()));
                });
            }
        }
    }

    fn change(&self, uid: &Uid, change: impl FnOnce(&mut LocalPod)) {
        let mut state = self.inner.state.lock();
        let version = state.version();
        let Some(local) = state.pods.get_mut(uid) else { return };
        change(local);
        local.pod.resource_version = version;
        let seen = Event::Seen(local.pod.clone());
        state.tell(&seen);
    }
}

/// The pod does not exist (any more).
#[derive(Debug, Clone, Copy)]
pub(super) struct NoPod;

impl State {
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

fn now() -> Time {
    Time::from_millis(0) + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
