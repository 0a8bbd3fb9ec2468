//! The sources laid over each other.

mod warm;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use porch_fn_image::{AllowedImages, Constraint, Image, parse_version};

use crate::cache_config::{CacheConfig, Entry};
use crate::exec_config::ExecConfig;
use crate::function_config::{BinaryExecutor, FunctionConfig};
use crate::function_configs::FunctionConfigs;
use crate::overrides::PodOverrides;
use crate::source::{Limits, Setting, Source};
pub use warm::{Range, Resolved};

/// A flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag<T> {
    /// What it is.
    pub value: T,
    /// Whether the user set it, as opposed to its default.
    pub set: bool,
}

/// The flags that hold for all images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// `--pod-ttl`.
    pub ttl: Flag<Duration>,
    /// `--max-parallel-pods-per-function`.
    pub max_pods: Flag<u32>,
    /// `--max-waitlist-length`.
    pub waitlist: Flag<u32>,
    /// `--max-concurrent-per-pod`.
    pub per_pod: Flag<u32>,
    /// `--max-queue-per-function`.
    pub queue: Flag<u32>,
    /// `--functions`, under which a FunctionConfig names executables.
    pub functions: PathBuf,
    /// `--default-image-prefix`.
    pub default_prefix: String,
    /// `--allowed-images`.
    pub allowed_images: Arc<AllowedImages>,
}

/// All sources at one moment.
#[derive(Debug, Clone)]
pub struct Settings {
    flags: Flags,
    cache: Arc<CacheConfig>,
    exec: Arc<ExecConfig>,
    functions: Arc<FunctionConfigs>,
    /// Executables of FunctionConfigs that are not there.
    missing: HashSet<PathBuf>,
    /// The place of an image's first entry in `cache`, and how many there are.
    entries: HashMap<Image, (usize, usize)>,
}

/// What holds for one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// How long an unused pod stays.
    pub ttl: Setting<Duration>,
    /// Most pods, of all runners together. Never less than `min_pods`.
    pub max_pods: Setting<u32>,
    /// Pods that are kept whatever `ttl` says.
    pub min_pods: Setting<u32>,
    /// Load of the least loaded pod from which on one more pod is started.
    pub waitlist: Setting<u32>,
    /// Calls in flight per pod.
    pub per_pod: Setting<u32>,
    /// Calls waiting for a pod.
    pub queue: Setting<u32>,
    /// What differs from the template.
    pub overrides: PodOverrides,
    /// Where that comes from.
    pub overrides_from: OverridesFrom,
    /// What the exec runtime runs for it.
    pub executable: Option<Setting<PathBuf>>,
    /// What is written and does not count, for people.
    pub notes: Vec<String>,
}

/// Where overrides come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OverridesFrom {
    /// All but the container's resources.
    pub all: Option<Source>,
    /// The container's resources.
    pub container_resources: Option<Source>,
}

/// What one source says.
struct Layer<'a> {
    source: Source,
    limits: &'a Limits,
}

// === impl Flag ===

impl<T: Copy> Flag<T> {
    fn setting(self, name: &'static str) -> Setting<T> {
        Setting::new(self.value, if self.set { Source::Flag(name) } else { Source::Default(name) })
    }
}

// === impl Settings ===

impl Settings {
    /// A snapshot of these sources. `exec` was read with the prefix of `flags`. `is_there` tells whether an executable
    /// that a FunctionConfig names exists: one that does not is as if it was not named, so that its image runs in pods.
    /// What `--config` names counts in any case.
    pub fn new(
        flags: Flags,
        cache: Arc<CacheConfig>,
        exec: Arc<ExecConfig>,
        functions: Arc<FunctionConfigs>,
        is_there: impl Fn(&Path) -> bool,
    ) -> Self {
        let missing = missing(&flags, &functions, is_there);
        let mut entries = HashMap::new();
        for (place, entry) in cache.entries.iter().enumerate() {
            let (_, count) = entries.entry(entry.image.clone()).or_insert((place, 0));
            *count += 1;
        }
        Self { flags, cache, exec, functions, missing, entries }
    }

    /// What holds for `image`.
    pub fn of(&self, image: &Image) -> Effective {
        let mut notes = Vec::new();
        let entry = self.entry(image, &mut notes);
        let function = self.function(image, &mut notes);
        self.note_executables(image, &mut notes);

        let of_function = function.map(FunctionConfig::limits);
        let function_layer = function.zip(of_function.as_ref()).map(|(config, limits)| Layer {
            source: Source::FunctionConfig { name: config.name.clone() },
            limits,
        });
        let entry_layer = entry.map(|entry| Layer {
            source: Source::CacheConfig { entry: entry.name.clone() },
            limits: &entry.limits,
        });
        // What comes first wins.
        let layers: Vec<_> = function_layer.into_iter().chain(entry_layer).collect();
        let flags = &self.flags;
        let (overrides, overrides_from) = overrides(function, entry);
        let mut effective = Effective {
            ttl: pick(&layers, |limits| limits.ttl, flags.ttl.setting("pod-ttl")),
            max_pods: pick(
                &layers,
                |limits| limits.max_pods,
                flags.max_pods.setting("max-parallel-pods-per-function"),
            ),
            min_pods: pick(&layers, |limits| limits.min_pods, Setting::new(0, Source::BuiltIn)),
            waitlist: pick(&layers, |limits| limits.waitlist, flags.waitlist.setting("max-waitlist-length")),
            per_pod: flags.per_pod.setting("max-concurrent-per-pod"),
            queue: flags.queue.setting("max-queue-per-function"),
            overrides,
            overrides_from,
            executable: self.executable_of(image),
            notes,
        };
        effective.reconcile();
        if !flags.allowed_images.allows(image) {
            effective.refuse();
        }
        effective
    }

    /// What the exec runtime runs for a request's `image`, as sent, and its `tag` field. `parsed` is what the image
    /// means, if anything. Whether the call is allowed is not asked here.
    ///
    /// A version or constraint there stands in place of the image's own tag: for a FunctionConfig
    /// it chooses among the versions listed. `--config` lists none to choose among: a version is a
    /// tag there, and a constraint stands for the image as it was sent, if that one satisfies it.
    /// Any other text does not count, and none does beside a digest.
    pub fn executable(&self, image: &str, parsed: Option<&Image>, tag: &str) -> Option<Setting<PathBuf>> {
        let is_version = parse_version(tag).is_some();
        let Some(parsed) = parsed else {
            // --config may name what is no image.
            return if is_version { None } else { self.configured(image) };
        };
        let constraint = Constraint::parse(tag).ok().filter(|_| parsed.digest().is_none());
        let Some(constraint) = constraint else { return self.executable_of(parsed) };
        self.named_executable(parsed, Some(tag)).or_else(|| {
            let own = parsed.tag().and_then(parse_version);
            let meant = match own.filter(|own| !is_version && constraint.matches(own)) {
                Some(_) => parsed.clone(),
                None if is_version => parsed.with_tag(tag).ok()?,
                None => return None,
            };
            self.configured(meant.as_str())
        })
    }

    /// The flags.
    pub fn flags(&self) -> &Flags {
        &self.flags
    }

    /// Whether another look at the executables of FunctionConfigs comes to the same.
    pub fn has_same_executables(&self, is_there: impl Fn(&Path) -> bool) -> bool {
        missing(&self.flags, &self.functions, is_there) == self.missing
    }

    /// The FunctionConfigs whose executables are not there, and those.
    pub fn missing_executables(&self) -> impl Iterator<Item = (&FunctionConfig, PathBuf)> {
        let named = self.functions.iter().filter_map(|config| Some((config, config.spec.binary.as_ref()?)));
        let named = named.map(|(config, binary)| (config, path_of(&self.flags, binary)));
        named.filter(|(_, path)| self.missing.contains(path))
    }

    /// Every FunctionConfig.
    pub fn functions(&self) -> &FunctionConfigs {
        &self.functions
    }

    fn entry(&self, image: &Image, notes: &mut Vec<String>) -> Option<&Entry> {
        let &(place, count) = self.entries.get(image)?;
        let entry = self.cache.entries.get(place)?;
        notes.extend(entry.note.clone());
        if count > 1 {
            notes
                .push(format!("--pod-cache-config has {count} entries for this image: the first one counts"));
        }
        Some(entry)
    }

    fn function(&self, image: &Image, notes: &mut Vec<String>) -> Option<&FunctionConfig> {
        notes.extend(self.functions.without_tags(image).map(|config| {
            format!(
                "FunctionConfig {} does not count for podExecutor: it lists no tags, write \"*\" for all",
                config.name
            )
        }));
        let mut found = self.functions.pod(image);
        let (winner, _) = found.next()?;
        notes.extend(winner.note());
        let losers = found.map(|(loser, pod)| lost("podExecutor", loser, pod.tags.is_all(), winner));
        notes.extend(losers);
        Some(winner)
    }

    fn executable_of(&self, image: &Image) -> Option<Setting<PathBuf>> {
        self.named_executable(image, None).or_else(|| self.configured(image.as_str()))
    }

    /// The executable that a FunctionConfig names for `image`, or for a request's tag `field` of
    /// its repository.
    fn named_executable(&self, image: &Image, field: Option<&str>) -> Option<Setting<PathBuf>> {
        let there = |(config, path): (&FunctionConfig, PathBuf)| {
            let source = Source::FunctionConfig { name: config.name.clone() };
            (!self.missing.contains(&path)).then(|| Setting::new(path, source))
        };
        self.named_executables(image, field).find_map(there)
    }

    /// Says what [`executable_of`](Self::executable_of) passed over.
    fn note_executables(&self, image: &Image, notes: &mut Vec<String>) {
        let mut winner: Option<&FunctionConfig> = None;
        for (config, path) in self.named_executables(image, None) {
            if self.missing.contains(&path) {
                notes.push(format!(
                    "FunctionConfig {} does not count for binaryExecutor: there is no file {}; see --functions",
                    config.name,
                    path.display()
                ));
            } else if let Some(winner) = winner {
                notes.push(lost("binaryExecutor", config, false, winner));
            } else {
                winner = Some(config);
            }
        }
        if let Some((winner, configured)) = winner.zip(self.configured(image.as_str())) {
            notes.push(format!("{} does not count: FunctionConfig {} does", configured.source, winner.name));
        }
    }

    /// The executables that FunctionConfigs name for `image`, there or not, in the objects' order.
    fn named_executables(
        &self,
        image: &Image,
        field: Option<&str>,
    ) -> impl Iterator<Item = (&FunctionConfig, PathBuf)> {
        self.functions
            .binary(image, field)
            .into_iter()
            .map(|(config, binary)| (config, path_of(&self.flags, binary)))
    }

    /// `image` is canonical, unless it is no image at all.
    fn configured(&self, image: &str) -> Option<Setting<PathBuf>> {
        let found = self.exec.find(image)?;
        Some(Setting::new(found.path.clone(), Source::ExecConfig { function: found.function.clone() }))
    }
}

fn path_of(flags: &Flags, binary: &BinaryExecutor) -> PathBuf {
    flags.functions.join(&binary.path)
}

/// The executables that FunctionConfigs name and that are not there.
fn missing(flags: &Flags, functions: &FunctionConfigs, is_there: impl Fn(&Path) -> bool) -> HashSet<PathBuf> {
    let named = functions.iter().filter_map(|config| config.spec.binary.as_ref());
    let named: HashSet<_> = named.map(|binary| path_of(flags, binary)).collect();
    named.into_iter().filter(|path| !is_there(path)).collect()
}

fn lost(executor: &str, loser: &FunctionConfig, for_all: bool, winner: &FunctionConfig) -> String {
    let (loser_name, winner_name) = (&loser.name, &winner.name);
    let why = if for_all && winner.spec.pod.as_ref().is_some_and(|pod| !pod.tags.is_all()) {
        "names the tag"
    } else if loser.created == winner.created {
        "comes first by name"
    } else {
        "is older"
    };
    format!("FunctionConfig {loser_name} does not count for {executor}: {winner_name} {why}")
}

fn pick<T>(layers: &[Layer<'_>], field: impl Fn(&Limits) -> Option<T>, flag: Setting<T>) -> Setting<T> {
    let said = |layer: &Layer<'_>| Some(Setting::new(field(layer.limits)?, layer.source.clone()));
    layers.iter().find_map(said).unwrap_or(flag)
}

/// The resources of a FunctionConfig stand for those of `--pod-cache-config` as a whole.
fn overrides(function: Option<&FunctionConfig>, entry: Option<&Entry>) -> (PodOverrides, OverridesFrom) {
    let mut from = OverridesFrom::default();
    let mut overrides = PodOverrides::default();
    if let Some((config, pod)) = function.and_then(|config| Some((config, config.spec.pod.as_ref()?))) {
        overrides = pod.overrides.clone();
        let source = Source::FunctionConfig { name: config.name.clone() };
        from.container_resources = overrides.container.resources.is_some().then(|| source.clone());
        from.all = (!overrides.is_empty()).then_some(source);
    }
    if overrides.container.resources.is_none()
        && let Some((entry, resources)) = entry.and_then(|entry| Some((entry, entry.resources.as_ref()?)))
    {
        overrides.container.resources = Some(resources.clone());
        overrides.resources_of_function = true;
        from.container_resources = Some(Source::CacheConfig { entry: entry.name.clone() });
    }
    (overrides, from)
}

// === impl Effective ===

impl Effective {
    /// Says that every call of the image is refused: nothing runs for it, and pods from before are not kept.
    fn refuse(&mut self) {
        self.min_pods = Setting::new(0, Source::Flag("allowed-images"));
        self.executable = None;
        self.notes.push("every call is refused: no pattern of --allowed-images fits this image".to_owned());
    }

    /// Makes `max_pods` at least `min_pods`. No single source can say otherwise; of two the higher one stands.
    fn reconcile(&mut self) {
        let (min, max) = (&self.min_pods, &self.max_pods);
        if min.value <= max.value {
            return;
        }
        let note = |changed: &str, from: &Setting<u32>, to: &Setting<u32>| {
            format!("{changed} is {}, as {} says, not {} ({})", to.value, to.source, from.value, from.source)
        };
        if max.source.rank() < min.source.rank() {
            self.notes.push(note("max pods", max, min));
            self.max_pods = self.min_pods.clone();
        } else {
            self.notes.push(note("min pods", min, max));
            self.min_pods = self.max_pods.clone();
        }
    }
}

#[cfg(test)]
mod allowed;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
