//! The FunctionConfigs that there are, and what they come to. Pure.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use porch_fn_pool::Time;
use porch_fn_settings::{
    FunctionConfig, FunctionConfigs, MAX_FUNCTION_CONFIGS, Setting, Source, TagSemantics,
};

use super::work::{Object, Outcome, Work, work};

/// Most objects that are taken.
pub(super) const MAX_OBJECTS: usize = MAX_FUNCTION_CONFIGS;

/// All objects, by name.
#[derive(Debug)]
pub(super) struct Known {
    default_prefix: String,
    semantics: Setting<TagSemantics>,
    objects: BTreeMap<String, Entry>,
    /// What was made of them last, and of which time that is.
    configs: Arc<FunctionConfigs>,
    time: Option<Time>,
    /// They are to be made anew.
    stale: bool,
}

#[derive(Debug)]
struct Entry {
    object: Object,
    /// The last state of this object that could be used.
    good: Option<FunctionConfig>,
    /// Why the state it is in cannot.
    error: Option<String>,
}

/// How many objects there are, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Objects that are not being deleted.
    pub(crate) objects: usize,
    /// Those of them that `status.error` says something about.
    pub(crate) problems: usize,
    /// Those of them that cannot be used as they are.
    pub(crate) broken: usize,
}

/// What is to be said of an object that was seen, if anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    /// It came to be broken, or is so in another way.
    Broken {
        error: String,
        /// Whether an earlier state of it stays in effect.
        kept: bool,
    },
    /// It was broken.
    Mended,
    /// It is beyond [`MAX_OBJECTS`].
    TooMany,
}

/// `None` for what no calendar has.
fn timestamp(time: Time) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(time.as_millis()).ok()?).ok()
}

// === impl Known ===

impl Known {
    pub(super) fn new(default_prefix: String, semantics: Setting<TagSemantics>) -> Self {
        let (objects, configs) = (BTreeMap::new(), Arc::default());
        Self { default_prefix, semantics, objects, configs, time: None, stale: false }
    }

    /// From now on tags mean this. Objects that meant something else are read again, and an earlier
    /// state of them counts no more. The names are those of the objects.
    pub(super) fn read_tags_as(&mut self, semantics: Setting<TagSemantics>) -> Vec<(String, Judged)> {
        let before = std::mem::replace(&mut self.semantics, semantics);
        self.stale |= before != self.semantics;
        if before.value == self.semantics.value {
            return Vec::new();
        }
        let objects = std::mem::take(&mut self.objects);
        let judged = |(name, entry): (String, Entry)| Some((name, self.seen(entry.object)?));
        objects.into_iter().filter_map(judged).collect()
    }

    pub(super) fn semantics(&self) -> &Setting<TagSemantics> {
        &self.semantics
    }

    /// An object was made, or changed, if only in its status.
    pub(super) fn seen(&mut self, mut object: Object) -> Option<Judged> {
        let before = self.objects.remove(&object.name);
        if before.is_none() && self.objects.len() >= MAX_OBJECTS {
            return Some(Judged::TooMany);
        }
        // Another object of that name has nothing to do with it.
        let before = before.filter(|before| before.object.uid == object.uid);
        object.observed = object.observed.or(before.as_ref().and_then(|before| before.object.observed));
        let (last_error, good) = match before {
            Some(before) if before.object.content == object.content => {
                self.stale |= before.object.ending != object.ending;
                self.objects.insert(object.name.clone(), Entry { object, ..before });
                return None;
            }
            Some(before) => (before.error, before.good),
            None => (None, None),
        };
        self.stale = true;
        let (good, error) =
            match FunctionConfig::parse(&object.content, &self.default_prefix, self.semantics.value) {
                Ok(config) => (Some(config), None),
                Err(error) => (good, Some(error.to_string())),
            };
        let judged = match &error {
            Some(error) if last_error.as_ref() == Some(error) => None,
            Some(error) => Some(Judged::Broken { error: error.clone(), kept: good.is_some() }),
            None => last_error.map(|_| Judged::Mended),
        };
        self.objects.insert(object.name.clone(), Entry { object, good, error });
        judged
    }

    /// `work` was written to an object. Its status may never show that: the API server drops what
    /// the schema has no field for, as newer Porch's for the observed generation.
    pub(super) fn record_write(&mut self, name: &str, work: &Work) {
        if let (Some(entry), Work::Status { observed: Some(observed), .. }) =
            (self.objects.get_mut(name), work)
        {
            entry.object.observed = Some(*observed);
        }
    }

    /// An object is gone.
    pub(super) fn gone(&mut self, name: &str) {
        self.stale |= self.objects.remove(name).is_some();
    }

    /// The names of all objects but `these`.
    pub(super) fn others(&self, these: &BTreeSet<String>) -> Vec<String> {
        self.names().filter(|name| !these.contains(*name)).map(str::to_owned).collect()
    }

    /// What the objects come to, if that has changed; `now` is when.
    pub(super) fn configs(&mut self, now: Time) -> Option<Arc<FunctionConfigs>> {
        if !std::mem::take(&mut self.stale) {
            return None;
        }
        let living = self.objects.values().filter(|entry| !entry.object.ending);
        let mut time = living.clone().filter_map(|entry| entry.object.changed).max();
        // The way back, or without an object, is a later configuration too.
        if self.time.is_some() && time <= self.time {
            time = Some(now.max(self.time.unwrap_or_default()));
        }
        let all = living.filter_map(|entry| entry.good.clone()).collect();
        self.configs = Arc::new(FunctionConfigs::new(all, self.semantics.clone(), time.and_then(timestamp)));
        self.time = time;
        Some(Arc::clone(&self.configs))
    }

    /// What is to be written to an object; `owns`: whether its status is this runner's to write.
    pub(super) fn work(&self, name: &str, owns: bool) -> Option<Work> {
        let entry = self.objects.get(name)?;
        work(&entry.object, self.outcome(entry), owns)
    }

    fn outcome<'a>(&'a self, entry: &'a Entry) -> Outcome<'a> {
        // Whether there is one hangs on what tags mean: a guess is not told.
        let sure = self.semantics.source != Source::NoSchema;
        let conflict = || self.configs.problem(&entry.object.name).filter(|_| sure);
        Outcome { applied: entry.error.is_none(), problem: entry.error.as_deref().or_else(conflict) }
    }

    pub(super) fn object(&self, name: &str) -> Option<&Object> {
        self.objects.get(name).map(|entry| &entry.object)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().map(String::as_str)
    }

    pub(super) fn counts(&self) -> Counts {
        let living = self.objects.values().filter(|entry| !entry.object.ending);
        let problems = living.clone().filter(|entry| self.outcome(entry).problem.is_some());
        let broken = living.clone().filter(|entry| entry.error.is_some());
        Counts { objects: living.clone().count(), problems: problems.count(), broken: broken.count() }
    }
}
