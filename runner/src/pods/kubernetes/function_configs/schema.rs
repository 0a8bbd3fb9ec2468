//! What the cluster's schema says about the `tags` of FunctionConfigs.
//!
//! The two meanings that Porch has had differ in no type, pattern or field of the schema: the
//! status field that Porch dropped went earlier, with another change. What differs are the
//! descriptions of `tags`, which come out of Porch's source: the newer ones speak of constraints.
//! The `OpenAPI` document of the group has them, and every account that the API server knows may
//! read it (`ClusterRole` system:discovery), which is not so for CRDs.

use http::{Request, header};
use http_body_util::{BodyExt, Collected, Limited};
use kube::Client;
use kube::client::Body;
use porch_fn_settings::TagSemantics;
use serde_json::Value;

use super::super::client::{Causes, RequestError, bounded};
use super::{GROUP, VERSION};

/// Largest document that is read, in bytes. That of the group with all of Porch's kinds is a few
/// hundred KiB.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Why the schema says nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum SchemaError {
    #[error("{0}")]
    Request(String),
    #[error("the API server answers {0}")]
    Refused(http::StatusCode),
    #[error("the document is cut short or has more than {MAX_BYTES} bytes")]
    Body,
    #[error("the document is no JSON: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("it has no FunctionConfig with a description of podExecutor.tags")]
    Silent,
}

/// Asks the API server.
pub(super) async fn read(client: &Client) -> Result<TagSemantics, SchemaError> {
    let request = Request::get(format!("/openapi/v3/apis/{GROUP}/{VERSION}"))
        .header(header::ACCEPT, "application/json")
        .body(Body::empty());
    let answer = async {
        let response = client.send(request.map_err(kube::Error::HttpError)?).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_BYTES).collect().await.map(Collected::to_bytes);
        Ok::<_, kube::Error>((head.status, body))
    };
    let (status, body) = bounded(answer)
        .await
        .map_err(|error: RequestError| SchemaError::Request(Causes(&error).to_string()))?;
    if !status.is_success() {
        return Err(SchemaError::Refused(status));
    }
    let document = serde_json::from_slice(&body.map_err(|_| SchemaError::Body)?)?;
    semantics(&document).ok_or(SchemaError::Silent)
}

/// What an `OpenAPI` document says; `None` without the descriptions, which some installers strip.
fn semantics(document: &Value) -> Option<TagSemantics> {
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
        return Some(TagSemantics::Constraint);
    }
    description("podExecutor").map(|_| TagSemantics::Exact)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// As the API server has it, with these descriptions of podExecutor's and binaryExecutor's
    /// tags.
    pub(in super::super) fn document(pods: Option<&str>, binaries: Option<&str>) -> Value {
        let executor = |description: Option<&str>| {
            let mut tags = json!({"type": "array", "items": {"type": "string", "default": ""}});
            if let Some(description) = description {
                tags["description"] = description.into();
            }
            json!({"type": "object", "properties": {"tags": tags}})
        };
        let kind = |kind: &str| json!([{"group": GROUP, "version": VERSION, "kind": kind}]);
        let spec = json!({"type": "object", "properties": {
            "image": {"type": "string"},
            "podExecutor": executor(pods),
            "binaryExecutor": executor(binaries),
        }});
        json!({"openapi": "3.0.0", "components": {"schemas": {
            "dev.kpt.porch.config.v1alpha1.FunctionConfig": {
                "type": "object",
                "properties": {"spec": spec, "status": {"type": "object"}},
                "x-kubernetes-group-version-kind": kind("FunctionConfig"),
            },
            "dev.kpt.porch.config.v1alpha1.FunctionConfigList": {
                "type": "object",
                "x-kubernetes-group-version-kind": kind("FunctionConfigList"),
            },
            "dev.kpt.porch.config.v1alpha1.Repository": {
                "type": "object",
                "properties": {"spec": {"description": "a constraint", "type": "object"}},
                "x-kubernetes-group-version-kind": kind("Repository"),
            },
        }}})
    }

    #[test]
    fn descriptions_tell_the_semantics() {
        let old = "Image tags which the pod executor configuration will be applied to.";
        let new =
            "Tags is a list of semver constraint strings that determine to which versions this applies.";
        for (pods, binaries, expected) in [
            (Some(old), Some("Image tags which can be substituted."), Some(TagSemantics::Exact)),
            (Some(new), Some(new), Some(TagSemantics::Constraint)),
            (Some("Version CONSTRAINTS."), None, Some(TagSemantics::Constraint)),
            (Some("Versions."), Some(new), Some(TagSemantics::Constraint)),
            (None, Some(new), Some(TagSemantics::Constraint)),
            (None, None, None),
        ] {
            assert_eq!(semantics(&document(pods, binaries)), expected, "{pods:?} {binaries:?}");
        }
        for nothing in [json!(null), json!([]), json!({}), json!({"components": {"schemas": {"x": 3}}})] {
            assert_eq!(semantics(&nothing), None);
        }
    }

    /// The schemas of both versions.
    #[test]
    fn the_schema_of_1_6_is_exact_and_that_of_the_next_version_is_not() {
        const V1_6: &str = include_str!(
            "../../../../../tests/packages/porch/1.6/crds/config.porch.kpt.dev_functionconfigs.yaml"
        );
        const NEXT: &str = include_str!(
            "../../../../../tests/packages/porch/next/crds/config.porch.kpt.dev_functionconfigs.yaml"
        );
        for (text, expected) in [(V1_6, TagSemantics::Exact), (NEXT, TagSemantics::Constraint)] {
            let crd: Value = porch_fn_settings::yaml::parse(text).unwrap();
            let mut schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone();
            schema["x-kubernetes-group-version-kind"] = json!([{"kind": "FunctionConfig"}]);
            let document = json!({"components": {"schemas": {"x": schema}}});
            assert_eq!(semantics(&document), Some(expected));
        }
    }
}
