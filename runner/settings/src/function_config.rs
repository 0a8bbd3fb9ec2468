//! One FunctionConfig object (`config.porch.kpt.dev/v1alpha1`), read and checked.
//!
//! An object applies only to images of its full repository: `evil.io/set-image` gets nothing from
//! the object for `set-image`. The API server drops fields that are not in Porch's schema. So
//! settings without such a field are annotations.

use std::mem::take;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use porch_fn_flags::parse_duration;
use porch_fn_image::Image;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::field::{FieldError, bounded, deserialize, quoted};
use crate::overrides::PodOverrides;
use crate::source::{Limits, Source};
use crate::tags::{TagSemantics, Tags};

/// The annotation for the number of pods that stay beyond their time to live.
pub const MIN_REPLICAS: &str = "fn.kpt.dev/min-replicas";
/// The annotation for the maximum number of pods. It wins over `maxParallelExecutions`.
pub const MAX_REPLICAS: &str = "fn.kpt.dev/max-replicas";
/// Annotations that have no effect any more. The next version does not warn of them.
const REMOVED: [&str; 1] = ["fn.kpt.dev/prestart"];

/// A special path of `binaryExecutor`: porch-server then sends the image's calls to its
/// `--function-runner`. The runner ignores a `binaryExecutor` with this path.
pub const NO_EXECUTABLE: &str = "/porch-fn/none";

/// Maximum number of prefixes of one object.
const MAX_PREFIXES: usize = 100;

/// A valid FunctionConfig object. `goExecutor` has no effect here: only Porch itself uses it.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionConfig {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Canonical repositories: each of `prefixes` with `image`, in this order, without duplicates.
    pub repositories: Vec<String>,
    /// How the images run in pods.
    pub pod: Option<PodExecutor>,
    /// The executable that runs instead of the images.
    pub binary: Option<BinaryExecutor>,
    /// [`MIN_REPLICAS`].
    pub min_replicas: Option<u32>,
    /// [`MAX_REPLICAS`]; 0 is read as `None`.
    pub max_replicas: Option<u32>,
    /// An annotation that has no effect any more.
    pub removed: Option<&'static str>,
}

/// `podExecutor`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct PodExecutor {
    /// This executor applies to images with these tags.
    pub tags: Tags,
    /// `timeToLive`. The schema of FunctionConfigs sets a default, so an object in a cluster always
    /// has a value.
    #[serde(rename = "timeToLive", deserialize_with = "time_to_live")]
    pub ttl: Option<Duration>,
    /// `maxParallelExecutions`.
    #[serde(rename = "maxParallelExecutions", deserialize_with = "count")]
    pub max_parallel: Option<u32>,
    /// `preferredMaxQueueLength`.
    #[serde(rename = "preferredMaxQueueLength", deserialize_with = "count")]
    pub queue_length: Option<u32>,
    /// `templateOverrides`.
    #[serde(rename = "templateOverrides")]
    pub overrides: PodOverrides,
}

/// `binaryExecutor`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct BinaryExecutor {
    /// The executable runs instead of images with these tags.
    pub tags: Tags,
    /// Absolute, or relative to `--functions`.
    pub path: PathBuf,
}

/// The object as its author wrote it.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Written {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WrittenSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
struct WrittenSpec {
    image: String,
    prefixes: Vec<String>,
    pod_executor: Option<PodExecutor>,
    binary_executor: Option<BinaryExecutor>,
    go_executor: Option<BinaryExecutor>,
}

/// Empty and zero mean not set.
fn time_to_live<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty());
    let ttl = text.map(|text| parse_duration(&text)).transpose().map_err(D::Error::custom)?;
    Ok(ttl.filter(|ttl| !ttl.is_zero()))
}

/// Zero means not set.
fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Ok(Option::deserialize(deserializer)?.filter(|&count| count > 0))
}

// === impl FunctionConfig ===

impl FunctionConfig {
    /// Reads a whole object, metadata included. Unknown fields are ignored.
    ///
    /// # Errors
    /// The error names the object, its first wrong field, and the accepted values.
    pub fn parse(object: &Value, default_prefix: &str, semantics: TagSemantics) -> Result<Self, String> {
        let read = deserialize(object).and_then(|written| Self::check(written, default_prefix, semantics));
        read.map_err(|FieldError { path, reason }| {
            let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            format!("FunctionConfig {}: {path}: {reason}", bounded(name))
        })
    }

    fn check(
        Written { metadata, spec }: Written,
        default_prefix: &str,
        semantics: TagSemantics,
    ) -> Result<Self, FieldError> {
        let annotations = metadata.annotations.unwrap_or_default();
        let replicas = |annotation: &str| {
            let text = annotations.get(annotation);
            text.map(|text| text.parse::<u32>()).transpose().map_err(|_| {
                let text = quoted(text.map_or("", String::as_str));
                let reason =
                    format!("{text} is no number of pods: write a whole number from 0 to {}", u32::MAX);
                FieldError::new(annotation_path(annotation), reason)
            })
        };
        let (min_replicas, max_replicas) = (replicas(MIN_REPLICAS)?, replicas(MAX_REPLICAS)?);
        let repositories = repositories(&spec, default_prefix)?;
        let (pod, binary) = executors(spec, semantics)?;
        let config = Self {
            name: metadata.name.unwrap_or_default(),
            created: metadata.creation_timestamp.map(|created| created.0),
            repositories,
            pod,
            binary,
            min_replicas,
            max_replicas: max_replicas.filter(|&most| most > 0),
            removed: REMOVED.into_iter().find(|&annotation| annotations.contains_key(annotation)),
        };
        let limits = config.limits();
        if let (Some(least), Some(most)) = (limits.min_pods, limits.max_pods)
            && least > most
        {
            let other = match config.max_replicas {
                Some(_) => format!("annotation {MAX_REPLICAS}"),
                None => "spec.podExecutor.maxParallelExecutions".to_owned(),
            };
            let reason = format!("{least} pods are more than the {most} of {other}: write at most that");
            return Err(FieldError::new(annotation_path(MIN_REPLICAS), reason));
        }
        Ok(config)
    }

    /// Limits for the pods of its images. There are none without a podExecutor.
    pub fn limits(&self) -> Limits {
        let Some(pod) = &self.pod else { return Limits::default() };
        Limits {
            ttl: pod.ttl,
            max_pods: self.max_replicas.or(pod.max_parallel),
            min_pods: self.min_replicas,
            waitlist: pod.queue_length,
        }
    }

    pub(crate) fn source(&self) -> Source {
        Source::FunctionConfig(self.name.clone())
    }

    /// A warning for the object's author about a part that has no effect.
    pub(crate) fn warning(&self) -> Option<String> {
        if self.pod.is_none() {
            let annotations =
                [(MIN_REPLICAS, self.min_replicas.is_some()), (MAX_REPLICAS, self.max_replicas.is_some())];
            if let Some((annotation, _)) = annotations.iter().find(|(_, is_set)| *is_set) {
                return Some(format!(
                    "annotation {annotation} has no effect without spec.podExecutor: add that"
                ));
            }
        }
        let (index, tag) = self.binary.as_ref()?.tags.first_impossible()?;
        Some(format!(
            "spec.binaryExecutor.tags[{index}]: no image has the tag {}: list tags, or see the runner's \
             --functionconfig-tags for constraints",
            quoted(tag)
        ))
    }

    /// A warning about an annotation that has no effect any more.
    pub(crate) fn removal(&self) -> Option<String> {
        let annotation = self.removed?;
        Some(format!("annotation {annotation} has no effect any more: remove it"))
    }
}

fn annotation_path(annotation: &str) -> String {
    format!("metadata.annotations[{annotation}]")
}

/// Checks all executors, and returns those that have an effect here.
fn executors(
    mut spec: WrittenSpec,
    semantics: TagSemantics,
) -> Result<(Option<PodExecutor>, Option<BinaryExecutor>), FieldError> {
    if spec.pod_executor.is_none() && spec.binary_executor.is_none() && spec.go_executor.is_none() {
        let reason = "write at least one of podExecutor, binaryExecutor and goExecutor";
        return Err(FieldError::new("spec", reason));
    }
    let tags = |executor: &str, tags: Result<Tags, (usize, String)>| {
        tags.map_err(|(index, reason)| FieldError::new(format!("spec.{executor}.tags[{index}]"), reason))
    };
    if let Some(go) = spec.go_executor {
        tags("goExecutor", go.tags.of_binaries(semantics))?;
    }
    if let Some(pod) = &mut spec.pod_executor {
        pod.overrides.check("spec.podExecutor.templateOverrides")?;
        pod.tags = tags("podExecutor", take(&mut pod.tags).of_pods(semantics))?;
    }
    spec.binary_executor.take_if(|binary| binary.path == Path::new(NO_EXECUTABLE));
    if let Some(binary) = &mut spec.binary_executor {
        check_executable(&binary.path)?;
        binary.tags = tags("binaryExecutor", take(&mut binary.tags).of_binaries(semantics))?;
    }
    Ok((spec.pod_executor, spec.binary_executor))
}

/// Returns the canonical repositories of the object. An empty list of prefixes means the same as
/// the single prefix `""`.
fn repositories(spec: &WrittenSpec, default_prefix: &str) -> Result<Vec<String>, FieldError> {
    let WrittenSpec { image, prefixes, .. } = spec;
    let wrong_image = |reason: String| FieldError::new("spec.image", reason);
    if image.is_empty() {
        return Err(wrong_image("write the image's name without tag".to_owned()));
    }
    // Check `image` without a prefix first: an error then quotes `image` as the author wrote it.
    let alone = repository(image, default_prefix).map_err(wrong_image)?;
    if prefixes.is_empty() {
        return Ok(vec![alone]);
    }
    if prefixes.len() > MAX_PREFIXES {
        let reason = format!("write at most {MAX_PREFIXES} prefixes, not {}", prefixes.len());
        return Err(FieldError::new("spec.prefixes", reason));
    }
    let has_registry = image
        .split_once('/')
        .is_some_and(|(first, _)| first.contains(['.', ':']) || first.eq_ignore_ascii_case("localhost"));
    let mut repositories = Vec::new();
    for (index, prefix) in prefixes.iter().enumerate() {
        let read = match prefix.trim_end_matches('/') {
            "" if prefix.is_empty() => Ok(alone.clone()),
            "" => Err(format!("{} is no registry or path: write \"\" for the default", quoted(prefix))),
            _ if has_registry => {
                let prefix = quoted(prefix);
                Err(format!("spec.image has a registry, so {prefix} cannot precede it: remove one of them"))
            }
            trimmed => repository(&format!("{trimmed}/{image}"), ""),
        };
        let repository = read.map_err(|reason| FieldError::new(format!("spec.prefixes[{index}]"), reason))?;
        if !repositories.contains(&repository) {
            repositories.push(repository);
        }
    }
    Ok(repositories)
}

fn repository(name: &str, default_prefix: &str) -> Result<String, String> {
    let image = Image::parse(name, default_prefix).map_err(|error| error.to_string())?;
    let written = name.rsplit_once('/').map_or(name, |(_, last)| last);
    if image.digest().is_some() || written.contains(':') {
        return Err(format!("{} holds a tag or digest: write tags under an executor's tags", quoted(name)));
    }
    Ok(image.repository().to_owned())
}

fn check_executable(path: &Path) -> Result<(), FieldError> {
    let text = path.to_string_lossy();
    let is_named = path.components().any(|part| matches!(part, Component::Normal(_)));
    if is_named && !path.components().any(|part| part == Component::ParentDir) && !text.contains('\0') {
        return Ok(());
    }
    let reason = format!(
        "{} is no path of an executable: write an absolute one, or one relative to --functions, without \"..\"",
        quoted(&text)
    );
    Err(FieldError::new("spec.binaryExecutor.path", reason))
}

#[cfg(test)]
pub(crate) mod tests;
