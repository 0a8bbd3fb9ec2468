//! One FunctionConfig object (`config.porch.kpt.dev/v1alpha1`), read and checked.
//!
//! It is matched on the full repository, never the bare name: `evil.io/set-image` inherits nothing from the object for
//! `set-image`. Its schema drops fields that it does not know, so what Porch has no field for is an annotation.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use porch_fn_image::Image;
use porch_fn_service::flags::parse_duration;
use serde_json::Value;

use crate::field::{Field, FieldError, bounded, quoted};
use crate::overrides::PodOverrides;
use crate::source::Limits;
use crate::tags::{TagSemantics, Tags};

/// The annotation with the number of pods that are kept whatever the time to live says.
pub const MIN_REPLICAS: &str = "fn.kpt.dev/min-replicas";
/// The annotation with the most pods; wins over `maxParallelExecutions`.
pub const MAX_REPLICAS: &str = "fn.kpt.dev/max-replicas";

/// The path of a `binaryExecutor` that is there for Porch alone: it has porch-server send an
/// image's calls to its `--function-runner`. No executable stands for the image here, and none is
/// missed.
pub const NO_EXECUTABLE: &str = "/porch-fn/none";

/// Most prefixes of one object.
const MAX_PREFIXES: usize = 100;

/// Why an object does not count. The text names the object, the field, and what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FunctionConfigError {
    /// No object of the API server.
    #[error("a FunctionConfig has no metadata.name")]
    NoName,
    /// A field that cannot be used.
    #[error("FunctionConfig {name}: {path}: {reason}")]
    Field {
        /// The object's name.
        name: String,
        /// Such as `spec.podExecutor.tags[1]`.
        path: String,
        /// What is wrong, and what is accepted.
        reason: String,
    },
}

/// An object that counts.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionConfig {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// `metadata.generation`, 0 if it has none.
    pub generation: i64,
    /// What it asks for.
    pub spec: Spec,
    /// [`MIN_REPLICAS`].
    pub min_replicas: Option<u32>,
    /// [`MAX_REPLICAS`]; 0 is `None`.
    pub max_replicas: Option<u32>,
}

/// What a FunctionConfig asks for. `goExecutor` is Porch's own, and has no effect here.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// `image` under each of `prefixes`: canonical repositories, each once, in the object's order.
    pub repositories: Vec<String>,
    /// How the images run in pods.
    pub pod: Option<PodExecutor>,
    /// The executable that stands for the images.
    pub binary: Option<BinaryExecutor>,
}

/// `podExecutor`.
#[derive(Debug, Clone, PartialEq)]
pub struct PodExecutor {
    /// Which tags of the image it is for.
    pub tags: Tags,
    /// `timeToLive`. The object's schema has a default for it: an object in a cluster always has one.
    pub ttl: Option<Duration>,
    /// `maxParallelExecutions`.
    pub max_parallel: Option<u32>,
    /// `preferredMaxQueueLength`.
    pub queue_length: Option<u32>,
    /// `templateOverrides`.
    pub overrides: PodOverrides,
}

/// `binaryExecutor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinaryExecutor {
    /// Which tags of the image it stands for.
    pub tags: Tags,
    /// Absolute, or relative to `--functions`.
    pub path: PathBuf,
}

// === impl FunctionConfig ===

impl FunctionConfig {
    /// Reads a whole object, metadata included. Unknown fields are ignored, `null` is as if a field was not there.
    pub fn parse(
        object: &Value,
        default_prefix: &str,
        semantics: TagSemantics,
    ) -> Result<Self, FunctionConfigError> {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or(FunctionConfigError::NoName)?;
        Self::read(object, name, default_prefix, semantics).map_err(|FieldError { path, reason }| {
            FunctionConfigError::Field { name: bounded(name), path, reason }
        })
    }

    fn read(
        object: &Value,
        name: &str,
        default_prefix: &str,
        semantics: TagSemantics,
    ) -> Result<Self, FieldError> {
        let generation = object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
        let object = Field::root(object);
        let metadata = object.get("metadata")?;
        let created = metadata.get("creationTimestamp")?;
        let annotations = metadata.get("annotations")?;
        let config = Self {
            name: name.to_owned(),
            created: created
                .text()?
                .map(str::parse)
                .transpose()
                .map_err(|_| created.wrong("is no time such as 2026-01-31T12:00:00Z"))?,
            generation,
            spec: Spec::parse(&object.get("spec")?, default_prefix, semantics)?,
            min_replicas: replicas(&annotations.get(MIN_REPLICAS)?)?,
            max_replicas: replicas(&annotations.get(MAX_REPLICAS)?)?.filter(|&most| most > 0),
        };
        let limits = config.limits();
        if let (Some(least), Some(most)) = (limits.min_pods, limits.max_pods)
            && least > most
        {
            let other = if config.max_replicas.is_some() {
                format!("annotation {MAX_REPLICAS}")
            } else {
                "spec.podExecutor.maxParallelExecutions".to_owned()
            };
            let reason = format!("{least} pods are more than the {most} of {other}: write at most that");
            return Err(annotations.get(MIN_REPLICAS)?.wrong(reason));
        }
        Ok(config)
    }

    /// What it says of the pods of its images: nothing without a podExecutor.
    pub fn limits(&self) -> Limits {
        let Some(pod) = &self.spec.pod else { return Limits::default() };
        Limits {
            ttl: pod.ttl,
            max_pods: self.max_replicas.or(pod.max_parallel),
            min_pods: self.min_replicas,
            waitlist: pod.queue_length,
        }
    }

    /// What its author should know although it counts.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let annotations = [(MIN_REPLICAS, self.min_replicas), (MAX_REPLICAS, self.max_replicas)];
        let set = annotations.iter().filter(|(_, value)| value.is_some() && self.spec.pod.is_none());
        let without_pods = set.map(|(annotation, _)| {
            format!("annotation {annotation} has no effect without spec.podExecutor: add that")
        });
        let impossible = self.spec.binary.as_ref().and_then(|binary| binary.tags.first_impossible());
        let impossible = impossible.map(|(index, tag)| {
            format!(
                "spec.binaryExecutor.tags[{index}]: no image has the tag {}: list tags, or see the runner's \
                 --functionconfig-tags for constraints",
                quoted(tag)
            )
        });
        without_pods.chain(impossible).collect()
    }

    /// Where it says the same thing twice, and which one counts.
    pub(crate) fn note(&self) -> Option<String> {
        let parallel = self.spec.pod.as_ref()?.max_parallel?;
        let most = self.max_replicas.filter(|&most| most != parallel)?;
        let name = &self.name;
        Some(format!(
            "FunctionConfig {name}: annotation {MAX_REPLICAS} ({most}) counts, not maxParallelExecutions ({parallel})"
        ))
    }
}

// === impl Spec ===

impl Spec {
    fn parse(spec: &Field<'_>, default_prefix: &str, semantics: TagSemantics) -> Result<Self, FieldError> {
        let repositories = repositories(spec, default_prefix)?;
        let pod = spec.get("podExecutor")?.object()?;
        let binary = spec.get("binaryExecutor")?.object()?;
        let go = spec.get("goExecutor")?.object()?;
        if pod.is_none() && binary.is_none() && go.is_none() {
            return Err(spec.wrong("write at least one of podExecutor, binaryExecutor and goExecutor"));
        }
        let binary = match binary {
            Some(binary) if binary.get("path")?.text()? == Some(NO_EXECUTABLE) => None,
            binary => binary,
        };
        if let Some(go) = go {
            go.get("id")?.text()?;
            let tags = go.get("tags")?;
            Tags::of_binaries(&tags.texts(usize::MAX)?, semantics)
                .map_err(|(index, reason)| tags.wrong_item(index, reason))?;
        }
        Ok(Self {
            repositories,
            pod: pod.as_ref().map(|pod| PodExecutor::parse(pod, semantics)).transpose()?,
            binary: binary.as_ref().map(|binary| BinaryExecutor::parse(binary, semantics)).transpose()?,
        })
    }
}

/// Of no prefixes the image is as it is written; an empty prefix means the same.
fn repositories(spec: &Field<'_>, default_prefix: &str) -> Result<Vec<String>, FieldError> {
    let image_field = spec.get("image")?;
    let image = image_field.text()?.filter(|image| !image.is_empty());
    let image = image.ok_or_else(|| image_field.wrong("write the image's name without tag"))?;
    // Also for an object whose prefixes are all wrong: this is the plainer mistake.
    repository(image, default_prefix).map_err(|reason| image_field.wrong(reason))?;

    let field = spec.get("prefixes")?;
    let mut prefixes = field.texts(MAX_PREFIXES)?;
    if prefixes.is_empty() {
        prefixes.push("");
    }
    let has_registry = image
        .split_once('/')
        .is_some_and(|(first, _)| first.contains(['.', ':']) || first.eq_ignore_ascii_case("localhost"));
    let mut repositories = Vec::new();
    for (index, prefix) in prefixes.into_iter().enumerate() {
        let read = match prefix.trim_end_matches('/') {
            "" if prefix.is_empty() => repository(image, default_prefix),
            "" => Err(format!("{} is no registry or path: write \"\" for the default", quoted(prefix))),
            _ if has_registry => Err(format!(
                "{} goes before a spec.image with a registry: leave one of them out",
                quoted(prefix)
            )),
            trimmed => repository(&format!("{trimmed}/{image}"), ""),
        };
        let repository = read.map_err(|reason| field.wrong_item(index, reason))?;
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

// === impl PodExecutor ===

impl PodExecutor {
    fn parse(pod: &Field<'_>, semantics: TagSemantics) -> Result<Self, FieldError> {
        let tags = pod.get("tags")?;
        let texts = tags.texts(usize::MAX)?;
        let ttl = pod.get("timeToLive")?;
        let read = ttl.text()?.filter(|text| !text.is_empty()).map(parse_duration).transpose();
        let read = read.map_err(|error| ttl.wrong(bounded(&error.to_string())))?;
        let overrides = pod.get("templateOverrides")?.object()?;
        Ok(Self {
            tags: Tags::of_pods(&texts, semantics)
                .map_err(|(index, reason)| tags.wrong_item(index, reason))?,
            ttl: read.filter(|ttl| !ttl.is_zero()),
            max_parallel: pod.get("maxParallelExecutions")?.count()?,
            queue_length: pod.get("preferredMaxQueueLength")?.count()?,
            overrides: overrides.as_ref().map(PodOverrides::parse).transpose()?.unwrap_or_default(),
        })
    }
}

// === impl BinaryExecutor ===

impl BinaryExecutor {
    fn parse(binary: &Field<'_>, semantics: TagSemantics) -> Result<Self, FieldError> {
        let tags = binary.get("tags")?;
        let texts = tags.texts(usize::MAX)?;
        let path_field = binary.get("path")?;
        let path = path_field.text()?.unwrap_or_default();
        let parts = || Path::new(path).components();
        if !parts().any(|part| matches!(part, Component::Normal(_)))
            || parts().any(|part| part == Component::ParentDir)
            || path.contains('\0')
        {
            return Err(path_field.wrong(format!(
                "{} is no path of an executable: write an absolute one, or one relative to --functions, without \"..\"",
                quoted(path)
            )));
        }
        Ok(Self {
            tags: Tags::of_binaries(&texts, semantics)
                .map_err(|(index, reason)| tags.wrong_item(index, reason))?,
            path: PathBuf::from(path),
        })
    }
}

/// Annotations are texts.
fn replicas(annotation: &Field<'_>) -> Result<Option<u32>, FieldError> {
    let Some(text) = annotation.text()? else { return Ok(None) };
    // Digits only: the integer parser takes a sign as well.
    let count = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    count.map(Some).ok_or_else(|| {
        let reason =
            format!("{} is no number of pods: write a whole number from 0 to {}", quoted(text), u32::MAX);
        annotation.wrong(reason)
    })
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
