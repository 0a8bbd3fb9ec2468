//! The existing FunctionConfigs, the configuration made from them, and the next write to one of
//! them. Has no I/O.
//!
//! The pause before the next write to the same object doubles with each write. Without
//! the pause, two writers of the same field could overwrite each other in a tight loop. The pause
//! starts from the minimum again after the object had no write for twice the pause.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::DynamicObject;
use porch_fn_pool::{OwnedShards, ShardKey, Time};
use porch_fn_settings::{FunctionConfig, FunctionConfigs, Setting, Source, TagSemantics};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::times::timestamp;
use super::write::{Object, Write, next_write};

/// Pauses between writes to the same object, doubling.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_mins(5);

/// All objects, by name.
#[derive(Debug)]
pub(super) struct Objects {
    default_prefix: String,
    pub(super) semantics: Setting<TagSemantics>,
    entries: BTreeMap<String, Entry>,
    configs: Arc<FunctionConfigs>,
    /// When the configuration in `configs` last changed.
    time: Option<Time>,
    /// Whether `configs` is out of date.
    stale: bool,
}

#[derive(Debug)]
struct Entry {
    object: Object,
    /// The object's last valid state.
    good: Option<FunctionConfig>,
    /// Why the object's current state is invalid.
    error: Option<String>,
    /// When this runner last wrote to the object, and the pause after that write.
    written: Option<(Instant, Duration)>,
}

/// How many objects there are, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Objects that are not being deleted.
    pub(super) objects: usize,
    /// Objects for which this runner reports a problem in `status.error`.
    pub(super) problems: usize,
    /// Objects whose current state is invalid.
    pub(super) broken: usize,
}

// === impl Objects ===

impl Objects {
    pub(super) fn new(default_prefix: String, semantics: Setting<TagSemantics>) -> Self {
        let (entries, configs) = (BTreeMap::new(), Arc::default());
        Self { default_prefix, semantics, entries, configs, time: None, stale: false }
    }

    /// Sets the meaning of tags. If it changes, all objects are parsed again, and their earlier
    /// states are dropped.
    pub(super) fn set_semantics(&mut self, semantics: Setting<TagSemantics>) {
        let before = std::mem::replace(&mut self.semantics, semantics);
        self.stale |= before != self.semantics;
        if before.value != self.semantics.value {
            for entry in std::mem::take(&mut self.entries).into_values() {
                self.apply(entry.object);
            }
        }
    }

    /// Records a created or changed object. The change may be only in its status.
    pub(super) fn apply(&mut self, mut object: Object) {
        let name = object.metadata.name.clone().unwrap_or_default();
        // An object with the same name and another UID is a different object.
        let before =
            self.entries.remove(&name).filter(|before| before.object.metadata.uid == object.metadata.uid);
        let is_new = before.is_none();
        let was_ending = before.as_ref().is_some_and(|before| before.object.is_ending());
        let (last_observed, last_good, last_error, written) = before
            .map(|before| (before.object.observed, before.good, before.error, before.written))
            .unwrap_or_default();
        object.observed = object.observed.or(last_observed);
        let content = json!({"metadata": object.metadata, "spec": object.spec});
        let read = FunctionConfig::parse(&content, &self.default_prefix, self.semantics.value);
        let (good, error) = match read {
            Ok(config) => (Some(config), None),
            Err(error) => (last_good.clone(), Some(error)),
        };
        match &error {
            Some(error) if last_error.as_ref() != Some(error) => {
                tracing::error!(
                    function_config = name,
                    error,
                    kept = good.is_some(),
                    "a FunctionConfig is invalid"
                );
            }
            None if last_error.is_some() => {
                tracing::info!(function_config = name, "a FunctionConfig is valid again");
            }
            _ => {}
        }
        self.stale |= is_new || good != last_good || object.is_ending() != was_ending;
        self.entries.insert(name, Entry { object, good, error, written });
    }

    /// Records the deletion of an object.
    pub(super) fn remove(&mut self, name: &str) {
        self.stale |= self.entries.remove(name).is_some();
    }

    /// Replaces all objects by the full list.
    pub(super) fn replace_all(&mut self, list: Vec<DynamicObject>) {
        let listed: HashSet<_> = list.iter().map(ResourceExt::name_any).collect();
        let before = self.entries.len();
        self.entries.retain(|name, _| listed.contains(name));
        self.stale |= self.entries.len() < before;
        for object in list {
            self.apply(Object::new(object));
        }
    }

    /// Returns the configuration made from the objects, if it has changed. `now` is the current
    /// time.
    pub(super) fn configs(&mut self, now: Time) -> Option<Arc<FunctionConfigs>> {
        if !std::mem::take(&mut self.stale) {
            return None;
        }
        let living = self.entries.values().filter(|entry| !entry.object.is_ending());
        let mut time = living.clone().filter_map(|entry| entry.object.changed).max();
        // After a deletion, all remaining objects may be older than the previous configuration. The
        // new configuration then gets the current time.
        if self.time.is_some() && time <= self.time {
            time = Some(now.max(self.time.unwrap_or_default()));
        }
        let all = living.filter_map(|entry| entry.good.clone()).collect();
        self.configs = Arc::new(FunctionConfigs::new(all, self.semantics.clone(), time.map(timestamp)));
        self.time = time;
        Some(Arc::clone(&self.configs))
    }

    /// Returns the next write: when it is due, the object's name, the write, and its patch.
    pub(super) fn next_write(&self, owned: &OwnedShards) -> Option<(Instant, String, Write, Value)> {
        let now = Instant::now();
        let writes = self.entries.iter().filter_map(|(name, entry)| {
            let at = entry.written.map_or(now, |(at, pause)| now.max(at + pause));
            Some((at, name, entry, self.write_to(name, entry, owned)?))
        });
        let (at, name, entry, write) = writes.min_by_key(|(at, ..)| *at)?;
        let patch = write.patch(&entry.object);
        Some((at, name.clone(), write, patch))
    }

    /// Returns the write that an object needs from this runner. The runner that owns the object's
    /// name on the ring writes the object's status. Any runner may remove the finalizer, so a
    /// deletion does not wait for one specific runner.
    fn write_to(&self, name: &str, entry: &Entry, owned: &OwnedShards) -> Option<Write> {
        let write = next_write(&entry.object, entry.error.is_none(), self.problem(name, entry))?;
        let is_mine = write == Write::Finalizer || owned.owns(&ShardKey::from(name));
        is_mine.then_some(write)
    }

    /// Records the result of a write. A failed write is repeated.
    pub(super) fn record_write(&mut self, name: &str, write: &Write, succeeded: bool) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        // The API server drops fields that the schema does not have. Newer Porch's schema lacks the
        // observed generation, so no event confirms that part of the write.
        if let Write::Status { observed, error } = write
            && succeeded
        {
            let object = &mut entry.object;
            object.observed = observed.or(object.observed);
            if let Some(error) = error {
                object.error.clone_from(error);
            }
        }
        let now = Instant::now();
        let last = entry.written.filter(|(at, pause)| now < *at + 2 * *pause);
        let pause = last.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LAST_PAUSE));
        entry.written = Some((now, pause));
    }

    pub(super) fn counts(&self) -> Counts {
        let living = self.entries.iter().filter(|(_, entry)| !entry.object.is_ending());
        let problems = living.clone().filter(|(name, entry)| self.problem(name, entry).is_some());
        let broken = living.clone().filter(|(_, entry)| entry.error.is_some());
        Counts { objects: living.clone().count(), problems: problems.count(), broken: broken.count() }
    }

    /// The problem that the object's user should fix.
    fn problem<'a>(&'a self, name: &str, entry: &'a Entry) -> Option<&'a str> {
        // A conflict depends on the meaning of tags. While that meaning is a guess, the conflict is
        // not reported.
        let is_certain = self.semantics.source != Source::NoSchema;
        let conflict = || self.configs.problem(name).filter(|_| is_certain);
        entry.error.as_deref().or_else(conflict)
    }
}
