//! One image in detail: `/image.json?image=`, and `/config?image=`, which has the same content as
//! the runners' page. The router asks the image's owner on the connection of calls.

mod ask;

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use porch_fn_admin::query_value;
use porch_fn_image::Image;
use porch_fn_proto::shard::DescribeImageResponse;
use porch_fn_text::cut;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use self::ask::{AskError, describe_image};
use crate::answers::bounded;
use crate::status::owner;
use crate::{Known, text};

/// Number of requests to runners for single images at once, for all viewers together.
const AT_ONCE: usize = 16;
/// Maximum number of pods read from an answer. Runners report no more.
const MAX_PODS: usize = 100;
/// Longest text of the last error, in bytes. Runners report no more.
const MAX_ERROR: usize = 64 * 1024;

/// One image in detail. Fields are never removed.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImageDetail {
    /// The image's shard key: the canonical reference, or the repository if calls have a tag
    /// constraint.
    pub image: String,
    /// The address of the runner that owns the image on the ring; empty if there is no runner.
    pub owner: String,
    /// The owner's name: that of its pod or host. Empty if the owner could not be asked.
    pub owner_name: String,
    /// The image's pods in the owner's view: at most 100.
    pub pods: Vec<PodDetail>,
    /// The last call of the image that failed at the owner.
    pub last_error: Option<LastErrorDetail>,
    /// The settings in effect, with their sources. `None` for a repository.
    pub config: Option<Value>,
    /// Why the owner could not be asked, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodDetail {
    /// The pod's name.
    pub name: String,
    /// `ready`, `starting` or `terminating`.
    pub state: String,
    /// Time since its creation, in milliseconds.
    pub age_ms: u64,
    /// The owner's calls that run in the pod.
    pub calls: u32,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastErrorDetail {
    /// Time in milliseconds since 1970, by the runner's clock.
    pub at_ms: u64,
    /// Name of the gRPC code.
    pub code: String,
    /// The whole message, up to 64 KiB.
    pub text: String,
}

/// Answers the requests for single images.
#[derive(Debug)]
pub(crate) struct Images {
    /// `--default-image-prefix`.
    default_prefix: String,
    /// One permit for each request to a runner.
    permits: Semaphore,
}

/// The image of a request, and its owner's address.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    image: String,
    /// `None` if the ring has no runner.
    owner: Option<String>,
}

// === impl Images ===

impl Images {
    pub(crate) fn new(default_prefix: String) -> Arc<Self> {
        Arc::new(Self { default_prefix, permits: Semaphore::new(AT_ONCE) })
    }

    /// The content of `/image.json`.
    ///
    /// # Errors
    /// A JSON object with the field `error`, if the query names no valid image.
    pub(crate) async fn detail(&self, query: &str, known: &Known) -> Result<Bytes, (StatusCode, String)> {
        let asked = self.asked(query, "/image.json", known, true).map_err(|error| refused(&error))?;
        let answer = self.ask(&asked, known).await;
        Ok(text(&detail(asked, answer)))
    }

    /// The content of `/config`: what the owner's own page `/config` has.
    ///
    /// # Errors
    /// A JSON object with the field `error`, if the query names no valid image or the owner could
    /// not be asked.
    pub(crate) async fn config(&self, query: &str, known: &Known) -> Result<Bytes, (StatusCode, String)> {
        let asked = self.asked(query, "/config", known, false).map_err(|error| refused(&error))?;
        let unasked = |error: AskError| (StatusCode::SERVICE_UNAVAILABLE, error_json(&error.to_string()));
        let answer = self.ask(&asked, known).await.map_err(unasked)?;
        Ok(String::from_utf8_lossy(&answer.config).into_owned().into())
    }

    /// The image that a query names: parsed and completed like the images of calls. If
    /// `or_repository`, a repository that calls select by a tag constraint stays a repository. Only
    /// other routers may have such calls, so the status page adds `&exact`: the name has no default
    /// tag.
    fn asked(&self, query: &str, path: &str, known: &Known, or_repository: bool) -> Result<Asked, String> {
        let text = query_value(query, "image").ok_or_else(|| format!("write {path}?image=IMAGE"))?;
        let is_called = |name: &str| known.shards.images.iter().any(|image| image.image == name);
        let parsed = Image::parse(&text, &self.default_prefix).map_err(|error| error.to_string())?;
        let is_exact = query.split('&').any(|pair| pair == "exact");
        let is_repository = or_repository && text == parsed.repository() && (is_exact || is_called(&text));
        let image = if is_repository { text } else { parsed.to_string() };
        let owner = if is_called(&image) {
            known.ring.owner(&image).map(ToString::to_string)
        } else {
            owner(&image, is_called, &known.ring)
        };
        Ok(Asked { image, owner })
    }

    async fn ask(&self, asked: &Asked, known: &Known) -> Result<DescribeImageResponse, AskError> {
        let runner = asked.owner.as_ref().ok_or(AskError::NoRunner)?;
        let reachable = known.reachable.iter().find(|(address, _)| **address == **runner);
        let Some((_, connection)) = reachable else {
            let mut shards = known.shards.shards.iter();
            let state = shards.find(|shard| shard.address == *runner).map(|shard| shard.state.clone());
            return Err(AskError::Unavailable { runner: runner.clone(), state: state.unwrap_or_default() });
        };
        let _permit = self.permits.try_acquire().map_err(|_| AskError::TooMany { limit: AT_ONCE })?;
        describe_image(runner, connection, &asked.image).await
    }
}

fn refused(error: &str) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, error_json(error))
}

/// What the page `/config` of a runner answers to a query that it refuses.
fn error_json(error: &str) -> String {
    json!({ "error": error }).to_string()
}

fn detail(asked: Asked, answer: Result<DescribeImageResponse, AskError>) -> ImageDetail {
    let detail =
        ImageDetail { image: asked.image, owner: asked.owner.unwrap_or_default(), ..ImageDetail::default() };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return ImageDetail { error: Some(error.to_string()), ..detail },
    };
    let pods = answer.pods.into_iter().take(MAX_PODS).map(|pod| PodDetail {
        name: bounded(&pod.name),
        state: bounded(&pod.state),
        age_ms: pod.age_ms,
        calls: pod.calls,
    });
    ImageDetail {
        owner_name: bounded(&answer.name),
        pods: pods.collect(),
        last_error: answer.last_error.map(|error| LastErrorDetail {
            at_ms: error.at_ms,
            code: bounded(&error.code),
            text: cut(&error.text, MAX_ERROR, "").into_owned(),
        }),
        config: serde_json::from_slice(&answer.config).ok(),
        ..detail
    }
}

#[cfg(test)]
mod tests;
