//! Executes the pool's actions on pods, each in a task of its own. `runner/pool/src/lib.rs` explains
//! the pool's terms.

use std::collections::HashMap;
use std::sync::Arc;

use porch_fn_lifecycle::tasks::pass_on_panic;
use porch_fn_pool::{Action, Event, Uid};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{Instrument, info_span};

use super::backend::Backend;
use super::probe::answers;

/// The actions in progress. Dropping this ends them.
pub(super) struct Executor {
    pub(super) backend: Arc<dyn Backend>,
    events: mpsc::UnboundedSender<Event>,
    tasks: JoinSet<()>,
    /// The tasks that probe a pod.
    probes: HashMap<Uid, AbortHandle>,
}

impl Executor {
    pub(super) fn new(backend: Arc<dyn Backend>, events: mpsc::UnboundedSender<Event>) -> Self {
        Self { backend, events, tasks: JoinSet::new(), probes: HashMap::new() }
    }

    /// Starts to execute an action on a pod, and does not wait for its end. A new probe of a pod ends
    /// its earlier one.
    pub(super) fn act(&mut self, action: Action) {
        let (span, probed) = match &action {
            Action::Grant { .. } | Action::Reject { .. } => return,
            Action::Disconnect { uid, .. } => return self.backend.disconnect(uid),
            Action::Probe { uid, on: false, .. } => return self.end_probe(uid),
            Action::Probe { uid, name, on: true } => {
                (info_span!("probe", image = %name.image, slot = name.slot), Some(uid.clone()))
            }
            Action::Create { name, .. }
            | Action::Delete { name, .. }
            | Action::Push { name, .. }
            | Action::Check { name, .. } => (info_span!("pod", image = %name.image, slot = name.slot), None),
        };
        let (backend, events) = (Arc::clone(&self.backend), self.events.clone());
        let execute = async move {
            let event = match action {
                Action::Check { uid, number, within, .. } => {
                    let answered = answers(backend.locate(&uid), within).await;
                    Some(Event::Checked { uid, number, answered })
                }
                action => backend.execute(action).await,
            };
            if let Some(event) = event {
                // If the driver has stopped, the event is dropped.
                let _ = events.send(event);
            }
        };
        while let Some(ended) = self.tasks.try_join_next() {
            pass_on_panic(ended);
        }
        let task = self.tasks.spawn(execute.instrument(span));
        if let Some(uid) = probed {
            self.end_probe(&uid);
            self.probes.retain(|_, probe| !probe.is_finished());
            self.probes.insert(uid, task);
        }
    }

    fn end_probe(&mut self, uid: &Uid) {
        if let Some(probe) = self.probes.remove(uid) {
            probe.abort();
        }
    }
}
