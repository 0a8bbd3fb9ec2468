//! The meaning of the `tags` of FunctionConfigs, from the cluster's schema.
//!
//! [`TagSemantics::of_schema`] reads it from the group's `OpenAPI` document. Every account that the
//! API server knows may read that document (`ClusterRole` system:discovery), but not every account
//! may read CRDs.

use std::time::Duration;

use http::{Request, header};
use kube::Client;
use porch_fn_backoff::spread;
use porch_fn_settings::{Setting, Source, TagSemantics};
use tokio::time::{Instant, sleep};

use super::super::client::{Causes, RequestError, bounded};
use super::{FLAG, Followed, GROUP, SCHEMA_EVERY, SCHEMA_PAUSE, SCHEMA_WITHIN, VERSION};

/// The error for a schema without the meaning of tags.
const NO_MEANING: &str = "the schema has no FunctionConfig with a description of podExecutor.tags";

// === impl Followed ===

impl Followed {
    /// Reads the schema, unless `--functionconfig-tags` sets the meaning of tags. After a failure
    /// the last answer stays in effect.
    pub(super) async fn read_schema(&mut self) {
        if self.options.semantics.is_some() {
            return;
        }
        // FunctionConfigs wait only for the first reading of the schema: after startup, or after
        // the kind is created. So only that reading is repeated for a while.
        let is_first = self.objects.semantics.source == Source::NoSchema && !self.is_schema_missing;
        let within = if is_first { SCHEMA_WITHIN } else { Duration::ZERO };
        let answer = wait_for_schema(&self.options.client, within).await;
        let answer = answer
            .map_err(|error| Causes(&error).to_string())
            .and_then(|semantics| semantics.ok_or_else(|| NO_MEANING.to_owned()));
        let is_known = self.objects.semantics.source == Source::Schema;
        match answer {
            Ok(semantics) => {
                let semantics = Setting::new(semantics, Source::Schema);
                if semantics != self.objects.semantics {
                    let semantics = semantics.value;
                    tracing::info!(tags = %semantics, "the schema of FunctionConfigs describes what their tags mean");
                }
                self.objects.set_semantics(semantics);
            }
            Err(error) if is_known || std::mem::replace(&mut self.is_schema_missing, true) => {
                tracing::debug!(
                    error,
                    "the schema of FunctionConfigs still does not describe what their tags mean"
                );
            }
            Err(error) => tracing::warn!(
                error,
                "the schema of FunctionConfigs does not describe what their tags mean, so tags have the meaning of Porch 1.6. Set \
                 --{FLAG}, or grant the runner's service account get on /openapi/v3/apis/{GROUP}/{VERSION}, like \
                 ClusterRole system:discovery"
            ),
        }
        let is_missing = self.objects.semantics.source == Source::NoSchema;
        let pause = if is_missing { self.options.retry_every } else { SCHEMA_EVERY };
        self.schema_at = Some(Instant::now() + pause);
    }
}

/// Reads the schema, and repeats that for at most `within` after temporary failures.
async fn wait_for_schema(client: &Client, within: Duration) -> Result<Option<TagSemantics>, RequestError> {
    let give_up = Instant::now() + within;
    loop {
        let answer = read(client).await;
        let is_final = answer.as_ref().map_or_else(|error| error.code() == Some(403), |_| true);
        if is_final || Instant::now() >= give_up {
            return answer;
        }
        // The random part keeps runners from sending their requests at the same moment.
        sleep(spread(SCHEMA_PAUSE, 1.0..1.5)).await;
    }
}

/// Returns `None` if the schema does not describe the meaning of tags.
async fn read(client: &Client) -> Result<Option<TagSemantics>, RequestError> {
    let request = Request::get(format!("/openapi/v3/apis/{GROUP}/{VERSION}"))
        .header(header::ACCEPT, "application/json")
        .body(Vec::new())
        .map_err(kube::Error::HttpError);
    let document = bounded(async {
        // Requests text instead of JSON, because kube logs a body that it cannot parse.
        let text = client.request_text(request?).await?;
        serde_json::from_str(&text).map_err(kube::Error::SerdeError)
    });
    Ok(TagSemantics::of_schema(&document.await?))
}
