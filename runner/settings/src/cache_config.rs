//! `--pod-cache-config`: per-image limits, and the images to warm up. Both forms of the original are read: a list of
//! objects, and a map of image to time to live. `minReplicas` and `maxReplicas` are ours.

use std::collections::HashMap;
use std::fmt;

use k8s_openapi::api::core::v1::ResourceRequirements;
use porch_fn_image::Image;
use porch_fn_service::flags::parse_duration;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

use crate::field::quoted;
use crate::source::Limits;
use crate::{quantity, yaml};

/// What the file says. `Default` is for none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CacheConfig {
    /// In the file's order; those of a map by name. Of two for one image the first counts.
    pub entries: Vec<Entry>,
}

/// One image of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// As written.
    pub name: String,
    /// What that means.
    pub image: Image,
    /// What the file says of its pods.
    pub limits: Limits,
    /// What the function's container asks for; `None`: as its template says.
    pub resources: Option<ResourceRequirements>,
    /// Where the entry says the same thing twice, and which one counts.
    pub note: Option<String>,
}

enum Form {
    List(Vec<Item>),
    Map(HashMap<String, Spanned<String>>),
}

/// By hand: serde's untagged enums cannot say what is wrong, nor where.
impl<'de> Deserialize<'de> for Form {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Form;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list or a map")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Form, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Form::List)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Form, A::Error> {
                HashMap::deserialize(MapAccessDeserializer::new(map)).map(Form::Map)
            }
        }

        deserializer.deserialize_any(Either)
    }
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
    #[serde(default)]
    min_replicas: Option<u32>,
    #[serde(default)]
    max_replicas: u32,
    #[serde(default)]
    resources: Option<ResourceRequirements>,
}

// === impl CacheConfig ===

impl CacheConfig {
    /// What to tell the user who wrote another thing.
    pub const EXPECTED: &str = "expected a list of {name, timeToLive, maxWaitlistLength, \
                                maxParallelPodsPerFunction, minReplicas, maxReplicas, resources} or a map of image to \
                                time to live";

    /// Reads the file's text; names without a registry get `prefix`. The error is one line with line and column, and
    /// names the entry.
    pub fn parse(text: &str, prefix: &str) -> Result<Self, String> {
        let form: Option<Form> = yaml::parse(text)?;
        let entries = match form {
            None => Ok(Vec::new()),
            Some(Form::List(items)) => items.into_iter().map(|item| item.entry(prefix)).collect(),
            Some(Form::Map(map)) => {
                let mut pairs: Vec<_> = map.into_iter().collect();
                pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                pairs.into_iter().map(|(name, ttl)| Item::lived(name, ttl).entry(prefix)).collect()
            }
        };
        entries.map(|entries| Self { entries })
    }
}

// === impl Item ===

impl Item {
    /// One of a map, whose place is that of its value.
    fn lived(name: String, ttl: Spanned<String>) -> Self {
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
        let ttl = match self.time_to_live.as_str() {
            "" => None,
            text => {
                let ttl = parse_duration(text)
                    .map_err(|error| wrong(&format!("timeToLive {}: {error}", quoted(text))))?;
                Some(ttl).filter(|ttl| !ttl.is_zero())
            }
        };

        let set = |count: u32| (count > 0).then_some(count);
        let (most, parallel) = (set(self.max_replicas), set(self.max_parallel_pods_per_function));
        let max_pods = most.or(parallel);
        if let (Some(least), Some(most)) = (self.min_replicas, max_pods)
            && least > most
        {
            let key = if self.max_replicas > 0 { "maxReplicas" } else { "maxParallelPodsPerFunction" };
            return Err(wrong(&format!("minReplicas {least} is more than {key} {most}: write at most that")));
        }
        let note = most.zip(parallel).filter(|(most, parallel)| most != parallel).map(|(most, parallel)| {
            format!(
                "--pod-cache-config, entry {name}: maxReplicas ({most}) counts, not maxParallelPodsPerFunction \
                 ({parallel})"
            )
        });

        // An empty one is as none: the template's own stand.
        let resources = self.resources.as_ref().filter(|read| **read != ResourceRequirements::default());
        if let Some(resources) = resources {
            quantity::check(resources).map_err(|error| wrong(&format!("resources: {error}")))?;
        }
        let limits =
            Limits { ttl, max_pods, min_pods: self.min_replicas, waitlist: set(self.max_waitlist_length) };
        Ok(Entry { name: name.clone(), image, limits, resources: resources.cloned(), note })
    }
}

#[cfg(test)]
mod tests;
