//! Every FunctionConfig of the cluster, and which of them counts where two are for one image.
//!
//! For one image and one executor, one object counts, with all that its executor says. It is one that names the tag
//! rather than one for all tags; of those left the oldest; of those of one age the one whose name comes first. What
//! an object loses so is told in its status, except to an object for all tags: there it is meant. A
//! request that is itself a version constraint runs the executable with the highest version listed.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use jiff::Timestamp;
use porch_fn_image::Image;

use crate::function_config::{BinaryExecutor, FunctionConfig, PodExecutor};
use crate::source::Setting;
use crate::tags::{Asked, TagSemantics, Tags};

/// Most objects that count; the oldest do.
pub const MAX_FUNCTION_CONFIGS: usize = 10_000;
/// Most objects with one executor for one repository: all are looked at for each of its images.
const MAX_PER_REPOSITORY: usize = 100;
/// Most comparisons of two tags for the sake of [`FunctionConfigs::problem`]. What counts does not hang on it.
const MAX_COMPARISONS: u64 = 10_000_000;
/// Most parts of one problem's text.
const MAX_PARTS: usize = 3;

/// All objects that count, with their conflicts settled. `Default` is for none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FunctionConfigs {
    /// What comes first wins.
    configs: Vec<FunctionConfig>,
    by_repository: HashMap<String, OfRepository>,
    problems: HashMap<String, String>,
    semantics: Option<Setting<TagSemantics>>,
    changed: Option<Timestamp>,
}

/// Places in `configs`: those with tags first, else as there.
#[derive(Debug, Clone, Default, PartialEq)]
struct OfRepository {
    pods: Vec<usize>,
    binaries: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Executor {
    Pod,
    Binary,
}

// === impl FunctionConfigs ===

impl FunctionConfigs {
    /// Settles the conflicts between `configs`, whose order does not matter; they were all read
    /// with `semantics`. `changed` is when one of them last did.
    pub fn new(
        mut configs: Vec<FunctionConfig>,
        semantics: Setting<TagSemantics>,
        changed: Option<Timestamp>,
    ) -> Self {
        configs.sort_by(precedence);
        let mut problems = Problems::default();
        for over in configs.drain(MAX_FUNCTION_CONFIGS.min(configs.len())..) {
            let reason =
                format!("{MAX_FUNCTION_CONFIGS} FunctionConfigs come before: this one does not count");
            problems.add(&over.name, reason);
        }

        for config in &configs {
            for warning in config.warnings() {
                problems.add(&config.name, warning);
            }
        }
        let mut by_repository: HashMap<String, OfRepository> = HashMap::new();
        let mut budget = MAX_COMPARISONS;
        for executor in [Executor::Pod, Executor::Binary] {
            // Twice, so that each list is in its order at once, and the problems in the objects' order.
            for general in [false, true] {
                for (place, config) in configs.iter().enumerate() {
                    let Some(tags) = executor.tags(config).filter(|tags| tags.is_all() == general) else {
                        continue;
                    };
                    for repository in &config.spec.repositories {
                        let list = by_repository.entry(repository.clone()).or_default().list_mut(executor);
                        if list.len() == MAX_PER_REPOSITORY {
                            problems.add(&config.name, executor.too_many(repository));
                            continue;
                        }
                        let rivals = list.iter().filter_map(|&rival| configs.get(rival));
                        let mut lost = rivals.filter_map(|rival| {
                            let rival_tags = executor.tags(rival).filter(|tags| tags.is_all() == general)?;
                            let tag = if general { "" } else { tags.overlap(rival_tags, &mut budget)? };
                            Some(executor.conflict(repository, tag, config, rival))
                        });
                        if let Some(reason) = lost.next() {
                            problems.add(&config.name, reason);
                        }
                        list.push(place);
                    }
                }
            }
        }
        Self { configs, by_repository, problems: problems.texts(), semantics: Some(semantics), changed }
    }

    /// All objects that count, those first that win.
    pub fn iter(&self) -> impl Iterator<Item = &FunctionConfig> {
        self.configs.iter()
    }

    /// What the status of the object `name` should say: which part of it does not count, and why.
    pub fn problem(&self, name: &str) -> Option<&str> {
        self.problems.get(name).map(String::as_str)
    }

    /// What their `tags` mean; `None` before that was asked.
    pub fn semantics(&self) -> Option<&Setting<TagSemantics>> {
        self.semantics.as_ref()
    }

    /// When one of them was last changed, as far as it is known.
    pub fn changed(&self) -> Option<Timestamp> {
        self.changed
    }

    /// How the pods of `image` are to be; the object that says so, and after it those that would if it was not there.
    pub fn pod(&self, image: &Image) -> impl Iterator<Item = (&FunctionConfig, &PodExecutor)> {
        let asked = Asked::of(image);
        let all = self.of_repository(image, Executor::Pod);
        let pods = all.filter_map(|config| Some((config, config.spec.pod.as_ref()?)));
        pods.filter(move |(_, pod)| pod.tags.matches(&asked))
    }

    /// The objects that would say how the pods of `image` are to be, if they listed any tag.
    pub fn without_tags(&self, image: &Image) -> impl Iterator<Item = &FunctionConfig> {
        let is_none =
            |config: &&FunctionConfig| config.spec.pod.as_ref().is_some_and(|pod| pod.tags.is_none());
        self.of_repository(image, Executor::Pod).filter(is_none)
    }

    /// What stands for `image`, in the manner of [`pod`](Self::pod). With `field`, a version
    /// constraint, the image's own tag does not count. A digest means what it says: nothing stands
    /// for it.
    pub fn binary(&self, image: &Image, field: Option<&str>) -> Vec<(&FunctionConfig, &BinaryExecutor)> {
        if image.digest().is_some() {
            return Vec::new();
        }
        let asked = field.map_or_else(|| Asked::of(image), Asked::of_field);
        let all = self.of_repository(image, Executor::Binary);
        let mut found: Vec<_> = all
            .filter_map(|config| {
                let binary = config.spec.binary.as_ref()?;
                Some((config, binary, binary.tags.match_executable(&asked)?))
            })
            .collect();
        // Stable: of equals the one that comes first wins.
        found.sort_by_key(|(_, binary, how)| (binary.tags.is_all(), Reverse(*how)));
        found.into_iter().map(|(config, binary, _)| (config, binary)).collect()
    }

    fn of_repository(&self, image: &Image, executor: Executor) -> impl Iterator<Item = &FunctionConfig> {
        let places = self.by_repository.get(image.repository()).map(|found| found.list(executor));
        places.into_iter().flatten().filter_map(|&place| self.configs.get(place))
    }
}

/// Older first. Without a time an object is not in the cluster yet.
fn precedence(a: &FunctionConfig, b: &FunctionConfig) -> Ordering {
    let age = |config: &FunctionConfig| (config.created.is_none(), config.created);
    age(a).cmp(&age(b)).then_with(|| a.name.cmp(&b.name))
}

// === impl OfRepository ===

impl OfRepository {
    fn list(&self, executor: Executor) -> &Vec<usize> {
        match executor {
            Executor::Pod => &self.pods,
            Executor::Binary => &self.binaries,
        }
    }

    fn list_mut(&mut self, executor: Executor) -> &mut Vec<usize> {
        match executor {
            Executor::Pod => &mut self.pods,
            Executor::Binary => &mut self.binaries,
        }
    }
}

// === impl Executor ===

impl Executor {
    fn name(self) -> &'static str {
        match self {
            Self::Pod => "podExecutor",
            Self::Binary => "binaryExecutor",
        }
    }

    fn tags(self, config: &FunctionConfig) -> Option<&Tags> {
        match self {
            Self::Pod => config.spec.pod.as_ref().map(|pod| &pod.tags),
            Self::Binary => config.spec.binary.as_ref().map(|binary| &binary.tags),
        }
    }

    fn conflict(
        self,
        repository: &str,
        tag: &str,
        loser: &FunctionConfig,
        winner: &FunctionConfig,
    ) -> String {
        let which = if tag.is_empty() { "with any tag".to_owned() } else { format!("tag {tag}") };
        let why = if loser.created == winner.created { "its name comes first" } else { "it is older" };
        let (executor, winner) = (self.name(), &winner.name);
        format!("{executor}: image {repository} {which}: FunctionConfig {winner} counts, {why}")
    }

    fn too_many(self, repository: &str) -> String {
        format!(
            "{}: image {repository}: this one does not count, since {MAX_PER_REPOSITORY} FunctionConfigs for it come \
             before",
            self.name()
        )
    }
}

/// Parts of texts, by object.
#[derive(Debug, Default)]
struct Problems(HashMap<String, (Vec<String>, usize)>);

// === impl Problems ===

impl Problems {
    fn add(&mut self, name: &str, reason: String) {
        let (parts, more) = self.0.entry(name.to_owned()).or_default();
        if parts.len() < MAX_PARTS {
            parts.push(reason);
        } else {
            *more += 1;
        }
    }

    fn texts(self) -> HashMap<String, String> {
        let text = |(mut parts, more): (Vec<String>, usize)| {
            if more > 0 {
                parts.push(format!("and {more} more"));
            }
            parts.join("; ")
        };
        self.0.into_iter().map(|(name, parts)| (name, text(parts))).collect()
    }
}

#[cfg(test)]
mod tests;
