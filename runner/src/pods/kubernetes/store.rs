//! What the watches have shown, trimmed to what is needed: where pods are, and which Services stand before them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use parking_lot::Mutex;
use porch_fn_pool::{Event, ResourceVersion, Uid};
use porch_fn_service::conn::Connection;

use super::crash::{Complaint, complaints, crashes};
use super::names;
use super::observe::{Observed, Tries, observe};
use crate::pods::probe::{CONNECTION, Locate, NoPod};

/// Lines about what one pod waits for.
const MAX_COMPLAINTS: usize = 16;

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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<Uid, KnownPod>,
    services: HashMap<String, KnownService>,
}

#[derive(Debug)]
struct KnownPod {
    object_name: String,
    pod: porch_fn_pool::Pod,
    ip: Option<IpAddr>,
    tries: Tries,
    /// It served once: if it does not answer any more, it may be gone without our having seen it.
    served: bool,
    logged: Logged,
    connection: Option<(IpAddr, Arc<Connection>)>,
}

/// What was logged about a pod.
#[derive(Debug, Default)]
struct Logged {
    /// Restarts of each container whose end was logged.
    crashes: BTreeMap<String, i32>,
    /// Container and reason of what it waits for.
    complaints: BTreeSet<(Option<String>, String)>,
}

/// A pod as of now: what was shown, or what is known in a newer state.
#[derive(Debug)]
enum Sight {
    New(porch_fn_pool::Pod),
    Old(porch_fn_pool::Pod),
}

impl Sight {
    fn into_pod(self) -> porch_fn_pool::Pod {
        match self {
            Self::New(pod) | Self::Old(pod) => pod,
        }
    }
}

/// A Service of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownService {
    pub(super) uid: String,
    /// The pod that it belongs to.
    pub(super) owner: Option<Uid>,
    ip: Option<IpAddr>,
    /// Without an address of its own: its name stands for the pod's.
    headless: bool,
    terminating: bool,
    /// Seconds since the Unix epoch.
    pub(super) created: i64,
}

// === impl Store ===

impl Store {
    pub(super) fn new(connect: Connect) -> Self {
        Self { connect, state: Mutex::default() }
    }

    pub(super) fn connect(&self) -> &Connect {
        &self.connect
    }

    /// A pod was added or changed. `None` if it is none of ours, or older than what is known.
    pub(super) fn pod_seen(&self, pod: &Pod) -> Option<Event> {
        match self.state.lock().see(pod)? {
            Sight::New(pod) => Some(Event::Seen(pod)),
            Sight::Old(_) => None,
        }
    }

    /// A pod was deleted.
    pub(super) fn pod_gone(&self, uid: &Uid) -> Event {
        self.state.lock().pods.remove(uid);
        Event::Gone { uid: uid.clone() }
    }

    /// The full list.
    pub(super) fn pods_listed(&self, pods: &[Pod]) -> Event {
        let mut state = self.state.lock();
        let listed: HashSet<_> = pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        state.pods.retain(|uid, _| listed.contains(uid.as_str()));
        let sights = pods.iter().filter_map(|pod| state.see(pod));
        Event::Synced(sights.map(Sight::into_pod).collect())
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

    pub(super) fn service_seen(&self, service: &Service) {
        if let Some((name, known)) = known_service(service) {
            self.state.lock().services.insert(name, known);
        }
    }

    pub(super) fn service_gone(&self, service: &Service) {
        if let (Some(name), Some(uid)) = (&service.metadata.name, &service.metadata.uid) {
            self.service_forgotten(name, uid);
        }
    }

    /// It was deleted by us; the watch will show it.
    pub(super) fn service_forgotten(&self, name: &str, uid: &str) {
        let mut state = self.state.lock();
        if state.services.get(name).is_some_and(|known| known.uid == uid) {
            state.services.remove(name);
        }
    }

    pub(super) fn services_listed(&self, services: &[Service]) {
        self.state.lock().services = services.iter().filter_map(known_service).collect();
    }

    /// The Service of this name.
    pub(super) fn service(&self, name: &str) -> Option<KnownService> {
        self.state.lock().services.get(name).cloned()
    }

    /// Services created before `before` (Unix seconds) whose pod is not known.
    pub(super) fn orphaned_services(&self, before: i64) -> Vec<(String, KnownService)> {
        let state = self.state.lock();
        let orphaned = |known: &KnownService| {
            known.created < before
                && !known.terminating
                && known.owner.as_ref().is_none_or(|owner| !state.pods.contains_key(owner))
        };
        let services = state.services.iter().filter(|(_, known)| orphaned(known));
        services.map(|(name, known)| (name.clone(), known.clone())).collect()
    }
}

impl Locate for Store {
    fn locate(&self, uid: &Uid) -> Result<Option<Arc<Connection>>, NoPod> {
        let mut state = self.state.lock();
        let State { pods, services } = &mut *state;
        let pod = pods.get_mut(uid).ok_or(NoPod)?;
        // Without an IP of its own the pod cannot be behind its Service either.
        let Some(pod_ip) = pod.ip else { return Ok(None) };
        let ip = match &self.connect {
            Connect::PodIp => Some(pod_ip),
            Connect::Service { .. } => {
                let service = services.get(&pod.object_name).filter(|known| known.belongs_to(uid));
                service.and_then(|known| if known.headless { Some(pod_ip) } else { known.ip })
            }
        };
        let Some(ip) = ip else { return Ok(None) };
        if let Some((known, connection)) = &pod.connection
            && *known == ip
        {
            return Ok(Some(Arc::clone(connection)));
        }
        let address = SocketAddr::new(ip, names::PORT).to_string();
        let authority = match &self.connect {
            Connect::PodIp => address.clone(),
            Connect::Service { suffix } => format!("{}.{suffix}:{}", pod.object_name, names::PORT),
        };
        let Ok(made) = Connection::named(address, authority, CONNECTION).map(Arc::new) else {
            return Ok(None);
        };
        pod.connection = Some((ip, Arc::clone(&made)));
        Ok(Some(made))
    }
}

// === impl State ===

impl State {
    /// Takes note of a pod; `None` if it is none of ours.
    fn see(&mut self, object: &Pod) -> Option<Sight> {
        let uid = Uid::from(object.metadata.uid.as_deref()?);
        let known = self.pods.get(&uid);
        if let Some(known) = known
            && is_older(object.metadata.resource_version.as_deref()?, &known.pod.resource_version)
        {
            return Some(Sight::Old(known.pod.clone()));
        }
        let mut tries = known.map(|known| known.tries.clone()).unwrap_or_default();
        let Observed { pod, ip, object_name } = observe(object, &mut tries)?;
        let known = self.pods.entry(uid).or_insert_with(|| KnownPod {
            object_name,
            pod: pod.clone(),
            ip: None,
            tries: Tries::default(),
            served: false,
            logged: Logged::default(),
            connection: None,
        });
        known.pod = pod.clone();
        known.ip = ip;
        known.tries = tries;
        known.log_news(object);
        Some(Sight::New(pod))
    }
}

/// Resource versions are numbers to whoever does not ask for more; others are taken as newer.
fn is_older(version: &str, known: &ResourceVersion) -> bool {
    matches!((version.parse::<u64>(), known.as_str().parse::<u64>()), (Ok(version), Ok(known)) if version < known)
}

// === impl KnownPod ===

impl KnownPod {
    /// The kubelet's own words go to our log, each once, and nowhere else.
    fn log_news(&mut self, pod: &Pod) {
        for crash in crashes(pod) {
            let logged = self.logged.crashes.entry(crash.container.clone()).or_insert(-1);
            if *logged < crash.restarts {
                *logged = crash.restarts;
                tracing::warn!(
                    pod = self.object_name,
                    container = crash.container,
                    exit_code = crash.exit_code,
                    reason = crash.reason,
                    last_lines = crash.message,
                    "a container of a function pod ended"
                );
            }
        }
        for Complaint { container, reason, message } in complaints(pod) {
            if self.logged.complaints.len() < MAX_COMPLAINTS
                && self.logged.complaints.insert((container.clone(), reason.clone()))
            {
                tracing::warn!(pod = self.object_name, container, reason, message, "a function pod waits");
            }
        }
    }
}

// === impl KnownService ===

impl KnownService {
    /// It stands before this pod, and not before one that had its name earlier.
    pub(super) fn belongs_to(&self, uid: &Uid) -> bool {
        !self.terminating && self.owner.as_ref() == Some(uid)
    }
}

fn known_service(service: &Service) -> Option<(String, KnownService)> {
    let metadata = &service.metadata;
    let labels = metadata.labels.as_ref()?;
    if labels.get(names::MANAGED_BY).map(String::as_str) != Some(names::MANAGER) {
        return None;
    }
    let owners = metadata.owner_references.iter().flatten();
    let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    let known = KnownService {
        uid: metadata.uid.clone()?,
        owner: owners.filter(|owner| owner.kind == "Pod").map(|owner| Uid::from(owner.uid.as_str())).next(),
        ip: ip.and_then(|ip| ip.parse().ok()),
        headless: ip == Some("None"),
        terminating: metadata.deletion_timestamp.is_some(),
        created: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
    };
    Some((metadata.name.clone()?, known))
}
