//! The existing FunctionConfigs, the configuration made from them, and the writes that are due. Has
//! no I/O.
//!
//! After each write to an object, the next write to it waits, twice as long each time. A long
//! enough time without a write resets the pause. Otherwise two writers of the same field could
//! overwrite each other forever.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::DynamicObject;
use porch_fn_pool::{OwnedShards, ShardKey, Time};
use porch_fn_settings::{
    FunctionConfig, FunctionConfigs, MAX_FUNCTION_CONFIGS, Setting, Source, TagSemantics,
};
use serde_json::Value;
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
    semantics: Setting<TagSemantics>,
    entries: BTreeMap<String, Entry>,
    configs: Arc<FunctionConfigs>,
    /// The time of `configs`.
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
    /// When to check whether a write is due.
    look_at: Option<Instant>,
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

    pub(super) fn semantics(&self) -> &Setting<TagSemantics> {
        &self.semantics
    }

    /// Sets what tags mean. If that changes, objects are read again, and their earlier states are
    /// dropped.
    pub(super) fn set_semantics(&mut self, semantics: Setting<TagSemantics>) {
        let before = std::mem::replace(&mut self.semantics, semantics);
        self.stale |= before != self.semantics;
        if before.value != self.semantics.value {
            for entry in std::mem::take(&mut self.entries).into_values() {
                self.apply(entry.object);
            }
        }
    }

    /// Handles a created or changed object. The change may be only in its status.
    pub(super) fn apply(&mut self, mut object: Object) {
        let name = object.name.clone();
        let before = self.entries.remove(&name);
        if before.is_none() && self.entries.len() >= MAX_FUNCTION_CONFIGS {
            return tracing::error!(
                name,
                "a FunctionConfig is ignored: there are more than {MAX_FUNCTION_CONFIGS}"
            );
        }
        // An object with the same name and another UID is a different object.
        let before = before.filter(|before| before.object.uid == object.uid);
        object.observed = object.observed.or(before.as_ref().and_then(|before| before.object.observed));
        let mut entry = match before {
            Some(before) if before.object.content == object.content => {
                self.stale |= before.object.ending != object.ending;
                Entry { object, ..before }
            }
            before => {
                self.stale = true;
                self.read(object, before)
            }
        };
        entry.look();
        self.entries.insert(name, entry);
    }

    fn read(&self, object: Object, before: Option<Entry>) -> Entry {
        let name = &object.name;
        let (last_error, good, written) =
            before.map_or((None, None, None), |before| (before.error, before.good, before.written));
        let read = FunctionConfig::parse(&object.content, &self.default_prefix, self.semantics.value);
        let (good, error) = match read {
            Ok(config) => (Some(config), None),
            Err(error) => (good, Some(error)),
        };
        match &error {
            Some(error) if last_error.as_ref() != Some(error) => {
                tracing::error!(name, error, kept = good.is_some(), "a FunctionConfig cannot be used");
            }
            None if last_error.is_some() => tracing::info!(name, "a FunctionConfig can be used again"),
            _ => {}
        }
        Entry { object, good, error, look_at: None, written }
    }

    /// An object was deleted.
    pub(super) fn remove(&mut self, name: &str) {
        self.stale |= self.entries.remove(name).is_some();
    }

    /// The full list.
    pub(super) fn replace_all(&mut self, list: Vec<DynamicObject>) {
        let mut list: Vec<_> = list.into_iter().filter_map(Object::new).collect();
        let listed: HashSet<_> = list.iter().map(|object| object.name.clone()).collect();
        let before = self.entries.len();
        self.entries.retain(|name, _| listed.contains(name));
        self.stale |= self.entries.len() < before;
        if list.len() > MAX_FUNCTION_CONFIGS {
            let ignored = list.len() - MAX_FUNCTION_CONFIGS;
            tracing::error!(ignored, "there are more than {MAX_FUNCTION_CONFIGS} FunctionConfigs");
            list.truncate(MAX_FUNCTION_CONFIGS);
        }
        for object in list {
            self.apply(object);
        }
    }

    /// Returns the configuration made from the objects, if it has changed. `now` is the current
    /// time.
    pub(super) fn configs(&mut self, now: Time) -> Option<Arc<FunctionConfigs>> {
        if !std::mem::take(&mut self.stale) {
            return None;
        }
        let living = self.entries.values().filter(|entry| !entry.object.ending);
        let mut time = living.clone().filter_map(|entry| entry.object.changed).max();
        // A deletion also makes a later configuration.
        if self.time.is_some() && time <= self.time {
            time = Some(now.max(self.time.unwrap_or_default()));
        }
        let all = living.filter_map(|entry| entry.good.clone()).collect();
        self.configs = Arc::new(FunctionConfigs::new(all, self.semantics.clone(), time.map(timestamp)));
        self.time = time;
        Some(Arc::clone(&self.configs))
    }

    /// Schedules a check of each object for a due write, at the end of its pause.
    pub(super) fn look_at_all(&mut self) {
        self.entries.values_mut().for_each(Entry::look);
    }

    /// When the next object is checked.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.look_at).min()
    }

    /// The first write that is due: the object's name, the write, and its patch.
    pub(super) fn next_write(&mut self, owned: &OwnedShards) -> Option<(String, Write, Value)> {
        let now = Instant::now();
        let Self { entries, configs, semantics, .. } = self;
        entries.iter_mut().find_map(|(name, entry)| {
            entry.look_at.take_if(|at| *at <= now)?;
            let write = entry.next_write(configs, semantics, owned.owns(&ShardKey::from(name.as_str())))?;
            let patch = write.patch(&entry.object);
            Some((name.clone(), write, patch))
        })
    }

    /// Records the end of a write. A failed write is repeated.
    pub(super) fn record_write(&mut self, name: &str, write: &Write, succeeded: bool) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        // The API server drops fields that the schema does not have: newer Porch's schema lacks the
        // observed generation. Then no event confirms this write.
        if let Write::Status { observed: Some(observed), .. } = write
            && succeeded
        {
            entry.object.observed = Some(*observed);
        }
        let now = Instant::now();
        let last = entry.written.filter(|(at, pause)| now < *at + 2 * *pause);
        let pause = last.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LAST_PAUSE));
        entry.written = Some((now, pause));
        if !succeeded || entry.look_at.is_some() {
            entry.look();
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let living = self.entries.values().filter(|entry| !entry.object.ending);
        let problems = living.clone().filter(|entry| entry.problem(&self.configs, &self.semantics).is_some());
        let broken = living.clone().filter(|entry| entry.error.is_some());
        Counts { objects: living.clone().count(), problems: problems.count(), broken: broken.count() }
    }
}

// === impl Entry ===

impl Entry {
    /// Schedules a check for a due write, at the end of the pause after the last write.
    fn look(&mut self) {
        let now = Instant::now();
        self.look_at = Some(self.written.map_or(now, |(at, pause)| now.max(at + pause)));
    }

    /// The next write. `owns`: this runner writes the object's status.
    fn next_write(
        &self,
        configs: &FunctionConfigs,
        semantics: &Setting<TagSemantics>,
        owns: bool,
    ) -> Option<Write> {
        next_write(&self.object, self.error.is_none(), self.problem(configs, semantics), owns)
    }

    /// What the user of the object should fix.
    fn problem<'a>(
        &'a self,
        configs: &'a FunctionConfigs,
        semantics: &Setting<TagSemantics>,
    ) -> Option<&'a str> {
        // A conflict depends on the meaning of tags. While that meaning is a guess, the conflict is
        // not reported.
        let is_certain = semantics.source != Source::NoSchema;
        let conflict = || configs.problem(&self.object.name).filter(|_| is_certain);
        self.error.as_deref().or_else(conflict)
    }
}
