//! A runner's access to the local pods: executes the pool's actions on pods and probes them.
//! `runner/pool/src/lib.rs` explains the pool's terms.

use std::sync::Arc;

use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::{Action, Event, Uid};
use tokio::sync::mpsc;

use super::cluster::LocalCluster;
use crate::pods::backend::{Backend, PodFacts};
use crate::pods::probe::{Probes, answers, until_serving};

/// A [`Backend`] over a [`LocalCluster`].
#[derive(Debug)]
pub struct LocalBackend {
    cluster: LocalCluster,
    events: mpsc::UnboundedSender<Event>,
    probes: Probes,
    checks: Probes,
}

impl LocalBackend {
    /// Connects one runner to the cluster. `events` receives the existing pods, and then every
    /// change.
    pub fn attach(cluster: LocalCluster, events: mpsc::UnboundedSender<Event>) -> Self {
        cluster.subscribe(events.clone());
        Self { cluster, events, probes: Probes::default(), checks: Probes::default() }
    }
}

impl Backend for LocalBackend {
    fn act(&self, action: Action) {
        let (cluster, events) = (self.cluster.clone(), self.events.clone());
        let event = match action {
            Action::Create { name, shard_key, recipe, reclaim_after } => {
                let result = cluster.create(name.clone(), shard_key, recipe, reclaim_after);
                Event::Created { name, result }
            }
            Action::Delete { uid, resource_version, .. } => {
                let result = cluster.delete(&uid, &resource_version);
                Event::Deleted { uid, result }
            }
            Action::Push { uid, resource_version, until, place_wanted, .. } => {
                let result = cluster.push(&uid, &resource_version, until, place_wanted);
                Event::Pushed { uid, result }
            }
            Action::Check { uid, name, number, within } => {
                return self.checks.start(uid.clone(), &name, async move {
                    let answered = answers(cluster.locate(&uid), within).await;
                    let _ = events.send(Event::Checked { uid, number, answered });
                });
            }
            Action::Disconnect { uid, .. } => return cluster.disconnect(&uid),
            Action::Probe { uid, name, on: true } => {
                // The pool stops the probe when the pod is gone.
                return self.probes.start(uid.clone(), &name, async move {
                    cluster.until_located(&uid).await;
                    until_serving(|| cluster.locate(&uid)).await;
                    let _ = events.send(Event::Ready(uid));
                });
            }
            Action::Probe { uid, on: false, .. } => return self.probes.stop(&uid),
            Action::Grant { .. } | Action::Reject { .. } => return,
        };
        // If the driver has stopped, the event is dropped.
        let _ = events.send(event);
    }

    fn connection(&self, uid: &Uid) -> Option<Arc<Connection>> {
        self.cluster.locate(uid)
    }

    fn facts(&self, uid: &Uid) -> Option<PodFacts> {
        self.cluster.facts(uid)
    }
}
