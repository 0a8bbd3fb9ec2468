//! Computes the FunctionConfigs that make Porch send functions to the routers, and restores the
//! earlier FunctionConfigs. Pure functions without I/O.

use std::collections::BTreeSet;

use porch_fn_image::Image;
use porch_fn_runner_config::names::MANAGED_BY;
use porch_fn_settings::NO_EXECUTABLE;
use serde_json::{Map, Value, json};

use crate::cluster::ROUTERS;
use crate::failure::Failure;

/// Registry prefix of functions whose image has no registry, like in Porch's own FunctionConfigs.
pub(crate) const CATALOG: &str = "ghcr.io/kptdev/krm-functions-catalog";
pub(crate) const GROUP: &str = "config.porch.kpt.dev";
pub(super) const VERSION: &str = "v1alpha1";
pub(super) const KIND: &str = "FunctionConfig";

/// Annotation of a changed object. It holds the earlier values of the changed fields, which
/// [`remove`] restores.
const BEFORE: &str = "fn.kpt.dev/before-porch-config";
/// Value of the label [`MANAGED_BY`] of an object that [`generate`] has created.
const MANAGER: &str = "porch-fn";
/// Annotation in which `kubectl apply` stores the last applied manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

const AFTER_GENERATE: [&str; 2] = [
    "--warm-up-pod-cache=false on porch-server keeps it from starting pods for these functions",
    "porch-server and porch-controllers keep the objects that they have read, even deleted ones, until they restart; \
     porch-server itself still evaluates functions that have no FunctionConfig",
];
const NOTHING_TO_APPLY: &str = "standard output is empty, because no object has to be applied; kubectl apply \
                                then fails with \"no objects passed to apply\"";
const AFTER_REMOVE: &str = "after these changes, restart porch-server and porch-controllers; until they restart, they call \
                            --function-runner for these functions, so that flag must still name the routers";

/// A function that the user names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    /// The last part of the function's image name.
    name: String,
    /// The part of the image name before the last `/`, if any.
    prefix: Option<String>,
}

/// Objects for the user to apply, and notes for the user.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) objects: Vec<Value>,
    pub(super) notes: Vec<String>,
}

/// Returns the FunctionConfigs for `functions`, or, if that is empty, for all functions that have a
/// FunctionConfig. `routers` is the routers' namespace.
pub(super) fn generate(
    existing: &[Value],
    functions: &[Function],
    namespace: &str,
    routers: &str,
) -> Result<Changes, Failure> {
    let mut changes = Changes::default();
    let images = existing.iter().filter_map(|object| object.pointer("/spec/image")?.as_str());
    let functions = match functions {
        [] => images.map(|image| Function { name: image.to_owned(), prefix: None }).collect(),
        named => named.to_vec(),
    };
    // Several functions may share one object. The object collects the changes for all of them.
    let mut objects = existing.to_vec();
    let (mut changed, mut replaced) = (BTreeSet::new(), Vec::new());
    for (index, function) in functions.iter().enumerate() {
        // A function may be listed twice: two objects have the same image, or the user repeats it.
        if functions[..index].contains(function) {
            continue;
        }
        let name = &function.name;
        let mut of_function: Vec<_> =
            (0..objects.len()).filter(|&at| image_of(&objects[at]) == *name).collect();
        if let Some(named) = objects.iter().position(|object| name_of(object) == name) {
            let image = image_of(&objects[named]);
            if image != name {
                return Err(Failure::new(format!(
                    "FunctionConfig {name} is for spec.image {image}, not {name}: Porch finds a function's object by \
                     its name; rename that object"
                )));
            }
            for other in of_function.into_iter().filter(|at| *at != named) {
                let other = name_of(&objects[other]);
                changes.notes.push(format!(
                    "FunctionConfig {other} stays unchanged: Porch ignores it, since {name} is for the same image"
                ));
            }
            of_function = vec![named];
        }
        if of_function.is_empty() {
            of_function.push(objects.len());
            objects.push(new(function, namespace));
        }
        for at in of_function {
            if let Some(tags) = objects[at].pointer("/spec/goExecutor/tags") {
                changes.notes.push(format!(
                    "{name}: Porch itself still runs this function for the tags of its goExecutor: {tags}"
                ));
            }
            let (object, had_executable) = routed(&objects[at], function);
            if had_executable {
                replaced.push(name_of(&object).to_owned());
            }
            objects[at] = object;
            changed.insert(at);
        }
    }
    changes.objects = changed.into_iter().map(|at| objects[at].take()).collect();
    if !replaced.is_empty() {
        changes.notes.push(format!(
            "these functions had executables; from now on they run in pods of the runners, unless the runners' --config \
             names executables for them (porch-fn exec-config): {}",
            replaced.join(", ")
        ));
    }
    if !changes.objects.is_empty() {
        changes.notes.push(format!(
            "before you apply the objects, set porch-server's --function-runner, and FUNCTION_RUNNER_ADDRESS of \
             porch-controllers if it is set, to {ROUTERS}.{routers}:9445: Porch's own function runner would fail \
             these calls"
        ));
        changes.notes.extend(AFTER_GENERATE.map(str::to_owned));
    }
    Ok(changes)
}

/// Returns the objects that [`generate`] has changed, with their earlier fields. The notes tell the
/// user to delete the objects that `generate` has created.
pub(super) fn remove(existing: &[Value], namespace: &str) -> Changes {
    let (created, others): (Vec<_>, Vec<_>) = existing.iter().partition(|object| is_created(object));
    let restored = others.into_iter().filter_map(|object| Some(restored(object, &before(object)?)));
    let mut changes = Changes { objects: restored.collect(), ..Changes::default() };
    let names = created.iter().map(|object| name_of(object)).collect::<Vec<_>>().join(" ");
    let delete = format!("delete the new ones: kubectl -n {namespace} delete functionconfigs {names}");
    match (changes.objects.is_empty(), created.is_empty()) {
        (true, true) => {
            let text =
                format!("porch-config generate has changed no FunctionConfig of namespace {namespace}");
            changes.notes.push(text);
            return changes;
        }
        (true, false) => changes.notes.extend([NOTHING_TO_APPLY.to_owned(), delete]),
        (false, false) => changes.notes.push(delete),
        (false, true) => {}
    }
    changes.notes.push(AFTER_REMOVE.to_owned());
    changes
}

fn restored(object: &Value, before: &Map<String, Value>) -> Value {
    let mut restored = manifest(object);
    // If the manifest lacks a field, `kubectl apply` removes the field only if it applied the field
    // itself. A field that server-side apply wrote stays, unless the manifest sets it to null.
    let absent = |value| (!is_applied(object)).then_some(value);
    let executor = is_routed(object).then_some("binaryExecutor");
    for field in executor.into_iter().chain(before.contains_key("prefixes").then_some("prefixes")) {
        let old = before.get(field).filter(|old| !old.is_null()).cloned();
        put(&mut restored["spec"], field, old.or(absent(Value::Null)));
    }
    // The annotation is set to an empty text, not to null: if an annotation is null, some versions
    // of kubectl drop all annotations.
    put(&mut restored["metadata"]["annotations"], BEFORE, absent(json!("")));
    if restored["metadata"]["annotations"] == json!({}) {
        put(&mut restored["metadata"], "annotations", None);
    }
    restored
}

/// Sets a field to `value`. Without a value, removes the field.
fn put(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(object) = object.as_object_mut() else { return };
    match value {
        Some(value) => object.insert(field.to_owned(), value),
        None => object.shift_remove(field),
    };
}

fn new(function: &Function, namespace: &str) -> Value {
    let prefixes = function.prefix.as_ref().map_or_else(|| json!(["", CATALOG]), |prefix| json!([prefix]));
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": {"name": function.name, "namespace": namespace, "labels": {MANAGED_BY: MANAGER}},
        "spec": {"image": function.name, "prefixes": prefixes, "binaryExecutor": executor()},
    })
}

/// Changes an object so that Porch sends the function to the routers. Also returns whether the
/// object named another executable. Indexing cannot panic, because the schema guarantees that spec
/// and annotations are objects.
fn routed(object: &Value, function: &Function) -> (Value, bool) {
    let mut routed = manifest(object);
    let mut fields = before(object).unwrap_or_default();
    let executable = object.pointer("/spec/binaryExecutor").filter(|_| !is_routed(object));
    if executable.is_some() || !fields.contains_key("binaryExecutor") {
        fields.insert("binaryExecutor".to_owned(), executable.cloned().unwrap_or_default());
    }
    routed["spec"]["binaryExecutor"] = executor();
    if let Some(prefix) = &function.prefix {
        let old = object.pointer("/spec/prefixes").cloned().unwrap_or_default();
        let mut prefixes = old.as_array().cloned().unwrap_or_default();
        // An object without prefixes applies to images without a registry.
        if prefixes.is_empty() {
            prefixes.push(json!(""));
        }
        let is_default = prefix == CATALOG && prefixes.contains(&json!(""));
        if !is_default && !prefixes.contains(&json!(prefix)) {
            fields.entry("prefixes").or_insert(old);
            prefixes.push(json!(prefix));
            routed["spec"]["prefixes"] = Value::Array(prefixes);
        }
    }
    // An object that `generate` created has no earlier fields.
    if !is_created(object) {
        routed["metadata"]["annotations"][BEFORE] = json!(Value::Object(fields).to_string());
    }
    (routed, executable.is_some())
}

fn executor() -> Value {
    json!({"tags": ["*"], "path": NO_EXECUTABLE})
}

/// Returns whether Porch sends the object's function to the routers.
fn is_routed(object: &Value) -> bool {
    object["spec"]["binaryExecutor"]["path"] == NO_EXECUTABLE
}

/// Returns the fields of a stored object that a user would write in a manifest.
fn manifest(object: &Value) -> Value {
    let fields = ["name", "namespace", "labels", "annotations"];
    let field = |field: &str| Some((field.to_owned(), object.get("metadata")?.get(field)?.clone()));
    let mut kept: Map<_, _> = fields.into_iter().filter_map(field).collect();
    if let Some(annotations) = kept.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove(LAST_APPLIED);
    }
    let spec = object.get("spec").cloned().unwrap_or_default();
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": KIND, "metadata": kept, "spec": spec})
}

/// Returns the fields before the change, from the annotation [`BEFORE`].
fn before(object: &Value) -> Option<Map<String, Value>> {
    serde_json::from_str(annotation(object, BEFORE)?).ok()
}

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

/// Returns whether [`generate`] has created this object.
fn is_created(object: &Value) -> bool {
    object["metadata"]["labels"][MANAGED_BY] == MANAGER
}

/// Returns whether `kubectl apply` has applied the annotation [`BEFORE`].
fn is_applied(object: &Value) -> bool {
    let applied = annotation(object, LAST_APPLIED).and_then(|text| serde_json::from_str(text).ok());
    applied.is_some_and(|applied: Value| annotation(&applied, BEFORE).is_some())
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn image_of(object: &Value) -> &str {
    object["spec"]["image"].as_str().unwrap_or_default()
}

/// Reads a function that the user names.
pub(super) fn function(text: &str) -> Result<Function, String> {
    let (prefix, name) =
        text.rsplit_once('/').map_or((None, text), |(prefix, name)| (Some(prefix.to_owned()), name));
    if name.contains([':', '@']) {
        return Err("the change applies to all tags of a function: leave tag and digest out".to_owned());
    }
    Image::parse(text, CATALOG).map_err(|error| error.to_string())?;
    if name.contains(|c: char| !c.is_ascii_alphanumeric() && !"-.".contains(c)) {
        return Err("no FunctionConfig can have this name: use letters, digits, - and .".to_owned());
    }
    Ok(Function { name: name.to_owned(), prefix })
}

#[cfg(test)]
mod tests;
