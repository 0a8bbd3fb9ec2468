//! Computes the next write to a FunctionConfig. Has no I/O.
//!
//! `status.error` has three writers. Porch's server and controller clear it whenever they reconcile
//! the object. Errors of this runner have a prefix; the runner neither clears nor overwrites other
//! errors.

#[cfg(test)]
mod tests;

use kube::api::DynamicObject;
use porch_fn_pool::Time;
use porch_fn_text::cut;
use serde_json::{Map, Value, json};

use super::super::template::changed_at;

/// Porch's function runner adds this finalizer and removes it on deletion. This runner needs no
/// finalizer and only removes it. Otherwise an object with this finalizer could never be deleted.
pub(crate) const FINALIZER: &str = "config.porch.kpt.dev/functionconfig-function-runner";
/// The prefix of this runner's errors.
const OURS: &str = "function-runner: ";
/// Longest error that is written, in bytes.
const MAX_ERROR: usize = 1024;
/// The prefix of annotations that configure functions.
const ANNOTATIONS: &str = "fn.kpt.dev/";

/// The part of a FunctionConfig that a runner needs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) generation: i64,
    /// The object is being deleted and waits for its finalizers.
    pub(super) ending: bool,
    pub(super) finalizers: Vec<String>,
    pub(super) observed: Option<i64>,
    pub(super) error: String,
    /// Spec and the metadata that configures functions, as the API server writes them.
    pub(super) content: Value,
    /// When `content` was last changed.
    pub(super) changed: Option<Time>,
}

/// One write to a FunctionConfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    /// Writes the status. `None`: the field does not change.
    Status {
        observed: Option<i64>,
        /// Empty: the field is cleared.
        error: Option<String>,
    },
    /// Removes the finalizer at this index.
    Finalizer { index: usize },
}

/// The next write to `object`. `applied`: its current state is in effect, not an earlier one.
/// `problem`: what its user should fix. `owns`: this runner writes its status. Any runner may
/// remove the finalizer, so a deletion does not wait for one specific runner.
pub(super) fn next_write(object: &Object, applied: bool, problem: Option<&str>, owns: bool) -> Option<Write> {
    if object.ending {
        let index = object.finalizers.iter().position(|finalizer| finalizer == FINALIZER);
        return index.map(|index| Write::Finalizer { index });
    }
    if !owns {
        return None;
    }
    let observed = (applied && object.observed != Some(object.generation)).then_some(object.generation);
    let is_foreign = !object.error.is_empty() && !object.error.starts_with(OURS);
    let wanted = problem.map(error_text).unwrap_or_default();
    let error = (!is_foreign && object.error != wanted).then_some(wanted);
    (observed.is_some() || error.is_some()).then_some(Write::Status { observed, error })
}

fn error_text(problem: &str) -> String {
    cut(&format!("{OURS}{problem}"), MAX_ERROR, "…").into_owned()
}

// === impl Object ===

impl Object {
    /// Returns `None` if the object has no name. Every object of an API server has one.
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

// === impl Write ===

impl Write {
    /// The patch: a merge patch of the status, or a JSON patch of the object.
    pub(super) fn patch(&self, object: &Object) -> Value {
        match self {
            Self::Status { observed, error } => {
                let mut patch = json!({"status": {}});
                if let Some(observed) = observed {
                    patch["status"]["functionRunnerObservedGeneration"] = json!(observed);
                }
                if let Some(error) = error {
                    patch["status"]["error"] = if error.is_empty() { Value::Null } else { json!(error) };
                    // The API server rejects the patch if another writer was faster.
                    patch["metadata"]["resourceVersion"] = json!(object.resource_version);
                }
                patch
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
