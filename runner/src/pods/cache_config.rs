//! `--pod-cache-config`: per-image limits, and the images to warm up. Both forms of the original are read: a
//! list of objects, and a map of image to time to live.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use porch_fn_image::Image;
use porch_fn_pool::{ImageKey, Override};
use porch_fn_service::flags::parse_duration;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

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
         maxParallelPodsPerFunction}} or a map of image to time to live"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// One image of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) image: Image,
    pub(crate) limits: Override,
}

enum File {
    List(Vec<Item>),
    Map(HashMap<String, String>),
}

/// By hand: serde's untagged enums cannot say what is wrong, nor where.
impl<'de> Deserialize<'de> for File {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = File;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list or a map")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<File, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(File::List)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<File, A::Error> {
                HashMap::deserialize(MapAccessDeserializer::new(map)).map(File::Map)
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
}

/// Reads the file.
pub(crate) fn read(path: &Path, prefix: &str) -> Result<Vec<Entry>, CacheConfigError> {
    let failed = |source| CacheConfigError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_BYTES {
        return Err(failed(std::io::Error::from(std::io::ErrorKind::FileTooLarge)));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    parse(&text, prefix).map_err(|reason| CacheConfigError::Parse { path: path.to_owned(), reason })
}

fn parse(text: &str, prefix: &str) -> Result<Vec<Entry>, String> {
    let file: Option<File> = yaml::parse(text)?;
    let items = match file {
        None => Vec::new(),
        Some(File::List(items)) => items,
        Some(File::Map(map)) => {
            let item = |(name, time_to_live)| Item {
                name,
                time_to_live,
                max_waitlist_length: 0,
                max_parallel_pods_per_function: 0,
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
        Ok(Entry { image, limits })
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

    #[test]
    fn both_forms_are_read() {
        let list = "- name: set-namespace:v0.4.1\n  timeToLive: 1h\n  maxWaitlistLength: 3\n  \
                    maxParallelPodsPerFunction: 4\n  resources: {requests: {cpu: 10m}}\n- name: x/y:1\n";
        let entries = parse(list, PREFIX).unwrap();
        assert_eq!(entries[0].image.as_str(), "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1");
        let expected =
            Override { max_pods: 4, waitlist: 3, ttl: Duration::from_hours(1), ..Override::default() };
        assert_eq!(entries[0].limits, expected);
        assert_eq!(entries[1].limits, Override::default(), "unset means as for all");

        let map = "set-namespace:v0.4.1: 10m\napply-setters:v0.2: 90s\n";
        let entries = parse(map, PREFIX).unwrap();
        let ttls: Vec<_> = entries.iter().map(|entry| entry.limits.ttl.as_secs()).collect();
        assert_eq!(ttls, [90, 600]);
        assert!(parse("", PREFIX).unwrap().is_empty());
    }

    #[test]
    fn broken_entries_are_named() {
        let error = parse("- {name: a:v1, timeToLive: soon}", PREFIX).unwrap_err();
        assert!(error.contains("\"a:v1\"") && error.contains("soon"), "{error}");
        assert!(parse("- {name: 'UPPER/Case'}", PREFIX).unwrap_err().contains("UPPER/Case"));
        assert!(parse("3", PREFIX).is_err());
        let error = parse("- name: a:v1\n- name: b:v1\n  maxWaitlistLength: many\n", PREFIX).unwrap_err();
        assert!(error.contains("line 3"), "{error}");
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,60}(\n\\PC{0,30}){0,4}") {
            let _ = parse(&text, PREFIX);
        }
    }
}
