//! Tests of generate and remove on the FunctionConfigs that Porch ships.

use std::fs;

use super::*;

const NAMESPACE: &str = "porch-fn-system";

/// The FunctionConfigs in the manifests of the next Porch version.
fn shipped() -> Vec<Value> {
    let text = fs::read_to_string("../tests/packages/porch/next/23-function-configurations.yaml").unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// The same objects in the form in which the API server stores them.
fn stored(objects: &[Value]) -> Vec<Value> {
    let store = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["uid"] = json!("a");
        object["metadata"]["resourceVersion"] = json!("7");
        let applied = object.to_string();
        object["metadata"]["annotations"][LAST_APPLIED] = json!(applied);
        object["status"] = json!({"apiServerObservedGeneration": 1});
        object
    };
    objects.iter().map(store).collect()
}

fn object(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "FunctionConfig",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
    })
}

fn functions(names: &[&str]) -> Vec<Function> {
    names.iter().map(|name| function(name).unwrap()).collect()
}

fn generated(existing: &[Value], names: &[&str]) -> Changes {
    generate(existing, &functions(names), NAMESPACE, "porch-system").unwrap()
}

fn removed(existing: &[Value]) -> Changes {
    remove(existing, NAMESPACE)
}

#[test]
fn every_function_is_sent_to_the_routers_and_restored() {
    let shipped = shipped();
    let changed = generated(&stored(&shipped), &[]);
    assert_eq!(changed.objects.len(), 18);
    for (object, shipped) in changed.objects.iter().zip(&shipped) {
        assert_eq!(object["spec"]["binaryExecutor"], json!({"tags": ["*"], "path": "/porch-fn/none"}));
        assert_eq!(object["spec"]["podExecutor"], shipped["spec"]["podExecutor"]);
        let metadata = object["metadata"].as_object().unwrap();
        assert_eq!(metadata.keys().collect::<Vec<_>>(), ["name", "namespace", "annotations"]);
    }
    assert_eq!(changed.notes.len(), 7, "{:?}", changed.notes);
    assert!(changed.notes[3].ends_with(
        "apply-setters, ensure-name-substring, search-replace, set-annotations, set-image, set-labels, set-namespace, \
         starlark, upsert-resource"
    ));
    assert!(changed.notes[1].starts_with("set-namespace: Porch itself still runs"), "{:?}", changed.notes);

    let again = generated(&stored(&changed.objects), &[]);
    assert_eq!(again.objects, changed.objects, "changed objects stay as they are");
    assert_eq!(again.notes.len(), 6, "nothing is replaced any more");

    let back = removed(&stored(&changed.objects));
    assert_eq!((back.objects, back.notes), (shipped.clone(), vec![AFTER_REMOVE.to_owned()]));
    let unchanged = removed(&stored(&shipped));
    assert_eq!((unchanged.objects.len(), unchanged.notes.len()), (0, 1));
}

#[test]
fn a_function_without_an_object_gets_one_and_remove_deletes_it() {
    let made = generated(&shipped(), &["mine", "example.com/a/theirs", "other.example/theirs"]);
    let expected = |name: &str, prefixes: Value| {
        let executor = json!({"tags": ["*"], "path": NO_EXECUTABLE});
        let spec = json!({"image": name, "prefixes": prefixes, "binaryExecutor": executor});
        let mut object = object(name, &spec);
        object["metadata"]["labels"] = json!({MANAGED_BY: "porch-fn"});
        object
    };
    let expected = [
        expected("mine", json!(["", CATALOG])),
        expected("theirs", json!(["example.com/a", "other.example"])),
    ];
    assert_eq!(made.objects, expected);
    let delete = format!("delete the new ones: kubectl -n {NAMESPACE} delete functionconfigs mine theirs");
    let notes = [NOTHING_TO_APPLY, &delete, AFTER_REMOVE];
    let back = removed(&stored(&made.objects));
    assert_eq!((back.objects, &back.notes[..]), (vec![], &notes.map(str::to_owned)[..]));
    let again = generated(&stored(&made.objects), &[]);
    assert_eq!(removed(&stored(&again.objects)).notes, notes, "they still count as new");
    let both = [made.objects, generated(&shipped(), &[]).objects].concat();
    assert_eq!(removed(&stored(&both)).notes, notes[1..]);
}

#[test]
fn missing_prefixes_are_added_and_removed_again() {
    let own = object("f", &json!({"image": "f", "prefixes": [""], "podExecutor": {"tags": ["*"]}}));
    let changed = generated(std::slice::from_ref(&own), &["example.com/f", "f"]);
    assert_eq!(changed.objects.len(), 1);
    assert_eq!(changed.objects[0]["spec"]["prefixes"], json!(["", "example.com"]));
    assert_eq!(removed(&stored(&changed.objects)).objects, std::slice::from_ref(&own));
    let default = generated(&[own], &["ghcr.io/kptdev/krm-functions-catalog/f"]);
    assert_eq!(default.objects[0]["spec"]["prefixes"], json!([""]), "the empty prefix includes the catalog");
}

/// `kubectl apply` deletes a missing field only if it applied the field itself, not if server-side
/// apply set it. It deletes a null field in both cases, but not in annotations.
#[test]
fn fields_that_kubectl_would_keep_are_set_to_null() {
    let own = object("f", &json!({"image": "f", "podExecutor": {"tags": ["*"]}}));
    let mut changed = generated(std::slice::from_ref(&own), &["example.com/f"]).objects.remove(0);
    assert_eq!(changed["spec"]["prefixes"], json!(["", "example.com"]));
    for last_applied in [None, Some(own.to_string())] {
        if let Some(last_applied) = last_applied {
            changed["metadata"]["annotations"][LAST_APPLIED] = json!(last_applied);
        }
        let back = removed(std::slice::from_ref(&changed)).objects.remove(0);
        let mut expected = own.clone();
        expected["spec"]["binaryExecutor"] = json!(null);
        expected["spec"]["prefixes"] = json!(null);
        expected["metadata"]["annotations"] = json!({BEFORE: ""});
        assert_eq!(back, expected);
        expected["spec"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
        assert!(removed(&[expected.clone()]).objects.is_empty(), "it is restored");
        let again = generated(&[expected], &["example.com/f"]).objects.remove(0);
        assert_eq!(before(&again), before(&changed));
    }
}

#[test]
fn later_changes_by_others_are_kept() {
    let own = object("f", &json!({"image": "f", "binaryExecutor": {"tags": ["v1"], "path": "f"}}));
    let mut changed = generated(&[own], &[]).objects.remove(0);
    // Like a second `kubectl apply` of Porch's manifest: it changes the field, not our annotation.
    changed["spec"]["binaryExecutor"] = json!({"tags": ["v2"], "path": "f"});
    let back = removed(std::slice::from_ref(&changed)).objects.remove(0);
    assert_eq!(back["spec"]["binaryExecutor"]["tags"], json!(["v2"]));
    let again = generated(&[changed], &[]).objects;
    let back = removed(&again).objects.remove(0);
    assert_eq!(back["spec"]["binaryExecutor"]["tags"], json!(["v2"]), "their last change");
}

#[test]
fn only_the_object_that_porch_uses_is_changed() {
    let go = json!({"image": "f", "goExecutor": {"tags": ["v1"]}});
    let changed = generated(&[object("other", &go), object("f", &go)], &[]);
    assert_eq!(changed.objects.iter().map(name_of).collect::<Vec<_>>(), ["f"]);
    assert!(changed.notes[0].starts_with("FunctionConfig other stays unchanged"), "{:?}", changed.notes);
    // If no object is named like the image, Porch uses all objects for the image.
    let both = generated(&[object("a", &go), object("b", &go)], &["f"]);
    assert_eq!(both.objects.iter().map(name_of).collect::<Vec<_>>(), ["a", "b"]);
    let taken = generate(&[object("g", &go)], &functions(&["g"]), NAMESPACE, "").unwrap_err();
    assert!(taken.to_string().starts_with("FunctionConfig g is for spec.image f, not g: "), "{taken}");
}

#[test]
fn functions_are_named_without_tag() {
    for (text, part) in [
        ("f:v1", "leave tag and digest out"),
        ("f@sha256:abc", "leave tag and digest out"),
        ("a/my_f", "no FunctionConfig can have this name"),
        ("", "image"),
        ("a b", "image"),
    ] {
        let error = function(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}
