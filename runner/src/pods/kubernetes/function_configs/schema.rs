//! The meaning of the `tags` of FunctionConfigs, from the cluster's schema.
//!
//! [`TagSemantics::of_schema`] reads it from the group's `OpenAPI` document. Every account that the
//! API server knows may read that document (`ClusterRole` system:discovery), but not every account may
//! read CRDs.

use std::time::Duration;

use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Collected, Limited};
use kube::Client;
use kube::client::Body;
use porch_fn_settings::{Setting, Source, TagSemantics};
use tokio::time::{Instant, sleep_until};

use super::super::client::{Causes, RequestError, bounded};
use super::{FLAG, Followed, GROUP, VERSION, log};

/// Largest document that is read, in bytes. That of the group with all of Porch's kinds is a few
/// hundred KiB.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Why the schema does not decide.
#[derive(Debug, thiserror::Error)]
pub(super) enum SchemaError {
    #[error("{0}")]
    Request(String),
    #[error("the API server answers {0}")]
    Refused(StatusCode),
    #[error("the document is cut short or has more than {MAX_BYTES} bytes")]
    Body,
    #[error("the document is no JSON: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("it has no FunctionConfig with a description of podExecutor.tags")]
    Silent,
}

// === impl Followed ===

impl Followed {
    /// Reads the schema, unless `--functionconfig-tags` decides. After a failure the last answer stays
    /// in effect.
    pub(super) async fn read_schema(&mut self) {
        if self.options.semantics.is_some() {
            return;
        }
        // Only the first objects wait for it, after a start and when the kind is new.
        let is_first = self.objects.semantics().source == Source::NoSchema && !self.is_schema_missing;
        let within = if is_first { self.options.schema_within } else { Duration::ZERO };
        let answer = self.wait_for_schema(within).await;
        let before = self.objects.semantics().clone();
        let is_known = before.source == Source::Schema;
        match answer {
            Ok(semantics) => {
                if !is_known || before.value != semantics {
                    tracing::info!(%semantics, "the schema of FunctionConfigs says what their tags mean");
                }
                let semantics = Setting::new(semantics, Source::Schema);
                for (name, report) in self.objects.set_semantics(semantics) {
                    log(&name, Some(report));
                }
            }
            Err(error) if is_known || std::mem::replace(&mut self.is_schema_missing, true) => {
                tracing::debug!(%error, "the schema of FunctionConfigs still does not say what their tags mean");
            }
            Err(error) => tracing::warn!(
                %error,
                "the schema of FunctionConfigs does not say what their tags mean: they are taken as in Porch 1.6. Set \
                 --{FLAG}, or let the runner's service account get /openapi/v3/apis/{GROUP}/{VERSION}, as ClusterRole \
                 system:discovery does"
            ),
        }
        let is_missing = self.objects.semantics().source == Source::NoSchema;
        let pause = if is_missing { self.options.retry_every } else { self.options.schema_every };
        self.schema_at = Some(Instant::now() + pause);
    }

    /// Repeats a request that failed in passing, for as long as `within`.
    async fn wait_for_schema(&self, within: Duration) -> Result<TagSemantics, SchemaError> {
        let give_up = Instant::now() + within;
        let mut pause = within / 20;
        loop {
            let answer = read(&self.options.client).await;
            let is_final = match &answer {
                Ok(_) | Err(SchemaError::Silent) => true,
                Err(SchemaError::Refused(status)) => *status == StatusCode::FORBIDDEN,
                Err(_) => false,
            };
            // Up to a half more, so that runners do not ask in step.
            let next = Instant::now() + pause.mul_f64(1.0 + fastrand::f64() / 2.0);
            if is_final || next >= give_up {
                return answer;
            }
            sleep_until(next).await;
            pause = (pause * 2).min(within / 4);
        }
    }
}

async fn read(client: &Client) -> Result<TagSemantics, SchemaError> {
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
