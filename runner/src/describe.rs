//! Reports this runner's state to routers (`porch_fn.v1.Shard`) for the status page. A router does
//! not know the admin ports of runners.

use std::sync::Arc;

use porch_fn_admin::failures::{self, Failures};
use porch_fn_numbers::Recorded;
use porch_fn_pool::FunctionStats;
use porch_fn_proto::shard::shard_server::Shard;
use porch_fn_proto::shard::{DescribeRequest, DescribeResponse, Failure, ImagePods, QueueWaits};
use porch_fn_text::cut;
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status};

use crate::metrics::Metrics;
use crate::pods::Handle;
use crate::settings::CurrentSettings;

/// The most images in one answer, which keeps it below 1 MiB.
const MAX_IMAGES: usize = 1000;
/// The most members of the ring in one answer.
const MAX_RING: usize = 1000;
/// Longest image name reported, in bytes.
const MAX_IMAGE_BYTES: usize = 600;
/// The most concurrent answers.
pub(crate) const MAX_ANSWERS: usize = 16;

/// The service.
#[derive(Debug)]
pub(crate) struct Describe {
    /// The pod runtime's pool, and the scope of its pods.
    pub(crate) pods: Option<(Handle, String)>,
    /// The settings, if the exec runtime is enabled.
    pub(crate) exec: Option<watch::Receiver<CurrentSettings>>,
    /// With `--peers`: the runners on the ring.
    pub(crate) ring: Option<watch::Receiver<Arc<[Arc<str>]>>>,
    /// Recent calls that failed.
    pub(crate) failures: Arc<Failures>,
    /// How long calls waited.
    pub(crate) metrics: Arc<Metrics>,
    /// One permit for each concurrent answer. A router asks every 2 s while somebody views the
    /// status page.
    pub(crate) answers: Semaphore,
}

// === impl Describe ===

impl Describe {
    fn response(&self, stats: Vec<FunctionStats>) -> DescribeResponse {
        let (images, truncated) = images(stats);
        let ring = self.ring.as_ref().map(|ring| Arc::clone(&ring.borrow()));
        let failures = self.failures.all().into_iter().map(|failure| {
            let failures::Failure { at_ms, count, image, code, text, .. } = failure;
            Failure { at_ms, count, image, code, text }
        });
        let exec_hash = self.exec.as_ref().map(|current| format!("{:012x}", current.borrow().exec_hash));
        DescribeResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            has_pods: self.pods.is_some(),
            pods_scope: self.pods.as_ref().map(|(_, scope)| scope.clone()).unwrap_or_default(),
            exec_hash: exec_hash.unwrap_or_default(),
            has_peers: ring.is_some(),
            ring: ring.iter().flat_map(|ring| ring.iter()).take(MAX_RING).map(ToString::to_string).collect(),
            images,
            truncated,
            failures: failures.collect(),
            queue_waits: self.metrics.queue_waits().iter().filter_map(queue_waits).collect(),
        }
    }
}

#[tonic::async_trait]
impl Shard for Describe {
    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        let Ok(_permit) = self.answers.try_acquire() else {
            return Err(Status::resource_exhausted(
                "too many concurrent requests for this runner's state: retry later",
            ));
        };
        let stats = match &self.pods {
            Some((pool, _)) => pool.stats().await,
            None => Vec::new(),
        };
        Ok(Response::new(self.response(stats)))
    }
}

/// The busiest images, sorted by name, and whether more exist.
fn images(mut stats: Vec<FunctionStats>) -> (Vec<ImagePods>, bool) {
    let truncated = stats.len() > MAX_IMAGES;
    let weight = |one: &FunctionStats| (one.in_flight + one.waiting, one.ready + one.starting);
    stats.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.image.cmp(&b.image)));
    stats.truncate(MAX_IMAGES);
    stats.sort_by(|a, b| a.image.cmp(&b.image));
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

/// The waits of the last minute, if there are any.
fn queue_waits((image, waits): (&Arc<str>, &Recorded)) -> Option<QueueWaits> {
    let (buckets, counts): (Vec<_>, _) =
        waits.durations.iter().map(|(bucket, count)| (u32::from(bucket), count)).unzip();
    (!buckets.is_empty()).then(|| QueueWaits { image: image.to_string(), buckets, counts })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use porch_fn_pool::ImageKey;
    use porch_fn_settings::CacheConfig;
    use prost::Message;

    use super::*;
    use crate::metrics::tests::metrics;
    use crate::settings::tests::current;

    fn stats(image: &str, in_flight: usize, ready: usize) -> FunctionStats {
        FunctionStats {
            image: ImageKey::from(image),
            owned: true,
            ready,
            starting: 2,
            silent: 0,
            terminating: 1,
            in_flight,
            waiting: 3,
        }
    }

    fn empty() -> Describe {
        let (metrics, _) = metrics();
        Describe {
            pods: None,
            exec: None,
            ring: None,
            failures: Arc::default(),
            metrics,
            answers: Semaphore::new(1),
        }
    }

    #[test]
    fn the_response_has_pods_ring_failures_and_hash() {
        let ring: Arc<[Arc<str>]> = ["a:1", "b:1"].map(Arc::from).into();
        let failures = Arc::new(Failures::default());
        failures.note("f:v1", "", "INTERNAL", "boom\nmore");
        let (_, exec) = watch::channel(current(CacheConfig::default(), true));
        let describe = Describe { exec: Some(exec), ring: Some(watch::channel(ring).1), failures, ..empty() };
        for micros in [2, 2, 5] {
            describe.metrics.waited("f:v1", Duration::from_micros(micros));
        }
        let response = describe.response(vec![stats("f:v1", 4, 5)]);
        let pods = ImagePods {
            image: "f:v1".to_owned(),
            ready: 5,
            starting: 2,
            terminating: 1,
            in_flight: 4,
            waiting: 3,
        };
        let failed = Failure {
            at_ms: response.failures[0].at_ms,
            count: 1,
            image: "f:v1".to_owned(),
            code: "INTERNAL".to_owned(),
            text: "boom".to_owned(),
        };
        let expected = DescribeResponse {
            exec_hash: "000000000000".to_owned(),
            has_peers: true,
            ring: vec!["a:1".to_owned(), "b:1".to_owned()],
            images: vec![pods],
            failures: vec![failed],
            queue_waits: vec![QueueWaits {
                image: "f:v1".to_owned(),
                buckets: vec![2, 5],
                counts: vec![2, 1],
            }],
            ..empty().response(Vec::new())
        };
        assert_eq!(response, expected);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        assert_eq!(empty().response(Vec::new()), DescribeResponse { version, ..DescribeResponse::default() });
    }

    #[test]
    fn a_bounded_response_has_the_busiest_images() {
        let long = "é".repeat(1000);
        let mut all: Vec<_> = (0..3000).map(|n| stats(&format!("{n:04}{long}"), 0, n % 7)).collect();
        all.push(stats("zz", 1, 0));
        let describe = empty();
        for number in 0..60_000_u64 {
            let image = format!("{:0500}", number % 150);
            describe.metrics.waited(&image, Duration::from_micros(number * number));
        }
        let response = describe.response(all);
        assert_eq!(response.queue_waits.len(), 101);
        assert!(response.truncated);
        assert_eq!(response.images.len(), MAX_IMAGES);
        assert_eq!(response.images[MAX_IMAGES - 1].image, "zz");
        assert!(response.images.iter().all(|image| image.ready >= 4 || image.image == "zz"));
        assert!(response.images.is_sorted_by(|a, b| a.image < b.image));
        assert!(response.encoded_len() < 1 << 20, "{}", response.encoded_len());
    }
}
