//! All FunctionConfigs of the cluster, and the rules that select one of them for an image.
//!
//! For each image and executor, one object wins: all fields of that executor come from it. An
//! object that names the tag wins over an object for all tags. Between equals, the older object
//! wins. If both have the same age, the first name in sort order wins. An object's status names the
//! first image that the object loses. An object for all tags may lose an image to an object that
//! names the tag. This is intended, so no status reports it. A request's tag may be a version
//! constraint. Then the executable with the highest listed version that satisfies it wins.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use jiff::Timestamp;
use porch_fn_image::Image;

use crate::function_config::{BinaryExecutor, FunctionConfig};
use crate::source::Setting;
use crate::tags::{Asked, TagSemantics, Tags};

/// Maximum number of objects that are used. The oldest ones are used.
const MAX_FUNCTION_CONFIGS: usize = 10_000;
/// Maximum number of objects that are used for one repository. Each lookup reads all of them.
const MAX_PER_REPOSITORY: usize = 100;
/// Maximum number of tag comparisons for [`FunctionConfigs::problem`]. The comparisons only find
/// conflicts to report. They do not decide which object wins.
const MAX_COMPARISONS: u64 = 10_000_000;

/// An executor's field, and its tags.
type Executor = (&'static str, fn(&FunctionConfig) -> Option<&Tags>);
const EXECUTORS: [Executor; 2] = [
    ("podExecutor", |config| config.pod.as_ref().map(|pod| &pod.tags)),
    ("binaryExecutor", |config| config.binary.as_ref().map(|binary| &binary.tags)),
];

/// All objects that are used. `Default` has no objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FunctionConfigs {
    /// Sorted by [`precedence`]: of equally good matches for an image, the first wins.
    configs: Vec<FunctionConfig>,
    /// Indexes of `configs`, ascending.
    by_repository: HashMap<String, Vec<usize>>,
    problems: HashMap<String, String>,
    /// The meaning of the objects' `tags`; `None` for [`Default`].
    pub semantics: Option<Setting<TagSemantics>>,
    /// The time of the last change to one of the objects, if known.
    pub changed: Option<Timestamp>,
}

// === impl FunctionConfigs ===

impl FunctionConfigs {
    /// Orders `configs`, which were all read with `semantics`. `changed` is the time of the last
    /// change to one of them.
    pub fn new(
        mut configs: Vec<FunctionConfig>,
        semantics: Setting<TagSemantics>,
        changed: Option<Timestamp>,
    ) -> Self {
        configs.sort_by(precedence);
        let mut problems = HashMap::new();
        for over in configs.drain(MAX_FUNCTION_CONFIGS.min(configs.len())..) {
            let reason = format!("it is not used: {MAX_FUNCTION_CONFIGS} other FunctionConfigs precede it");
            problems.insert(over.name, reason);
        }
        let mut by_repository: HashMap<String, Vec<usize>> = HashMap::new();
        let mut budget = MAX_COMPARISONS;
        for (index, config) in configs.iter().enumerate() {
            let mut problem = config.warning();
            for repository in &config.repositories {
                let places = by_repository.entry(repository.clone()).or_default();
                if places.len() == MAX_PER_REPOSITORY {
                    problem.get_or_insert_with(|| {
                        format!("image {repository}: this FunctionConfig is not used, because {MAX_PER_REPOSITORY} other FunctionConfigs for the image precede it")
                    });
                    continue;
                }
                let mut older = places.iter().filter_map(|&place| configs.get(place));
                if problem.is_none() {
                    problem = older.find_map(|winner| conflict(repository, config, winner, &mut budget));
                }
                places.push(index);
            }
            let problem = problem.or_else(|| config.removal());
            problems.extend(problem.map(|problem| (config.name.clone(), problem)));
        }
        Self { configs, by_repository, problems, semantics: Some(semantics), changed }
    }

    /// All objects that are used, older objects first.
    pub fn iter(&self) -> impl Iterator<Item = &FunctionConfig> {
        self.configs.iter()
    }

    /// The text for the status of the object `name`: the part of the object that is not used, and
    /// why.
    pub fn problem(&self, name: &str) -> Option<&str> {
        self.problems.get(name).map(String::as_str)
    }

    /// The objects for pods of `image`. The first one wins.
    pub fn pod(&self, image: &Image) -> Vec<&FunctionConfig> {
        let asked = Asked::of(image);
        let pods = self.of_repository(image).filter_map(|config| Some((config, &config.pod.as_ref()?.tags)));
        let mut found: Vec<_> = pods.filter(|(_, tags)| tags.matches(&asked)).collect();
        found.sort_by_key(|(_, tags)| tags.is_all());
        found.into_iter().map(|(config, _)| config).collect()
    }

    /// The objects of the image's repository whose `podExecutor` matches no image, because it lists
    /// no tag.
    pub fn without_tags(&self, image: &Image) -> impl Iterator<Item = &FunctionConfig> {
        let is_none = |config: &&FunctionConfig| config.pod.as_ref().is_some_and(|pod| pod.tags.is_none());
        self.of_repository(image).filter(is_none)
    }

    /// The objects with an executable for `image`. The first one wins. `field` is the request's
    /// version constraint, which replaces the image's own tag. An image with a digest has no
    /// executable.
    pub fn binary(&self, image: &Image, field: Option<&str>) -> Vec<(&FunctionConfig, &BinaryExecutor)> {
        if image.digest().is_some() {
            return Vec::new();
        }
        let asked = field.map_or_else(|| Asked::of(image), Asked::of_field);
        let all = self.of_repository(image).filter_map(|config| {
            let binary = config.binary.as_ref()?;
            Some((config, binary, binary.tags.match_executable(&asked)?))
        });
        let mut found: Vec<_> = all.collect();
        found.sort_by_key(|(_, binary, how)| (binary.tags.is_all(), Reverse(*how)));
        found.into_iter().map(|(config, binary, _)| (config, binary)).collect()
    }

    fn of_repository(&self, image: &Image) -> impl Iterator<Item = &FunctionConfig> {
        let places = self.by_repository.get(image.repository());
        places.into_iter().flatten().filter_map(|&place| self.configs.get(place))
    }
}

/// Sorts older objects first. An object without a creation time comes last: it is not in the
/// cluster yet.
fn precedence(a: &FunctionConfig, b: &FunctionConfig) -> Ordering {
    let age = |config: &FunctionConfig| (config.created.is_none(), config.created);
    age(a).cmp(&age(b)).then_with(|| a.name.cmp(&b.name))
}

/// Describes the first executor and tag for which `winner` is used instead of `loser`; `None` if
/// there is no such tag. `winner` comes first by [`precedence`].
fn conflict(
    repository: &str,
    loser: &FunctionConfig,
    winner: &FunctionConfig,
    budget: &mut u64,
) -> Option<String> {
    EXECUTORS.iter().find_map(|(executor, tags)| {
        let (lost, won) = (tags(loser)?, tags(winner)?);
        let which = match (lost.is_all(), won.is_all()) {
            (true, true) => "with any tag".to_owned(),
            (false, false) => format!("tag {}", lost.overlap(won, budget)?),
            _ => return None,
        };
        let why = if loser.created == winner.created { "its name sorts first" } else { "it is older" };
        let winner = &winner.name;
        Some(format!("{executor}: image {repository} {which}: FunctionConfig {winner} wins, {why}"))
    })
}

#[cfg(test)]
mod tests;
