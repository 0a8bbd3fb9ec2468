//! `--pod-cache-config`: limits per image, and the images to warm up. Reads both forms of Porch's
//! runner: a list of objects, and a map of image to time to live. `minReplicas` and `maxReplicas`
//! are extensions of this project.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use porch_fn_flags::parse_duration;
use porch_fn_image::Image;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::field::quoted;
use crate::source::Limits;
use crate::{quantity, yaml};

/// The file's content. `Default` is the content without a file: no entries.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CacheConfig {
    /// Entries of a list are in the file's order, entries of a map are sorted by name. The first
    /// entry for an image wins.
    pub entries: Vec<Entry>,
}

/// One image of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The name as written.
    pub name: String,
    /// The image of that name.
    pub image: Image,
    /// Limits for its pods.
    pub limits: Limits,
    /// Resources of the function's container; `None` keeps the template's resources.
    pub resources: Option<ResourceRequirements>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    name: Spanned<String>,
    #[serde(default)]
    time_to_live: String,
    #[serde(default)]
    max_waitlist_length: u32,
    #[serde(default)]
    max_parallel_pods_per_function: u32,
    min_replicas: Option<u32>,
    #[serde(default)]
    max_replicas: u32,
    resources: Option<ResourceRequirements>,
}

// === impl CacheConfig ===

impl CacheConfig {
    /// The expected form, for errors.
    pub const EXPECTED: &str = "expected a list of {name, timeToLive, maxWaitlistLength, \
                                maxParallelPodsPerFunction, minReplicas, maxReplicas, resources} or a map of image to \
                                time to live";

    /// Reads the file's text; names without a registry get `prefix`.
    ///
    /// # Errors
    /// A text of one line. It names the entry, and its line and column in the file.
    pub fn parse(text: &str, prefix: &str) -> Result<Self, String> {
        let is_map = yaml::parse::<BTreeMap<String, Value>>(text).is_ok();
        let items: Vec<Item> = if is_map {
            let map: BTreeMap<String, Spanned<String>> = yaml::parse(text)?;
            map.into_iter().map(Item::of_map).collect()
        } else {
            yaml::parse::<Option<_>>(text)?.unwrap_or_default()
        };
        let entries = items.into_iter().map(|item| item.entry(prefix)).collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }
}

// === impl Item ===

impl Item {
    /// An item of a map. An error about the item contains the location of the map's value.
    fn of_map((name, ttl): (String, Spanned<String>)) -> Self {
        Self {
            name: Spanned::new(name, ttl.referenced, ttl.defined),
            time_to_live: ttl.value,
            max_waitlist_length: 0,
            max_parallel_pods_per_function: 0,
            min_replicas: None,
            max_replicas: 0,
            resources: None,
        }
    }

    fn entry(self, prefix: &str) -> Result<Entry, String> {
        let name = &self.name.value;
        let wrong = |reason: &str| yaml::at(&self.name, &format!("entry {}: {reason}", quoted(name)));
        let image = Image::parse(name, prefix).map_err(|error| wrong(&error.to_string()))?;
        let ttl = Some(self.time_to_live.as_str()).filter(|text| !text.is_empty());
        let ttl = ttl.map(|text| {
            parse_duration(text).map_err(|error| wrong(&format!("timeToLive {}: {error}", quoted(text))))
        });

        let set = |count: u32| (count > 0).then_some(count);
        let (most, key) = match set(self.max_replicas) {
            Some(most) => (Some(most), "maxReplicas"),
            None => (set(self.max_parallel_pods_per_function), "maxParallelPodsPerFunction"),
        };
        if let (Some(least), Some(most)) = (self.min_replicas, most)
            && least > most
        {
            return Err(wrong(&format!("minReplicas {least} is more than {key} {most}: write at most that")));
        }

        let resources = self.resources.as_ref().filter(|found| **found != ResourceRequirements::default());
        if let Some(Err(reason)) = resources.map(quantity::check) {
            return Err(wrong(&format!("resources: {reason}")));
        }
        let limits = Limits {
            ttl: ttl.transpose()?.filter(|ttl| !ttl.is_zero()),
            max_pods: most,
            min_pods: self.min_replicas,
            waitlist: set(self.max_waitlist_length),
        };
        Ok(Entry { name: name.clone(), image, limits, resources: resources.cloned() })
    }
}

#[cfg(test)]
mod tests;
