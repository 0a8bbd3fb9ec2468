//! The FunctionConfigs that exist, and the configuration made from them. Pure, but for the log.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use porch_fn_pool::Time;
use porch_fn_settings::{
    FunctionConfig, FunctionConfigs, MAX_FUNCTION_CONFIGS, Setting, Source, TagSemantics,
};

use super::super::times::timestamp;
use super::write::{Object, Write, next_write};

/// Most objects that are used.
pub(super) const MAX_OBJECTS: usize = MAX_FUNCTION_CONFIGS;

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
    /// The last state of this object that could be used.
    good: Option<FunctionConfig>,
    /// Why its present state cannot be used.
    error: Option<String>,
}

/// How many objects there are, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Objects that are not being deleted.
    pub(super) objects: usize,
    /// Those with a `status.error` of this runner's.
    pub(super) problems: usize,
    /// Those with a present state that cannot be used.
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

    /// An object was made or changed, if only in its status.
    pub(super) fn apply(&mut self, mut object: Object) {
        let name = object.name.clone();
        let before = self.entries.remove(&name);
        if before.is_none() && self.entries.len() >= MAX_OBJECTS {
            return tracing::error!(name, "a FunctionConfig is ignored: there are more than {MAX_OBJECTS}");
        }
        // Another object of that name is not the same one.
        let before = before.filter(|before| before.object.uid == object.uid);
        object.observed = object.observed.or(before.as_ref().and_then(|before| before.object.observed));
        let (last_error, good) = match before {
            Some(before) if before.object.content == object.content => {
                self.stale |= before.object.ending != object.ending;
                self.entries.insert(name, Entry { object, ..before });
                return;
            }
            Some(before) => (before.error, before.good),
            None => (None, None),
        };
        self.stale = true;
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
        self.entries.insert(name, Entry { object, good, error });
    }

    /// A status was written. The API server may drop what the schema has no field for, as that of
    /// newer Porch drops the observed generation: then no event shows that it was written.
    pub(super) fn record_write(&mut self, name: &str, write: &Write) {
        if let (Some(entry), Write::Status { observed: Some(observed), .. }) =
            (self.entries.get_mut(name), write)
        {
            entry.object.observed = Some(*observed);
        }
    }

    /// An object was deleted.
    pub(super) fn remove(&mut self, name: &str) {
        self.stale |= self.entries.remove(name).is_some();
    }

    /// The names of the objects that a list does not have.
    pub(super) fn absent_from(&self, list: &[Object]) -> Vec<String> {
        let listed: HashSet<_> = list.iter().map(|object| object.name.as_str()).collect();
        self.names().filter(|name| !listed.contains(*name)).map(str::to_owned).collect()
    }

    /// The configuration made from the objects, if it has changed; `now` is when.
    pub(super) fn configs(&mut self, now: Time) -> Option<Arc<FunctionConfigs>> {
        if !std::mem::take(&mut self.stale) {
            return None;
        }
        let living = self.entries.values().filter(|entry| !entry.object.ending);
        let mut time = living.clone().filter_map(|entry| entry.object.changed).max();
        // A deletion is a later configuration too.
        if self.time.is_some() && time <= self.time {
            time = Some(now.max(self.time.unwrap_or_default()));
        }
        let all = living.filter_map(|entry| entry.good.clone()).collect();
        self.configs = Arc::new(FunctionConfigs::new(all, self.semantics.clone(), time.map(timestamp)));
        self.time = time;
        Some(Arc::clone(&self.configs))
    }

    /// The next write to an object, and the object. `owns`: this runner writes its status.
    pub(super) fn next_write(&self, name: &str, owns: bool) -> Option<(Write, &Object)> {
        let entry = self.entries.get(name)?;
        let write = next_write(&entry.object, entry.error.is_none(), self.problem(entry), owns)?;
        Some((write, &entry.object))
    }

    /// What the user of an object should fix.
    fn problem<'a>(&'a self, entry: &'a Entry) -> Option<&'a str> {
        // A conflict depends on what tags mean: a guess is not reported.
        let is_certain = self.semantics.source != Source::NoSchema;
        let conflict = || self.configs.problem(&entry.object.name).filter(|_| is_certain);
        entry.error.as_deref().or_else(conflict)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(super) fn counts(&self) -> Counts {
        let living = self.entries.values().filter(|entry| !entry.object.ending);
        let problems = living.clone().filter(|entry| self.problem(entry).is_some());
        let broken = living.clone().filter(|entry| entry.error.is_some());
        Counts { objects: living.clone().count(), problems: problems.count(), broken: broken.count() }
    }
}
