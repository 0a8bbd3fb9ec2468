//! What the schema of FunctionConfigs says about their `tags`.
//!
//! The two meanings that Porch has had differ in no type, pattern or field of the schema: the
//! status field that Porch dropped went earlier, with another change. What differs are the
//! descriptions of `tags`, which come out of Porch's source: the newer ones speak of constraints.
//! Runners and `porch-fn porch-config` read them here, so that both come to the same answer.

use serde_json::Value;

use super::TagSemantics;

impl TagSemantics {
    /// What an `OpenAPI` document of the API server says; `None` without the descriptions, which
    /// some installers strip.
    pub fn of_schema(document: &Value) -> Option<Self> {
        let is_of_kind = |schema: &&Value| {
            let names = schema["x-kubernetes-group-version-kind"].as_array();
            names.is_some_and(|names| names.iter().any(|name| name["kind"] == "FunctionConfig"))
        };
        let schemas = document.pointer("/components/schemas")?.as_object()?;
        let spec = schemas.values().find(is_of_kind)?.pointer("/properties/spec/properties")?;
        let description = |executor: &str| {
            spec.pointer(&format!("/{executor}/properties/tags/description")).and_then(Value::as_str)
        };
        let speaks_of_constraints = |executor: &&str| {
            description(executor).is_some_and(|text| text.to_ascii_lowercase().contains("constraint"))
        };
        if ["podExecutor", "binaryExecutor", "goExecutor"].iter().any(speaks_of_constraints) {
            return Some(Self::Constraint);
        }
        description("podExecutor").map(|_| Self::Exact)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A schema with these descriptions of podExecutor's and binaryExecutor's tags, among others.
    fn document(pods: Option<&str>, binaries: Option<&str>) -> Value {
        let executor =
            |description: Option<&str>| json!({"properties": {"tags": {"description": description}}});
        let properties = json!({"podExecutor": executor(pods), "binaryExecutor": executor(binaries)});
        let kind = |kind: &str| json!([{"kind": kind}]);
        json!({"components": {"schemas": {
            "a.FunctionConfig": {
                "properties": {"spec": {"properties": properties}},
                "x-kubernetes-group-version-kind": kind("FunctionConfig"),
            },
            "a.Repository": {
                "properties": {"spec": {"description": "a constraint"}},
                "x-kubernetes-group-version-kind": kind("Repository"),
            },
        }}})
    }

    #[test]
    fn descriptions_tell_the_semantics() {
        let old = "Image tags which the pod executor configuration will be applied to.";
        for (pods, binaries, expected) in [
            (Some(old), Some(old), Some(TagSemantics::Exact)),
            (Some("Version CONSTRAINTS."), None, Some(TagSemantics::Constraint)),
            (Some(old), Some("semver constraint strings"), Some(TagSemantics::Constraint)),
            (None, None, None),
        ] {
            assert_eq!(TagSemantics::of_schema(&document(pods, binaries)), expected, "{pods:?} {binaries:?}");
        }
        for nothing in [json!(null), json!([]), json!({"components": {"schemas": {"x": 3}}})] {
            assert_eq!(TagSemantics::of_schema(&nothing), None);
        }
    }

    /// The schemas of both versions.
    #[test]
    fn the_schema_of_1_6_is_exact_and_that_of_the_next_version_is_not() {
        const V1_6: &str = include_str!(
            "../../../../tests/packages/porch/1.6/crds/config.porch.kpt.dev_functionconfigs.yaml"
        );
        const NEXT: &str = include_str!(
            "../../../../tests/packages/porch/next/crds/config.porch.kpt.dev_functionconfigs.yaml"
        );
        for (text, expected) in [(V1_6, TagSemantics::Exact), (NEXT, TagSemantics::Constraint)] {
            let crd: Value = crate::yaml::parse(text).unwrap();
            let mut schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone();
            schema["x-kubernetes-group-version-kind"] = json!([{"kind": "FunctionConfig"}]);
            let document = json!({"components": {"schemas": {"x": schema}}});
            assert_eq!(TagSemantics::of_schema(&document), Some(expected));
        }
    }
}
