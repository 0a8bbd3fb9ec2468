//! What is to be written to a FunctionConfig. Pure.
//!
//! `status.error` is one field for three writers: Porch's server and controller have it too, and clear it whenever they
//! look at the object. Ours is told by how it begins; another's is neither cleared nor written over.

#[cfg(test)]
mod tests;

use kube::api::DynamicObject;
use porch_fn_pool::Time;
use serde_json::{Map, Value, json};

use super::super::template::changed_at;

/// The original's runner adds it and removes it at the end. Nothing here needs it, so it is only removed: without that,
/// deleting what an original has seen would hang.
pub(crate) const FINALIZER: &str = "config.porch.kpt.dev/functionconfig-function-runner";
/// How errors of ours begin.
const OURS: &str = "function-runner: ";
/// Longest error that is written, in bytes.
const MAX_ERROR: usize = 1024;
/// Which annotations configure functions.
const ANNOTATIONS: &str = "fn.kpt.dev/";

/// A FunctionConfig as the API server has it, without what nobody asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) generation: i64,
    /// Deleted, but for its finalizers.
    pub(super) ending: bool,
    pub(super) finalizers: Vec<String>,
    pub(super) observed: Option<i64>,
    pub(super) error: String,
    /// What it says: spec and the metadata that counts, as the API server writes them.
    pub(super) content: Value,
    /// When that was last changed.
    pub(super) changed: Option<Time>,
}

/// What became of an object here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome<'a> {
    /// Whether it is in effect as it is now; not so if an earlier state is.
    pub(super) applied: bool,
    /// What its user should mend.
    pub(super) problem: Option<&'a str>,
}

/// What is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Work {
    /// To its status; `None`: the field stays.
    Status {
        observed: Option<i64>,
        /// Empty: it is cleared.
        error: Option<String>,
    },
    /// Our finalizer goes, which is the one at this index.
    Finalizer { index: usize },
}

/// What is to be written to `object` now. `owns`: whether this runner is the one that writes its status; finalizers are
/// everyone's, so that a deletion waits for no runner in particular.
pub(super) fn work(object: &Object, outcome: Outcome<'_>, owns: bool) -> Option<Work> {
    if object.ending {
        let index = object.finalizers.iter().position(|finalizer| finalizer == FINALIZER);
        return index.map(|index| Work::Finalizer { index });
    }
    if !owns {
        return None;
    }
    let observed =
        (outcome.applied && object.observed != Some(object.generation)).then_some(object.generation);
    let theirs = !object.error.is_empty() && !object.error.starts_with(OURS);
    let wished = outcome.problem.map(error_text).unwrap_or_default();
    let error = (!theirs && object.error != wished).then_some(wished);
    (observed.is_some() || error.is_some()).then_some(Work::Status { observed, error })
}

fn error_text(problem: &str) -> String {
    let mut text = format!("{OURS}{problem}");
    if text.len() > MAX_ERROR {
        text.truncate(text.floor_char_boundary(MAX_ERROR - '…'.len_utf8()));
        text.push('…');
    }
    text
}

// === impl Object ===

impl Object {
    /// `None` without a name, which no object of an API server's is.
    pub(super) fn new(object: DynamicObject) -> Option<Self> {
        let DynamicObject { mut metadata, mut data, .. } = object;
        let name = metadata.name.take()?;
        let annotations = metadata.annotations.take().unwrap_or_default().into_iter();
        let annotations: Map<String, Value> = annotations
            .filter(|(name, _)| name.starts_with(ANNOTATIONS))
            .map(|(name, value)| (name, value.into()))
            .collect();
        // Writing a status changes no configuration.
        if let Some(entries) = &mut metadata.managed_fields {
            entries.retain(|entry| entry.subresource.is_none());
        }
        let content = json!({
            "metadata": {
                "name": name,
                "namespace": metadata.namespace,
                "generation": metadata.generation,
                "creationTimestamp": metadata.creation_timestamp,
                "annotations": annotations,
            },
            "spec": data["spec"].take(),
        });
        let status = &data["status"];
        Some(Self {
            changed: changed_at(&metadata),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            ending: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            observed: status["functionRunnerObservedGeneration"].as_i64(),
            error: status["error"].as_str().unwrap_or_default().to_owned(),
            content,
            name,
        })
    }
}

// === impl Work ===

impl Work {
    /// The patch that does it: a merge patch of the status, or a JSON patch of the object.
    pub(super) fn patch(&self, object: &Object) -> Value {
        match self {
            Self::Status { observed, error } => {
                let mut status = Map::new();
                if let Some(observed) = observed {
                    status.insert("functionRunnerObservedGeneration".to_owned(), json!(observed));
                }
                let mut patch = Map::new();
                if let Some(error) = error {
                    let error = if error.is_empty() { Value::Null } else { json!(error) };
                    status.insert("error".to_owned(), error);
                    // Only if nobody else has written one since.
                    let version = json!({"resourceVersion": object.resource_version});
                    patch.insert("metadata".to_owned(), version);
                }
                patch.insert("status".to_owned(), Value::Object(status));
                Value::Object(patch)
            }
            Self::Finalizer { index } => {
                let path = format!("/metadata/finalizers/{index}");
                json!([
                    {"op": "test", "path": "/metadata/uid", "value": object.uid},
                    {"op": "test", "path": path, "value": FINALIZER},
                    {"op": "remove", "path": path},
                ])
            }
        }
    }
}
