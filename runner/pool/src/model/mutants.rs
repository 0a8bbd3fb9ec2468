//! Mutants are faults that a test plants between a pool and its world. The model must detect each
//! of them. A mutant drops or changes events before the pool receives them, or actions that the
//! pool returns. `runner/pool/src/lib.rs` explains "push", "notice" and "surge slot".

use std::sync::Arc;
use std::time::Duration;

use crate::config::{ImageSettings, Limits};
use crate::event::{Action, Event, OwnedShards};
use crate::function::Pool;
use crate::types::{Lookup, Pod, Time};

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    IgnoresCancel,
    /// Any number of calls run in a pod.
    IgnoresConcurrency,
    LosesRejections,
    BelievesPodsReady,
    WorksBeforeSync,
    /// Pods of an older release are neither used nor deleted.
    IgnoresOldReleases,
    /// Pods in use are not pushed.
    DropsPushes,
    DropsNotices,
    IgnoresGaps,
    OwnsEverything,
    /// The pool does not learn which images have a minimum of pods.
    KeepsNothing,
    /// The configuration and the content of a pod get the same time: the later of the two.
    MergesRecipeTimes,
    BelievesChecks,
    /// Pods are created in slots past the surge slot.
    CreatesBeyondLimit,
    IgnoresCapacity,
}

// === impl Mutant ===

impl Mutant {
    /// A step of a pool with this fault.
    pub(crate) fn step(self, pool: &mut Pool, event: Event, now: Time) -> Vec<Action> {
        let events = self.change_event(event).into_iter();
        let mut actions: Vec<_> = events.flat_map(|event| pool.step(event, now)).collect();
        actions.retain_mut(|action| self.change_action(action, now));
        actions
    }

    fn change_event(self, mut event: Event) -> Vec<Event> {
        let is_old = |pod: &Pod| pod.recipe.version.as_str() == "older";
        match (self, &mut event) {
            (Self::IgnoresCancel, Event::Cancel(_)) | (Self::IgnoresGaps, Event::WatchLost) => {
                return Vec::new();
            }
            (Self::IgnoresOldReleases, Event::Seen(pod)) if is_old(pod) => return Vec::new(),
            (Self::IgnoresOldReleases, Event::Synced(pods)) => pods.retain(|pod| !is_old(pod)),
            (Self::WorksBeforeSync, Event::Request { .. }) => return vec![Event::Synced(Vec::new()), event],
            (Self::BelievesPodsReady, Event::Seen(pod)) => {
                let ready = Event::Ready(pod.uid.clone());
                return vec![event, ready];
            }
            (Self::OwnsEverything, Event::Own(owned)) => *owned = OwnedShards::All,
            (Self::BelievesChecks, Event::Checked { answered, .. }) => *answered = true,
            (Self::MergesRecipeTimes, Event::Seen(pod)) => merge_times(pod),
            (Self::MergesRecipeTimes, Event::Synced(pods)) => pods.iter_mut().for_each(merge_times),
            (Self::KeepsNothing, Event::Configure(config)) => config.kept_images = Arc::default(),
            (Self::IgnoresCapacity, Event::Configure(config)) => config.capacity = None,
            (Self::IgnoresConcurrency, Event::Configure(config)) => {
                let overrides = config.overrides.clone();
                config.overrides = Lookup::by(move |image| {
                    let ImageSettings { limits, recipe } = overrides.find(image)?;
                    Some(ImageSettings { limits: Limits { per_pod: 99, ..limits }, recipe })
                });
            }
            _ => {}
        }
        vec![event]
    }

    /// Changes the action, and returns whether it is carried out.
    fn change_action(self, action: &mut Action, now: Time) -> bool {
        // A push that gives notice sets `reclaim_after` to at most a minute from now. Other pushes
        // set a later time.
        let is_notice = |until: Time| until <= now + Duration::from_mins(1);
        match (self, action) {
            (Self::LosesRejections, Action::Reject { .. }) => false,
            (Self::DropsPushes, Action::Push { until, .. }) => is_notice(*until),
            (Self::DropsNotices, Action::Push { until, .. }) => !is_notice(*until),
            (Self::CreatesBeyondLimit, Action::Create { name, .. }) => {
                name.slot += 10;
                true
            }
            _ => true,
        }
    }
}

fn merge_times(pod: &mut Pod) {
    if let Some(content) = &mut pod.recipe.content {
        let newest = pod.recipe.config_time.max(content.resolved);
        (pod.recipe.config_time, content.resolved) = (newest, newest);
    }
}
