//! Combines all sources: which value is in effect for an image, and where it comes from.

mod notes;
mod warm;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use porch_fn_image::{AllowedImages, Constraint, Image, parse_version};

use crate::cache_config::CacheConfig;
use crate::exec_config::ExecConfig;
use crate::function_config::FunctionConfig;
use crate::function_configs::FunctionConfigs;
use crate::overrides::PodOverrides;
use crate::source::{Limits, Setting, Source};

pub use warm::{Range, Resolved};

/// The flags that apply to all images. The source of a value shows whether the user set the flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// `--pod-ttl`.
    pub ttl: Setting<Duration>,
    /// `--max-parallel-pods-per-function`.
    pub max_pods: Setting<u32>,
    /// `--max-waitlist-length`.
    pub waitlist: Setting<u32>,
    /// `--max-concurrent-per-pod`.
    pub per_pod: Setting<u32>,
    /// `--max-queue-per-function`.
    pub queue: Setting<u32>,
    /// `--functions`, the directory of the executables that FunctionConfigs name.
    pub functions: PathBuf,
    /// `--allowed-images`.
    pub allowed_images: Arc<AllowedImages>,
}

/// All sources at one moment.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The flags.
    pub flags: Flags,
    cache: Arc<CacheConfig>,
    exec: Arc<ExecConfig>,
    /// Every FunctionConfig.
    pub functions: Arc<FunctionConfigs>,
    /// Executables that FunctionConfigs name, but that do not exist. The paths are as written.
    missing: HashSet<PathBuf>,
    /// The index of an image's first entry in `cache`.
    entries: HashMap<Image, usize>,
}

/// The values in effect for one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// How long an unused pod stays.
    pub ttl: Setting<Duration>,
    /// Maximum number of pods of all runners together. Never less than `min_pods`.
    pub max_pods: Setting<u32>,
    /// Number of pods that stay beyond `ttl`.
    pub min_pods: Setting<u32>,
    /// A runner starts one more pod when the least loaded pod has this many calls.
    pub waitlist: Setting<u32>,
    /// The overrides of the template.
    pub overrides: PodOverrides,
    /// The source of `overrides`, except for the container's resources.
    pub overrides_from: Option<Source>,
    /// The source of the container's resources.
    pub resources_from: Option<Source>,
    /// The executable that the exec runtime runs.
    pub executable: Option<Setting<PathBuf>>,
}

// === impl Settings ===

impl Settings {
    /// A snapshot of these sources. If a FunctionConfig names an executable for which `exists` is
    /// false, that executable is ignored: the image uses its next executable, or pods if it has
    /// none. Executables of `--config` are used even if they do not exist.
    pub fn new(
        flags: Flags,
        cache: Arc<CacheConfig>,
        exec: Arc<ExecConfig>,
        functions: Arc<FunctionConfigs>,
        exists: impl Fn(&Path) -> bool,
    ) -> Self {
        let missing = missing(&flags, &functions, exists);
        let mut entries = HashMap::new();
        for (index, entry) in cache.entries.iter().enumerate() {
            entries.entry(entry.image.clone()).or_insert(index);
        }
        Self { flags, cache, exec, functions, missing, entries }
    }

    /// The values in effect for `image`.
    pub fn of(&self, image: &Image) -> Effective {
        let entry = self.entries.get(image).and_then(|&index| self.cache.entries.get(index));
        let function = self.functions.pod(image).first().copied();
        // The first layer with a value wins.
        let layers = [
            function.map(|config| (config.source(), config.limits())),
            entry.map(|entry| (Source::CacheConfig(entry.name.clone()), entry.limits)),
        ];
        let flags = &self.flags;
        let pod = function.and_then(|config| config.pod.as_ref());
        let mut overrides = pod.map(|pod| pod.overrides.clone()).unwrap_or_default();
        let overrides_from = function.filter(|_| !overrides.is_empty()).map(FunctionConfig::source);
        let mut resources_from = overrides_from.clone().filter(|_| overrides.container.resources.is_some());
        // The resources of a FunctionConfig replace those of `--pod-cache-config` as a whole.
        if let Some(entry) = entry.filter(|entry| resources_from.is_none() && entry.resources.is_some()) {
            overrides.container.resources.clone_from(&entry.resources);
            overrides.resources_of_function = true;
            resources_from = Some(Source::CacheConfig(entry.name.clone()));
        }
        let mut effective = Effective {
            ttl: pick(&layers, |limits| limits.ttl, &flags.ttl),
            max_pods: pick(&layers, |limits| limits.max_pods, &flags.max_pods),
            min_pods: pick(&layers, |limits| limits.min_pods, &Setting::new(0, Source::BuiltIn)),
            waitlist: pick(&layers, |limits| limits.waitlist, &flags.waitlist),
            overrides,
            overrides_from,
            resources_from,
            executable: self.executable_of(image),
        };
        effective.reconcile();
        if !flags.allowed_images.allows(image) {
            // The runner rejects every call of the image, so it needs no pods and no executable.
            effective.min_pods = Setting::new(0, Source::Flag("allowed-images"));
            effective.executable = None;
        }
        effective
    }

    /// The executable for a request's `image`, as sent, and its `tag` field. `parsed` is `image` as
    /// a reference, or `None` if it is not a valid reference. Does not check whether the call is
    /// allowed.
    ///
    /// A version or constraint in `tag` replaces the image's own tag. It selects from the tags that
    /// FunctionConfigs list. `--config` lists no tags. There, a version is looked up as the image's
    /// tag. A constraint selects the image as sent, if the image's own tag satisfies it. Any other
    /// text in `tag` is ignored. If the image has a digest, `tag` is always ignored.
    pub fn executable(&self, image: &str, parsed: Option<&Image>, tag: &str) -> Option<Setting<PathBuf>> {
        let is_version = parse_version(tag).is_some();
        let Some(parsed) = parsed else {
            // `--config` may contain names that are no image references.
            return if is_version { None } else { self.configured(image) };
        };
        let constraint = Constraint::parse(tag).filter(|_| parsed.digest().is_none());
        let Some(constraint) = constraint else { return self.executable_of(parsed) };
        self.named_executable(parsed, Some(tag)).or_else(|| {
            if is_version {
                return self.configured(parsed.with_tag(tag).ok()?.as_str());
            }
            let own = parsed.tag().and_then(parse_version)?;
            if constraint.matches(&own) { self.configured(parsed.as_str()) } else { None }
        })
    }

    /// Whether the set of missing executables is still the same as in this snapshot.
    pub fn has_same_executables(&self, exists: impl Fn(&Path) -> bool) -> bool {
        missing(&self.flags, &self.functions, exists) == self.missing
    }

    /// The FunctionConfigs whose executables do not exist, each with the missing path.
    pub fn missing_executables(&self) -> impl Iterator<Item = (&FunctionConfig, PathBuf)> {
        let named = self.functions.iter().filter_map(|config| Some((config, &config.binary.as_ref()?.path)));
        let missing = named.filter(|(_, path)| self.missing.contains(*path));
        missing.map(|(config, path)| (config, self.flags.functions.join(path)))
    }

    fn executable_of(&self, image: &Image) -> Option<Setting<PathBuf>> {
        self.named_executable(image, None).or_else(|| self.configured(image.as_str()))
    }

    /// The first existing executable that FunctionConfigs name for `image`. If the request's tag
    /// `field` is given, it replaces the image's own tag.
    fn named_executable(&self, image: &Image, field: Option<&str>) -> Option<Setting<PathBuf>> {
        let mut named = self.functions.binary(image, field).into_iter();
        let (config, binary) = named.find(|(_, binary)| !self.missing.contains(&binary.path))?;
        Some(Setting::new(self.flags.functions.join(&binary.path), config.source()))
    }

    /// The executable that `--config` names for `image`: a canonical reference, or a name that is
    /// no image reference.
    fn configured(&self, image: &str) -> Option<Setting<PathBuf>> {
        let function = self.exec.by_image.get(image)?.clone();
        Some(Setting::new(self.flags.functions.join(&function), Source::ExecConfig(function)))
    }
}

/// The executables that FunctionConfigs name and that do not exist.
fn missing(flags: &Flags, functions: &FunctionConfigs, exists: impl Fn(&Path) -> bool) -> HashSet<PathBuf> {
    let named = functions.iter().filter_map(|config| Some(config.binary.as_ref()?.path.clone()));
    let named: HashSet<_> = named.collect();
    named.into_iter().filter(|path| !exists(&flags.functions.join(path))).collect()
}

fn pick<T: Clone>(
    layers: &[Option<(Source, Limits)>],
    field: impl Fn(&Limits) -> Option<T>,
    otherwise: &Setting<T>,
) -> Setting<T> {
    let mut layers = layers.iter().flatten();
    let set = layers.find_map(|(source, limits)| Some(Setting::new(field(limits)?, source.clone())));
    set.unwrap_or_else(|| otherwise.clone())
}

// === impl Effective ===

impl Effective {
    /// Makes `max_pods` at least `min_pods`. A conflict is possible only if two sources set the
    /// two values. Then the source with the higher precedence wins.
    fn reconcile(&mut self) {
        if self.min_pods.value <= self.max_pods.value {
            return;
        }
        if self.max_pods.source < self.min_pods.source {
            self.max_pods = self.min_pods.clone();
        } else {
            self.min_pods = self.max_pods.clone();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
