//! One runner's way to the local pods: carries out orders, probes readiness, holds connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_pool::{Event, Uid};
use porch_fn_service::conn::{self, Channel, Connection};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tracing::Instrument;

use super::cluster::LocalCluster;
use crate::pods::backend::{Backend, Order};

/// How often a starting pod is asked for its health.
const PROBE_INTERVAL: Duration = Duration::from_millis(15);
/// How long one answer may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// No pings: a user's wrapper may be a grpc-go server, which hangs up on those who ping it.
const CONNECTION: conn::Options = conn::Options {
    connect_timeout: Duration::from_secs(2),
    ping: None,
    user_timeout: Duration::from_secs(10),
};

/// A [`Backend`] over a [`LocalCluster`].
#[derive(Debug)]
pub struct LocalBackend {
    cluster: LocalCluster,
    events: mpsc::UnboundedSender<Event>,
    connections: Connections,
    probes: Mutex<Probes>,
}

type Connections = Arc<Mutex<HashMap<Uid, Arc<Connection>>>>;

/// The probes under way. Dropping them ends them.
#[derive(Debug, Default)]
struct Probes {
    tasks: JoinSet<()>,
    by_pod: HashMap<Uid, AbortHandle>,
}

impl LocalBackend {
    pub(super) fn new(cluster: LocalCluster, events: mpsc::UnboundedSender<Event>) -> Self {
        Self { cluster, events, connections: Arc::default(), probes: Mutex::default() }
    }

    fn probe(&self, uid: Uid) {
        let mut probes = self.probes.lock();
        while probes.tasks.try_join_next().is_some() {}
        probes.by_pod.retain(|_, probe| !probe.is_finished());
        let (cluster, connections, events) =
            (self.cluster.clone(), Arc::clone(&self.connections), self.events.clone());
        let span = tracing::debug_span!("probe", %uid);
        let probed = uid.clone();
        let probe = async move {
            if until_serving(&cluster, &connections, &probed).await {
                let _ = events.send(Event::Ready { uid: probed });
            }
        };
        let handle = probes.tasks.spawn(probe.instrument(span));
        if let Some(earlier) = probes.by_pod.insert(uid, handle) {
            earlier.abort();
        }
    }
}

impl Backend for LocalBackend {
    fn order(&self, order: Order) {
        let event = match order {
            Order::Create { name, shard_key, version, config_time, reclaim_after } => {
                let result =
                    self.cluster.create(name.clone(), shard_key, version, config_time, reclaim_after);
                Event::Created { name, result }
            }
            Order::Delete { uid, resource_version, .. } => {
                let result = self.cluster.delete(&uid, &resource_version);
                Event::Deleted { uid, result }
            }
            Order::Push { uid, resource_version, until, .. } => {
                let result = self.cluster.push(&uid, &resource_version, until);
                Event::Pushed { uid, result }
            }
            Order::Probe { uid, on: true, .. } => return self.probe(uid),
            Order::Probe { uid, on: false, .. } => {
                if let Some(probe) = self.probes.lock().by_pod.remove(&uid) {
                    probe.abort();
                }
                return;
            }
        };
        // A driver that is gone needs no answer.
        let _ = self.events.send(event);
    }

    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>> {
        connection(&self.cluster, &self.connections, uid)
    }
}

/// The connection to a pod, made when first wanted; those of pods that are gone are let go on the way.
fn connection(cluster: &LocalCluster, connections: &Connections, uid: &Uid) -> Option<Arc<Connection>> {
    let address = cluster.address(uid).ok()??;
    let mut connections = connections.lock();
    match connections.entry(uid.clone()) {
        Entry::Occupied(known) => Some(Arc::clone(known.get())),
        Entry::Vacant(_) => {
            let made = Arc::new(Connection::new(address.to_string(), CONNECTION).ok()?);
            connections.retain(|uid, _| cluster.address(uid).is_ok());
            connections.insert(uid.clone(), Arc::clone(&made));
            Some(made)
        }
    }
}

/// Asks again and again until the pod serves; `false` when it is gone.
async fn until_serving(cluster: &LocalCluster, connections: &Connections, uid: &Uid) -> bool {
    while cluster.address(uid).is_ok() {
        if let Some(connection) = connection(cluster, connections, uid)
            && timeout(PROBE_TIMEOUT, serves(&connection)).await == Ok(true)
        {
            return true;
        }
        sleep(PROBE_INTERVAL).await;
    }
    false
}

async fn serves(connection: &Connection) -> bool {
    let Ok(sender) = connection.sender().await else { return false };
    let mut client = HealthClient::with_origin(Channel(sender), connection.origin().clone());
    let answer = client.check(HealthCheckRequest::default()).await;
    answer.is_ok_and(|answer| answer.get_ref().status() == ServingStatus::Serving)
}
