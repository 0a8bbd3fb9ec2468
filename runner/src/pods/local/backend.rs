//! One runner's way to the local pods: carries out orders, probes readiness, holds connections.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::{Event, PodName, Uid};
use tokio::sync::mpsc;

use super::cluster::LocalCluster;
use crate::pods::backend::{Backend, Order};
use crate::pods::probe::{CONNECTION, Locate, NoPod, Probes, answers, until_serving};

/// A [`Backend`] over a [`LocalCluster`].
#[derive(Debug)]
pub struct LocalBackend {
    pods: LocalPods,
    events: mpsc::UnboundedSender<Event>,
    probes: Probes,
    checks: Probes,
}

/// The pods and the connections to them.
#[derive(Debug, Clone)]
struct LocalPods {
    cluster: LocalCluster,
    connections: Arc<Mutex<HashMap<Uid, Arc<Connection>>>>,
}

impl LocalBackend {
    pub(super) fn new(cluster: LocalCluster, events: mpsc::UnboundedSender<Event>) -> Self {
        Self {
            pods: LocalPods { cluster, connections: Arc::default() },
            events,
            probes: Probes::default(),
            checks: Probes::default(),
        }
    }

    fn check(&self, uid: Uid, name: &PodName, number: u64, within: Duration) {
        let (pods, events) = (self.pods.clone(), self.events.clone());
        self.checks.start(uid.clone(), name, async move {
            let answered = answers(&pods, &uid, within).await;
            let _ = events.send(Event::Checked { uid, number, answered });
        });
    }

    fn probe(&self, uid: Uid, name: &PodName) {
        let (pods, events, probed) = (self.pods.clone(), self.events.clone(), uid.clone());
        // The pool stops it when the pod is gone.
        self.probes.start(uid, name, async move {
            until_serving(&pods, &probed).await;
            let _ = events.send(Event::Ready(probed));
        });
    }
}

impl LocalPods {
    /// Ends the connection to the pod. The next one is dialled anew.
    fn cut(&self, uid: &Uid) {
        if let Some(connection) = self.connections.lock().remove(uid) {
            connection.close();
        }
    }
}

impl Backend for LocalBackend {
    fn order(&self, order: Order) {
        let event = match order {
            Order::Create { name, shard_key, recipe, reclaim_after } => {
                let result = self.pods.cluster.create(name.clone(), shard_key, recipe, reclaim_after);
                Event::Created { name, result }
            }
            Order::Delete { uid, resource_version, .. } => {
                let result = self.pods.cluster.delete(&uid, &resource_version);
                Event::Deleted { uid, result }
            }
            Order::Push { uid, resource_version, until, place_wanted, .. } => {
                let result = self.pods.cluster.push(&uid, &resource_version, until, place_wanted);
                Event::Pushed { uid, result }
            }
            Order::Check { uid, name, number, within } => return self.check(uid, &name, number, within),
            Order::Disconnect { uid } => return self.pods.cut(&uid),
            Order::Probe { uid, name, on: true } => return self.probe(uid, &name),
            Order::Probe { uid, on: false, .. } => return self.probes.stop(&uid),
        };
        // A driver that is gone needs no answer.
        let _ = self.events.send(event);
    }

    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>> {
        self.pods.locate(uid).ok()?
    }
}

impl Locate for LocalPods {
    /// The connection is made when first wanted; those of pods that are gone are let go on the way.
    fn locate(&self, uid: &Uid) -> Result<Option<Arc<Connection>>, NoPod> {
        let Some(address) = self.cluster.address(uid)? else { return Ok(None) };
        let mut connections = self.connections.lock();
        if let Some(known) = connections.get(uid) {
            return Ok(Some(Arc::clone(known)));
        }
        let Ok(made) = Connection::new(address.to_string(), CONNECTION).map(Arc::new) else {
            return Ok(None);
        };
        connections.retain(|uid, _| self.cluster.address(uid).is_ok());
        connections.insert(uid.clone(), Arc::clone(&made));
        Ok(Some(made))
    }
}
