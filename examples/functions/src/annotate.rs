//! `annotate`: a mutator that sets annotations on every resource.

use serde_json::{Value, json};

use crate::resource_list::{ResourceList, is_local_config};

/// Sets the entries of the ConfigMap's `data` as annotations on all items except local config.
pub fn annotate(list: &mut ResourceList) -> Result<bool, String> {
    let data = list.config_data().filter(|data| !data.is_empty()).cloned();
    let data = data.ok_or("no annotations given: pass them as key=value pairs after --")?;
    let mut changed = 0;
    for item in list.list_mut("items").into_iter().flatten().filter(|item| !is_local_config(item)) {
        let Some(metadata) = object(item, "metadata") else { continue };
        let Some(annotations) = object(metadata, "annotations") else { continue };
        for (name, value) in &data {
            annotations[name] = json!(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
        changed += 1;
    }
    eprintln!("annotated {changed} resources");
    Ok(true)
}

/// The object in the field `key`, created if missing. `None` if the field is not an object.
fn object<'a>(parent: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let child = parent.as_object_mut()?.entry(key).or_insert(Value::Null);
    if child.is_null() {
        *child = json!({});
    }
    child.is_object().then_some(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(items: &str, config: &str) -> Result<ResourceList, String> {
        let mut list = ResourceList::parse(&format!("kind: ResourceList\nitems: {items}\n{config}")).unwrap();
        annotate(&mut list).map(|_| list)
    }

    #[test]
    fn every_resource_except_local_config_is_annotated() {
        let items = "[{kind: A}, {kind: B, metadata: {annotations: {owner: old, x: y}}}, \
                     {kind: C, metadata: {annotations: {config.kubernetes.io/local-config: 'true'}}}]";
        let list = run(items, "functionConfig: {data: {owner: me, n: 1}}").unwrap();
        let annotations = |index: usize| list.list("items")[index]["metadata"]["annotations"].clone();
        assert_eq!(annotations(0), json!({"owner": "me", "n": "1"}));
        assert_eq!(annotations(1), json!({"owner": "me", "x": "y", "n": "1"}));
        assert_eq!(annotations(2), json!({"config.kubernetes.io/local-config": "true"}));
    }

    #[test]
    fn invalid_items_are_unchanged_and_missing_annotations_are_an_error() {
        let items = "[3, {metadata: 4}, {metadata: {annotations: []}}]";
        let list = run(items, "functionConfig: {data: {owner: me}}").unwrap();
        assert_eq!(list.list("items")[1], json!({"metadata": 4}));
        assert!(run("[]", "").unwrap_err().contains("key=value"));
    }
}
