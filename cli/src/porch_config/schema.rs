//! What tags of the cluster's FunctionConfigs mean, told by their schema.
//!
//! kptdev/porch#1186, which made constraints of them, changed no field; it changed what the schema says of them.

use serde_json::Value;

/// Whether the published document of the group says that tags are version constraints.
pub(super) fn has_constraints(document: &Value) -> bool {
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    let is_function_config = |schema: &&Value| {
        let kinds = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
        kinds.into_iter().flatten().any(|kind| kind.get("kind").is_some_and(|kind| kind == super::KIND))
    };
    let schema = schemas.into_iter().flat_map(|schemas| schemas.values()).find(is_function_config);
    let description = "/properties/spec/properties/binaryExecutor/properties/tags/description";
    let description = schema.and_then(|schema| schema.pointer(description)?.as_str());
    description.is_some_and(|text| text.contains("semver constraint"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    /// As the API server publishes the schema of a version's CRD.
    fn published(version: &str) -> Value {
        let path = "../tests/packages/porch/VERSION/crds/config.porch.kpt.dev_functionconfigs.yaml";
        let text = fs::read_to_string(path.replace("VERSION", version)).unwrap();
        let crd: Value = serde_saphyr::from_str(&text).unwrap();
        let mut schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": super::super::GROUP, "kind": "FunctionConfig", "version": "v1alpha1"}]);
        let list = json!({"x-kubernetes-group-version-kind": [{"kind": "FunctionConfigList"}]});
        json!({"components": {"schemas": {"a.FunctionConfigList": list, "a.FunctionConfig": schema}}})
    }

    #[test]
    fn the_schema_of_the_next_porch_has_constraints() {
        assert!(has_constraints(&published("next")));
        assert!(!has_constraints(&published("1.6")));
        assert!(!has_constraints(&json!({})));
    }
}
