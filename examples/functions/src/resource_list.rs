//! A ResourceList as a tree of JSON values.

use serde_json::{Map, Value, json};

/// Items, config and results of one call.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceList(Value);

impl ResourceList {
    /// Parses a ResourceList. `items` may be missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let options = serde_saphyr::options! {
            // As in Go's YAML, `y` and `on` are strings, and 0644 is an octal number.
            strict_booleans: true,
            legacy_octal_numbers: true,
            ignore_binary_tag_for_string: true,
            // These limits allow a package of several MiB. The runner limits the input in bytes.
            budget: serde_saphyr::budget! { max_nodes: 20_000_000, max_events: 40_000_000, max_depth: 256 },
        };
        let mut list: Value = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| format!("the input is not YAML: {error}"))?;
        let is_list = list["kind"] == "ResourceList";
        if is_list && list["items"].is_null() {
            list["items"] = json!([]);
        }
        if !is_list || !list["items"].is_array() {
            return Err("the input is not a ResourceList with a list of items".to_owned());
        }
        Ok(Self(list))
    }

    /// The list as YAML.
    pub fn to_yaml(&self) -> Result<String, String> {
        serde_saphyr::to_string(&self.0).map_err(|error| format!("cannot write the output: {error}"))
    }

    /// The entries of the list `key`, such as `items` or `results`.
    pub(crate) fn list(&self, key: &str) -> &[Value] {
        self.0[key].as_array().map_or(&[], Vec::as_slice)
    }

    /// Like [`list`](Self::list), for changes. A missing list is created.
    pub(crate) fn list_mut(&mut self, key: &str) -> Option<&mut Vec<Value>> {
        let list = &mut self.0[key];
        if !list.is_array() {
            *list = json!([]);
        }
        list.as_array_mut()
    }

    /// The `data` of the functionConfig, as in a ConfigMap. Accepts any kind.
    pub(crate) fn config_data(&self) -> Option<&Map<String, Value>> {
        self.0["functionConfig"]["data"].as_object()
    }
}

/// Returns an annotation of `item`.
pub(crate) fn annotation<'a>(item: &'a Value, name: &str) -> Option<&'a str> {
    item.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

/// Whether `item` is only for tools and is not applied to a cluster.
pub(crate) fn is_local_config(item: &Value) -> bool {
    annotation(item, "config.kubernetes.io/local-config") == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_resource_lists_are_accepted() {
        assert!(ResourceList::parse("kind: ResourceList").unwrap().list("items").is_empty());
        assert!(ResourceList::parse("kind: ResourceList\nitems: null").unwrap().list("items").is_empty());
        for other in ["kind: List", "[]", "3", "kind: ResourceList\nitems: 3", ""] {
            assert!(ResourceList::parse(other).is_err(), "{other}");
        }
        let error = ResourceList::parse("a: [").unwrap_err();
        assert!(error.starts_with("the input is not YAML: "), "{error}");
    }

    #[test]
    fn values_have_the_same_meaning_as_in_kubernetes() {
        let odd = "{mode: 0644, octal: 0o17, hex: 0x1F, yes: on, y: n, binary: !!binary aGk=, merged: {<<: {a: 1}}}";
        let list = ResourceList::parse(&format!("kind: ResourceList\nitems: [{odd}]\n")).unwrap();
        let expected = json!({
            "mode": 420, "octal": 15, "hex": 31, "yes": "on", "y": "n", "binary": "aGk=", "merged": {"a": 1},
        });
        assert_eq!(list.list("items"), [expected]);
    }
}
