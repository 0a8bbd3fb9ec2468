//! The meaning of the `tags` of FunctionConfigs, from the cluster's schema.
//!
//! [`TagSemantics::of_schema`] reads it from the group's `OpenAPI` document. Every account that the
//! API server knows may read that document (`ClusterRole` system:discovery), but not every account
//! may read CRDs.

use std::time::Duration;

use http::{Request, header};
use kube::Client;
use porch_fn_backoff::{Backoff, spread};
use porch_fn_settings::{Setting, Source, TagSemantics};
use tokio::time::{Instant, sleep_until};

use super::super::client::{Causes, RequestError, bounded};
use super::{FLAG, Followed, GROUP, SCHEMA_EVERY, SCHEMA_WITHIN, VERSION};

/// Why the schema does not give the meaning of tags.
#[derive(Debug, thiserror::Error)]
enum SchemaError {
    #[error("{}", Causes(.0))]
    Request(#[from] RequestError),
    #[error("the document is no JSON: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("it has no FunctionConfig with a description of podExecutor.tags")]
    Silent,
}

// === impl Followed ===

impl Followed {
    /// Reads the schema, unless `--functionconfig-tags` decides. After a failure the last answer
    /// stays in effect.
    pub(super) async fn read_schema(&mut self) {
        if self.options.semantics.is_some() {
            return;
        }
        // Only the first objects wait for the schema, after a start and when the kind is new.
        let is_first = self.objects.semantics().source == Source::NoSchema && !self.is_schema_missing;
        let within = if is_first { SCHEMA_WITHIN } else { Duration::ZERO };
        let answer = wait_for_schema(&self.options.client, within).await;
        let before = self.objects.semantics().clone();
        let is_known = before.source == Source::Schema;
        match answer {
            Ok(semantics) => {
                if !is_known || before.value != semantics {
                    tracing::info!(%semantics, "the schema of FunctionConfigs says what their tags mean");
                }
                self.objects.set_semantics(Setting::new(semantics, Source::Schema));
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
        let pause = if is_missing { self.options.retry_every } else { SCHEMA_EVERY };
        self.schema_at = Some(Instant::now() + pause);
    }
}

/// Repeats a request after a temporary failure, for at most `within`.
async fn wait_for_schema(client: &Client, within: Duration) -> Result<TagSemantics, SchemaError> {
    let give_up = Instant::now() + within;
    let mut backoff = Backoff::new(within / 20, within / 4);
    loop {
        let answer = read(client).await;
        let is_final = match &answer {
            Ok(_) | Err(SchemaError::Silent) => true,
            Err(SchemaError::Request(error)) => error.code() == Some(403),
            Err(SchemaError::Malformed(_)) => false,
        };
        // The random part keeps runners from asking at the same moment.
        let next = Instant::now() + spread(backoff.next_pause(), 1.0..1.5);
        if is_final || next >= give_up {
            return answer;
        }
        sleep_until(next).await;
    }
}

async fn read(client: &Client) -> Result<TagSemantics, SchemaError> {
    let request = Request::get(format!("/openapi/v3/apis/{GROUP}/{VERSION}"))
        .header(header::ACCEPT, "application/json")
        .body(Vec::new())
        .map_err(kube::Error::HttpError);
    // Requests text instead of JSON, because kube logs a body that it cannot parse.
    let text = bounded(async { client.request_text(request?).await }).await?;
    TagSemantics::of_schema(&serde_json::from_str(&text)?).ok_or(SchemaError::Silent)
}
