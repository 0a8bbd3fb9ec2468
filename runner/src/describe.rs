//! What this runner says of itself to routers (`porch_fn.v1.Shard`): a router knows no runner's admin port, and its
//! status page is to show what runners hold.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use porch_fn_admin::failures::{self, Failures};
use porch_fn_grpc::Body;
use porch_fn_pool::FunctionStats;
use porch_fn_proto::SHARD_PATHS;
use porch_fn_proto::shard::shard_server::{Shard, ShardServer};
use porch_fn_proto::shard::{DescribeRequest, DescribeResponse, Failure, ImagePods};
use porch_fn_ring::Identity;
use porch_fn_text::cut;
use tokio::sync::{Semaphore, watch};
use tonic::Status;
use tower_service::Service;

use crate::exec::ExecHash;
use crate::pods::Handle;

/// Images told of. An answer with all of them stays below 1 MiB.
const MAX_IMAGES: usize = 1000;
/// Members of the ring told of.
const MAX_RING: usize = 1000;
/// Longest image name told, in bytes.
const MAX_IMAGE_BYTES: usize = 600;
/// Answers made at once. A router asks every 2 s while somebody looks.
const MAX_AT_ONCE: usize = 16;

/// The service. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Describe(Arc<Parts>);

/// Where its answers come from.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The pod runtime's pool, and where its pods live.
    pub(crate) pods: Option<(Handle, String)>,
    /// What the exec runtime runs.
    pub(crate) exec: Option<watch::Receiver<ExecHash>>,
    /// Who is on the ring, with `--peers`.
    pub(crate) ring: Option<watch::Receiver<Arc<[Identity]>>>,
    /// Calls that failed of late.
    pub(crate) failures: Arc<Failures>,
    /// See [`Parts::turns`].
    pub(crate) turns: Semaphore,
}

// === impl Describe ===

impl Describe {
    /// The service over these parts.
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Whether `request` is one to this service.
    pub(crate) fn is_asked(request: &Request<Incoming>) -> bool {
        request.uri().path().starts_with(SHARD_PATHS)
    }

    /// The answer to such a request.
    pub(crate) async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let answered = ShardServer::new(self).call(request).await;
        let Ok(response) = answered.map_err(|never: Infallible| match never {});
        response.map(Body::from)
    }
}

#[tonic::async_trait]
impl Shard for Describe {
    async fn describe(
        &self,
        _request: tonic::Request<DescribeRequest>,
    ) -> Result<tonic::Response<DescribeResponse>, Status> {
        let parts = &self.0;
        let Ok(_turn) = parts.turns.try_acquire() else {
            return Err(Status::resource_exhausted(
                "too many ask at once what this runner holds: retry later",
            ));
        };
        let stats = match &parts.pods {
            Some((pool, _)) => pool.stats().await,
            None => Vec::new(),
        };
        Ok(tonic::Response::new(parts.response(stats)))
    }
}

// === impl Parts ===

impl Parts {
    /// Bounds the answers made at once.
    pub(crate) fn turns() -> Semaphore {
        Semaphore::new(MAX_AT_ONCE)
    }

    fn response(&self, stats: Vec<FunctionStats>) -> DescribeResponse {
        let (images, truncated) = images(stats);
        let ring = self.ring.as_ref().map(|ring| Arc::clone(&ring.borrow()));
        let exec = self.exec.as_ref().map(|hash| *hash.borrow());
        DescribeResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            has_pods: self.pods.is_some(),
            pods_scope: self.pods.as_ref().map(|(_, scope)| scope.clone()).unwrap_or_default(),
            exec_hash: exec.map(|hash| hash.to_string()).unwrap_or_default(),
            has_peers: ring.is_some(),
            ring: ring.iter().flat_map(|ring| ring.iter()).take(MAX_RING).map(ToString::to_string).collect(),
            images,
            truncated,
            failures: self.failures.all().into_iter().map(failure).collect(),
        }
    }
}

/// The busiest, by name, and whether there are others.
fn images(mut stats: Vec<FunctionStats>) -> (Vec<ImagePods>, bool) {
    let truncated = stats.len() > MAX_IMAGES;
    if truncated {
        let weight = |one: &FunctionStats| (one.in_flight + one.waiting, one.ready + one.starting);
        stats.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.image.cmp(&b.image)));
        stats.truncate(MAX_IMAGES);
        stats.sort_by(|a, b| a.image.cmp(&b.image));
    }
    (stats.iter().map(image).collect(), truncated)
}

fn image(stats: &FunctionStats) -> ImagePods {
    let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
    ImagePods {
        image: cut(stats.image.as_str(), MAX_IMAGE_BYTES, "").into_owned(),
        ready: number(stats.ready),
        starting: number(stats.starting),
        terminating: number(stats.terminating),
        in_flight: number(stats.in_flight),
        waiting: number(stats.waiting),
    }
}

fn failure(failure: failures::Failure) -> Failure {
    let failures::Failure { at_ms, count, image, code, text, .. } = failure;
    Failure { at_ms, count, image, code: code.to_owned(), text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use porch_fn_pool::ImageKey;
    use prost::Message;

    fn stats(image: &str, in_flight: usize, ready: usize) -> FunctionStats {
        let image = ImageKey::from(image);
        FunctionStats {
            image,
            owned: true,
            ready,
            starting: 2,
            silent: 0,
            terminating: 1,
            in_flight,
            waiting: 3,
        }
    }

    fn parts() -> Parts {
        Parts { pods: None, exec: None, ring: None, failures: Arc::default(), turns: Parts::turns() }
    }

    #[test]
    fn it_tells_what_its_parts_hold() {
        let ring: Arc<[Identity]> = ["a:1", "b:1"].map(Identity::from).into();
        let failures = Failures::default();
        failures.note("f:v1", "", "INTERNAL", "boom\nmore");
        let hash = ExecHash::default();
        let parts = Parts {
            exec: Some(watch::channel(hash).1),
            ring: Some(watch::channel(ring).1),
            failures: Arc::new(failures),
            ..parts()
        };
        let told = parts.response(vec![stats("f:v1", 4, 5)]);
        let expected = ImagePods {
            image: "f:v1".into(),
            ready: 5,
            starting: 2,
            terminating: 1,
            in_flight: 4,
            waiting: 3,
        };
        assert_eq!(told.images, [expected]);
        assert_eq!((told.has_peers, told.ring), (true, vec!["a:1".to_owned(), "b:1".to_owned()]));
        assert_eq!(told.exec_hash, hash.to_string());
        let failure = &told.failures[0];
        assert_eq!(
            (&*failure.image, &*failure.code, &*failure.text, failure.count),
            ("f:v1", "INTERNAL", "boom", 1)
        );
        assert!(!told.has_pods && !told.truncated);
        let bare = self::parts().response(Vec::new());
        assert_eq!((bare.has_peers, &*bare.exec_hash, &*bare.pods_scope), (false, "", ""));
    }

    #[test]
    fn of_many_images_the_busiest_are_told_in_bounded_size() {
        let long = "é".repeat(1000);
        let mut all: Vec<_> = (0..3000).map(|n| stats(&format!("{n:04}{long}"), 0, n % 7)).collect();
        all.push(stats("zz", 1, 0));
        let told = parts().response(all);
        assert!(told.truncated);
        assert_eq!(told.images.len(), MAX_IMAGES);
        assert_eq!(told.images[MAX_IMAGES - 1].image, "zz");
        assert!(told.images.iter().all(|image| image.ready >= 4 || image.image == "zz"));
        assert!(told.images.is_sorted_by(|a, b| a.image < b.image));
        assert!(told.encoded_len() < 1 << 20, "{}", told.encoded_len());
    }
}
