//! Mutants: faults between a pool and its world, which the model must notice. They lose or change
//! events on their way in, and actions on their way out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::config::Config;
use crate::event::{Action, DeleteReason, Event, OwnedShards};
use crate::pool::Pool;
use crate::types::{Pod, RequestId, Time, Uid};

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    IgnoresCancel,
    ForgetsGrants,
    /// If a list lacks a pod, the pod's calls end, although the list may be older than the pod.
    ForgetsVanishedCalls,
    LosesRejections,
    ExtendsDeadlines,
    ReadiesAnotherPod,
    WorksBeforeSync,
    /// Pods of another configuration are neither used nor deleted.
    AdoptsOnlyCurrent,
    /// Pods in use are not pushed.
    DropsPushes,
    DeletesWithoutNotice,
    DropsNotices,
    IgnoresGaps,
    OwnsEverything,
    /// The minimum of an image is unknown.
    KeepsNothing,
    /// One time stands for the configuration and the content of a pod.
    MergesRecipeTimes,
    BelievesChecks,
    /// Pods are created in slots past the surge slot.
    CreatesBeyondLimit,
    IgnoresCapacity,
}

/// A pool, possibly with a planted fault.
#[derive(Debug)]
pub(crate) struct MutantPool {
    pub(crate) pool: Pool,
    mutant: Option<Mutant>,
    config: Config,
    pods: BTreeMap<Uid, Pod>,
    ready: BTreeSet<Uid>,
    granted: BTreeMap<RequestId, Uid>,
}

// === impl MutantPool ===

impl MutantPool {
    pub(crate) fn new(mut config: Config, mutant: Option<Mutant>) -> Self {
        if let Some(mutant) = mutant {
            change_config(mutant, &mut config);
        }
        let (pods, ready, granted) = Default::default();
        Self { pool: Pool::new(config.clone()), mutant, config, pods, ready, granted }
    }

    pub(crate) fn step(&mut self, event: Event, now: Time) -> Vec<Action> {
        let Some(mutant) = self.mutant else { return self.pool.step(event, now) };
        let mut result = Vec::new();
        for event in self.change_event(mutant, event) {
            for action in self.pool.step(event, now) {
                self.change_action(mutant, action, now, &mut result);
            }
        }
        result
    }

    fn change_event(&mut self, mutant: Mutant, mut event: Event) -> Vec<Event> {
        let mut first = Vec::new();
        if let Event::Seen(pod) = &mut event
            && !self.change_pod(mutant, pod)
        {
            return first;
        }
        match (mutant, &mut event) {
            (Mutant::IgnoresCancel, Event::Cancel(_)) | (Mutant::IgnoresGaps, Event::WatchLost) => {
                return Vec::new();
            }
            (Mutant::ExtendsDeadlines, Event::Request { deadline, .. }) => {
                *deadline = *deadline + Duration::from_hours(1);
            }
            (Mutant::ReadiesAnotherPod, Event::Ready(uid)) => {
                let starting = self.pods.keys().find(|uid| !self.ready.contains(*uid));
                *uid = starting.unwrap_or(uid).clone();
            }
            (Mutant::WorksBeforeSync, Event::Request { .. }) if self.pods.is_empty() => {
                first.push(Event::Synced(Vec::new()));
            }
            (Mutant::OwnsEverything, Event::Own(owned)) => *owned = OwnedShards::All,
            (Mutant::BelievesChecks, Event::Checked { answered, .. }) => *answered = true,
            (Mutant::ForgetsVanishedCalls, Event::Synced(pods)) => {
                let vanished = |uid: &Uid| pods.iter().all(|pod| pod.uid != *uid);
                let calls = self.granted.iter().filter(|(_, uid)| vanished(uid));
                first.extend(calls.map(|(id, _)| Event::Cancel(*id)));
            }
            (_, Event::Configure(config)) => {
                change_config(mutant, config);
                self.config = config.clone();
            }
            (_, Event::Synced(pods)) => pods.retain_mut(|pod| self.change_pod(mutant, pod)),
            _ => {}
        }
        match &event {
            Event::Seen(pod) => {
                self.pods.insert(pod.uid.clone(), pod.clone());
            }
            Event::Gone(uid) => {
                self.pods.remove(uid);
            }
            Event::Ready(uid) => {
                self.ready.insert(uid.clone());
            }
            Event::Finished { id, .. } | Event::Cancel(id) => {
                self.granted.remove(id);
            }
            _ => {}
        }
        first.push(event);
        first
    }

    /// Whether the pool gets the event of the pod.
    fn change_pod(&self, mutant: Mutant, pod: &mut Pod) -> bool {
        if mutant == Mutant::MergesRecipeTimes
            && let Some(content) = &mut pod.recipe.content
        {
            let newest = pod.recipe.config_time.max(content.resolved);
            (pod.recipe.config_time, content.resolved) = (newest, newest);
        }
        let current = self.config.overrides.find(&pod.name.image).recipe;
        let foreign = current.is_some_and(|current| current.version != pod.recipe.version);
        !(mutant == Mutant::AdoptsOnlyCurrent && foreign)
    }

    fn change_action(&mut self, mutant: Mutant, mut action: Action, now: Time, result: &mut Vec<Action>) {
        let before = |uid: &Uid| self.pods.get(uid)?.reclaim_after;
        match (mutant, &mut action) {
            (Mutant::LosesRejections, Action::Reject { .. }) => return,
            (Mutant::DropsPushes, Action::Push { uid, until, .. }) if before(uid) <= Some(*until) => return,
            (Mutant::DropsNotices, Action::Push { uid, until, .. }) if before(uid) > Some(*until) => return,
            (Mutant::DeletesWithoutNotice, Action::Push { uid, until, resource_version, name, .. })
                if before(uid) > Some(*until) =>
            {
                let (uid, resource_version, name) = (uid.clone(), resource_version.clone(), name.clone());
                let reason = DeleteReason::Replaced;
                return result.push(Action::Delete { uid, resource_version, name, reason });
            }
            (Mutant::CreatesBeyondLimit, Action::Create { name, .. }) => {
                name.slot += self.config.limits.max_pods + 1;
            }
            (Mutant::ForgetsGrants, Action::Grant { id, .. }) => {
                let id = *id;
                result.push(action);
                return result.extend(self.pool.step(Event::Cancel(id), now));
            }
            (_, Action::Grant { id, uid }) => {
                self.granted.insert(*id, uid.clone());
            }
            _ => {}
        }
        result.push(action);
    }
}

fn change_config(mutant: Mutant, config: &mut Config) {
    match mutant {
        Mutant::KeepsNothing => config.kept_images = std::sync::Arc::default(),
        Mutant::IgnoresCapacity => config.capacity = None,
        _ => {}
    }
}
