//! What the cluster's schema says about the `tags` of FunctionConfigs.
//!
//! [`TagSemantics::of_schema`] reads it out of the group's `OpenAPI` document. Every account that
//! the API server knows may read that (`ClusterRole` system:discovery), which is not so for CRDs.

use http::{Request, header};
use http_body_util::{BodyExt, Collected, Limited};
use kube::Client;
use kube::client::Body;
use porch_fn_settings::TagSemantics;

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
    TagSemantics::of_schema(&document).ok_or(SchemaError::Silent)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

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
}
