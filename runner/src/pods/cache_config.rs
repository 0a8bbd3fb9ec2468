//! `--pod-cache-config`: per-image limits, and the images to warm up. Both forms of the original are read: a
//! list of objects, and a map of image to time to live. [`watch`] reads it again when it changes.

mod quantity;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use k8s_openapi::api::core::v1::ResourceRequirements;
use porch_fn_image::Image;
use porch_fn_pool::{ImageKey, Override, Time};
use porch_fn_service::flags::parse_duration;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

pub(crate) use self::watch::watch;
use crate::yaml;

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Why the file cannot be used. The texts name the file, and line and column or the entry.
#[derive(Debug, thiserror::Error)]
pub enum CacheConfigError {
    /// It cannot be read.
    #[error("--pod-cache-config {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is not what was expected.
    #[error(
        "--pod-cache-config {path}: {reason}; expected a list of {{name, timeToLive, maxWaitlistLength, \
         maxParallelPodsPerFunction, resources}} or a map of image to time to live"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// What the file says. `Default` is for none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CacheConfig {
    /// In the file's order; those of a map by name.
    pub(crate) entries: Vec<Entry>,
    /// When the file was changed, as far as its file system knows.
    pub(crate) modified: Option<Time>,
}

/// One image of the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) image: Image,
    pub(crate) limits: Override,
    /// What the function's container asks for; `None`: as its template says.
    pub(crate) resources: Option<ResourceRequirements>,
}

/// The file, not yet parsed.
struct Content {
    text: String,
    modified: Option<Time>,
}

enum Form {
    List(Vec<Item>),
    Map(HashMap<String, String>),
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
    name: String,
    #[serde(default)]
    time_to_live: String,
    #[serde(default)]
    max_waitlist_length: u32,
    #[serde(default)]
    max_parallel_pods_per_function: u32,
    #[serde(default)]
    resources: Option<ResourceRequirements>,
}

/// Reads the file.
pub(crate) fn read_config(path: &Path, prefix: &str) -> Result<CacheConfig, CacheConfigError> {
    Content::read(path)?.parse(path, prefix)
}

// === impl Content ===

impl Content {
    fn read(path: &Path) -> Result<Self, CacheConfigError> {
        let failed = |source| CacheConfigError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let modified = file.metadata().map_err(failed)?.modified().ok();
        let mut text = String::new();
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).ok().map(Time::from_millis);
        Ok(Self {
            text,
            modified: modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).and_then(millis),
        })
    }

    fn parse(&self, path: &Path, prefix: &str) -> Result<CacheConfig, CacheConfigError> {
        match parse(&self.text, prefix) {
            Ok(entries) => Ok(CacheConfig { entries, modified: self.modified }),
            Err(reason) => Err(CacheConfigError::Parse { path: path.to_owned(), reason }),
        }
    }
}

fn parse(text: &str, prefix: &str) -> Result<Vec<Entry>, String> {
    let form: Option<Form> = yaml::parse(text)?;
    let items = match form {
        None => Vec::new(),
        Some(Form::List(items)) => items,
        Some(Form::Map(map)) => {
            let item = |(name, time_to_live)| Item {
                name,
                time_to_live,
                max_waitlist_length: 0,
                max_parallel_pods_per_function: 0,
                resources: None,
            };
            let mut items: Vec<_> = map.into_iter().map(item).collect();
            items.sort_by(|a, b| a.name.cmp(&b.name));
            items
        }
    };
    items.into_iter().map(|item| item.entry(prefix)).collect()
}

impl Item {
    fn entry(self, prefix: &str) -> Result<Entry, String> {
        let image =
            Image::parse(&self.name, prefix).map_err(|error| format!("entry {:?}: {error}", self.name))?;
        let ttl = match self.time_to_live.as_str() {
            "" => Duration::ZERO,
            text => parse_duration(text)
                .map_err(|error| format!("entry {:?}: timeToLive {text:?}: {error}", self.name))?,
        };
        let limits = Override {
            max_pods: self.max_parallel_pods_per_function,
            waitlist: self.max_waitlist_length,
            ttl,
            ..Override::default()
        };
        // An empty one is as none: the template's own stand.
        let resources = self.resources.filter(|resources| *resources != ResourceRequirements::default());
        if let Some(resources) = &resources {
            quantity::check(resources)
                .map_err(|error| format!("entry {:?}: resources: {error}", self.name))?;
        }
        Ok(Entry { image, limits, resources })
    }
}

/// As the pool wants it. Of two entries for one image the first counts.
pub(crate) fn overrides(entries: &[Entry]) -> HashMap<ImageKey, Override> {
    let mut table = HashMap::new();
    for entry in entries {
        table.entry(ImageKey::from(entry.image.as_str())).or_insert_with(|| entry.limits.clone());
    }
    table
}

/// What the containers of images ask for, where the file says it. Of two entries for one image the first counts.
pub(crate) fn resources(entries: &[Entry]) -> HashMap<ImageKey, ResourceRequirements> {
    let mut table = HashMap::new();
    for entry in entries {
        table.entry(ImageKey::from(entry.image.as_str())).or_insert(&entry.resources);
    }
    table.into_iter().filter_map(|(image, resources)| Some((image, resources.clone()?))).collect()
}
