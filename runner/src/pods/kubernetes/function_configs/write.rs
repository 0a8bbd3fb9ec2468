//! Computes the next write to a FunctionConfig. Has no I/O.
//!
//! `status.error` has three writers. Porch's server and controller clear it whenever they reconcile
//! the object. Errors of this runner have a prefix; the runner neither clears nor overwrites other
//! errors.

#[cfg(test)]
mod tests;

use kube::api::{DynamicObject, ObjectMeta};
use porch_fn_pool::Time;
use porch_fn_text::cut;
use serde_json::{Value, json};

use super::super::template::changed_at;

/// Porch's function runner adds this finalizer and removes it on deletion. This runner only removes
/// it: if nobody did, an object that already has the finalizer could never be deleted.
pub(crate) const FINALIZER: &str = "config.porch.kpt.dev/functionconfig-function-runner";
/// The prefix of this runner's errors.
const OURS: &str = "function-runner: ";
/// Longest error that is written, in bytes.
const MAX_ERROR: usize = 1024;

/// A FunctionConfig as the API server sent it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Value,
    /// `status.functionRunnerObservedGeneration`.
    pub(super) observed: Option<i64>,
    /// `status.error`.
    pub(super) error: String,
    /// When anything except the status last changed.
    pub(super) changed: Option<Time>,
}

/// One write to a FunctionConfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    /// Writes the fields of the status that are `Some`.
    Status {
        observed: Option<i64>,
        /// An empty text clears the field.
        error: Option<String>,
    },
    /// Removes the finalizer of Porch's function runner.
    Finalizer,
}

/// Returns the write that `object` needs. `applied` is true if the runner uses the object's current
/// state, and false if it still uses an earlier one. `problem` describes what the user should fix.
pub(super) fn next_write(object: &Object, applied: bool, problem: Option<&str>) -> Option<Write> {
    let ObjectMeta { generation, finalizers, .. } = &object.metadata;
    if object.is_ending() {
        let has_finalizer = finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
        return has_finalizer.then_some(Write::Finalizer);
    }
    let observed = generation.filter(|_| applied && object.observed != *generation);
    let is_foreign = !object.error.is_empty() && !object.error.starts_with(OURS);
    let text = |problem| cut(&format!("{OURS}{problem}"), MAX_ERROR, "…").into_owned();
    let wanted = problem.map(text).unwrap_or_default();
    let error = (!is_foreign && object.error != wanted).then_some(wanted);
    (observed.is_some() || error.is_some()).then_some(Write::Status { observed, error })
}

// === impl Object ===

impl Object {
    pub(super) fn new(object: DynamicObject) -> Self {
        let DynamicObject { mut metadata, mut data, .. } = object;
        // A change of the status does not change the configuration.
        if let Some(entries) = &mut metadata.managed_fields {
            entries.retain(|entry| entry.subresource.is_none());
        }
        let changed = changed_at(&metadata);
        metadata.managed_fields = None;
        let status = &data["status"];
        let observed = status["functionRunnerObservedGeneration"].as_i64();
        let error = status["error"].as_str().unwrap_or_default().to_owned();
        Self { metadata, spec: data["spec"].take(), observed, error, changed }
    }

    /// Whether the object is being deleted and waits for its finalizers.
    pub(super) fn is_ending(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

// === impl Write ===

impl Write {
    /// The merge patch.
    pub(super) fn patch(&self, object: &Object) -> Value {
        // With this version the API server rejects the patch if another writer was faster.
        let ObjectMeta { resource_version, finalizers, .. } = &object.metadata;
        let version = json!({"resourceVersion": resource_version});
        match self {
            Self::Status { observed, error } => {
                let mut patch = json!({"status": {}});
                if let Some(observed) = observed {
                    patch["status"]["functionRunnerObservedGeneration"] = json!(observed);
                }
                if let Some(error) = error {
                    patch["status"]["error"] = if error.is_empty() { Value::Null } else { json!(error) };
                    patch["metadata"] = version;
                }
                patch
            }
            Self::Finalizer => {
                let others = finalizers.iter().flatten().filter(|finalizer| *finalizer != FINALIZER);
                let mut patch = json!({"metadata": version});
                patch["metadata"]["finalizers"] = others.cloned().collect();
                patch
            }
        }
    }
}
