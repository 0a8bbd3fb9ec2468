//! Detects the meaning of `tags` from the schema of FunctionConfigs in the cluster.
//!
//! Porch's versions differ in the meaning of `tags`, but the types, patterns and fields in their
//! schemas do not tell which meaning applies. (A missing status field does not
//! prove the new meaning: Porch removed that field in an earlier change.) Only the descriptions of
//! `tags`, generated from Porch's source, differ: the newer ones mention constraints. Runners and
//! `porch-fn porch-config` both use this module, so they get the same result.

use serde_json::Value;

use super::TagSemantics;

impl TagSemantics {
    /// The meaning in an `OpenAPI` document of the API server; `None` if the descriptions are
    /// missing, since some installers strip them.
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

    /// The schemas of both versions, and one without descriptions.
    #[test]
    fn the_schema_of_1_6_means_exact_and_the_next_one_constraint() {
        const V1_6: &str = include_str!(
            "../../../../tests/packages/porch/1.6/crds/config.porch.kpt.dev_functionconfigs.yaml"
        );
        const NEXT: &str = include_str!(
            "../../../../tests/packages/porch/next/crds/config.porch.kpt.dev_functionconfigs.yaml"
        );
        let stripped = V1_6.replace("description:", "title:");
        for (text, expected) in
            [(V1_6, Some(TagSemantics::Exact)), (NEXT, Some(TagSemantics::Constraint)), (&stripped, None)]
        {
            let crd: Value = crate::yaml::parse(text).unwrap();
            let mut schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone();
            schema["x-kubernetes-group-version-kind"] = json!([{"kind": "FunctionConfig"}]);
            let mut other = schema.clone();
            other["x-kubernetes-group-version-kind"] = json!([{"kind": "Repository"}]);
            let document = json!({"components": {"schemas": {"other": {}, "it": schema}}});
            assert_eq!(TagSemantics::of_schema(&document), expected);
            assert_eq!(TagSemantics::of_schema(&json!({"components": {"schemas": {"x": other}}})), None);
        }
        assert_eq!(TagSemantics::of_schema(&json!([])), None);
    }
}
