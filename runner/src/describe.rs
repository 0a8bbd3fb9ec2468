//! Reports this runner's state to routers (`porch_fn.v1.Shard`) for the status page. A router does
//! not know the admin ports of runners.

mod images;

use std::sync::Arc;

use porch_fn_admin::failures;
use porch_fn_image::Image;
use porch_fn_numbers::Recorded;
use porch_fn_proto::shard::shard_server::Shard;
use porch_fn_proto::shard::{
    AnnounceRequest, AnnounceResponse, DescribeImageRequest, DescribeImageResponse, DescribeRequest,
    DescribeResponse, Failure, PrepareRequest, PrepareResponse, QueueWaits,
};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tonic::{Request, Response, Status};

use self::images::report;
use crate::evaluate::Runner;
use crate::pods::kubernetes::store::Store;
use crate::settings::CurrentSettings;

/// The most members of the ring in one answer.
const MAX_RING: usize = 1000;
/// The most concurrent answers.
pub(crate) const MAX_ANSWERS: usize = 16;

/// The service.
pub(crate) struct Describe {
    /// The runner's name: that of its pod or host.
    pub(crate) name: String,
    /// When it started, in milliseconds since 1970.
    pub(crate) started_ms: u64,
    /// The runtimes, and the calls that failed or waited.
    pub(crate) runner: Arc<Runner>,
    /// The scope of the runner's pods.
    pub(crate) scope: String,
    /// The pods of a cluster. They may announce themselves.
    pub(crate) store: Option<Arc<Store>>,
    pub(crate) current: watch::Receiver<CurrentSettings>,
    /// With `--peers`: the runners on the ring.
    pub(crate) ring: Option<watch::Receiver<Arc<[Arc<str>]>>>,
    /// One permit for each concurrent answer. A router asks every 2 s while somebody views the
    /// status page.
    pub(crate) answers: Semaphore,
}

// === impl Describe ===

impl Describe {
    /// `images` has the images and whether there are more.
    fn response(&self, images: DescribeResponse) -> DescribeResponse {
        let ring = self.ring.as_ref().map(|ring| Arc::clone(&ring.borrow()));
        let failures = self.runner.failures.all().into_iter().map(|failure| {
            let failures::Failure { at_ms, count, image, code, text, .. } = failure;
            Failure { at_ms, count, image, code, text }
        });
        let exec_hash = || format!("{:012x}", self.current.borrow().exec_hash);
        DescribeResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            has_pods: self.runner.pods.is_some(),
            pods_scope: self.scope.clone(),
            exec_hash: if self.runner.exec.is_some() { exec_hash() } else { String::new() },
            has_peers: ring.is_some(),
            ring: ring.iter().flat_map(|ring| ring.iter()).take(MAX_RING).map(ToString::to_string).collect(),
            failures: failures.collect(),
            name: self.name.clone(),
            started_ms: self.started_ms,
            queue_waits: self.runner.metrics.queue_waits().iter().filter_map(queue_waits).collect(),
            ..images
        }
    }

    fn permit(&self) -> Result<SemaphorePermit<'_>, Status> {
        self.answers.try_acquire().map_err(|_| {
            Status::resource_exhausted("too many concurrent requests for this runner's state: retry later")
        })
    }
}

#[tonic::async_trait]
impl Shard for Describe {
    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        let _permit = self.permit()?;
        let images = match &self.runner.pods {
            Some(runtime) => report(runtime.pool.stats(), runtime.pool.last_starts()),
            None => DescribeResponse::default(),
        };
        Ok(Response::new(self.response(images)))
    }

    async fn describe_image(
        &self,
        request: Request<DescribeImageRequest>,
    ) -> Result<Response<DescribeImageResponse>, Status> {
        let _permit = self.permit()?;
        let image = request.into_inner().image;
        // The router has already added the default prefix.
        let parsed = Image::parse(&image, "").map_err(|error| Status::invalid_argument(error.to_string()))?;
        let pods = self.runner.pods.as_ref().map(|runtime| runtime.pool.pods(&image));
        let is_repository = parsed.repository() == image;
        let config = if is_repository { String::new() } else { config(&self.current.borrow(), &parsed) };
        Ok(Response::new(DescribeImageResponse {
            name: self.name.clone(),
            pods: pods.unwrap_or_default(),
            last_error: self.runner.last_errors.of(&image),
            config: config.into(),
        }))
    }

    async fn prepare(&self, request: Request<PrepareRequest>) -> Result<Response<PrepareResponse>, Status> {
        let _permit = self.permit()?;
        let PrepareRequest { image, tag } = request.into_inner();
        let allowed = self.runner.allowed_images.check(&image, &tag);
        allowed.map_err(|error| Status::permission_denied(error.to_string()))?;
        match &self.runner.pods {
            Some(runtime) if runtime.prepare(&image, &tag).await => Ok(Response::new(PrepareResponse {})),
            _ => Err(Status::not_found("the image can have no pods here")),
        }
    }

    async fn announce(
        &self,
        request: Request<AnnounceRequest>,
    ) -> Result<Response<AnnounceResponse>, Status> {
        let _permit = self.permit()?;
        let AnnounceRequest { token, address } = request.into_inner();
        let address = address.parse();
        let address = address.map_err(|_| Status::invalid_argument("address: write an IP address"))?;
        if self.store.as_ref().is_some_and(|store| store.announce(&token, address)) {
            return Ok(Response::new(AnnounceResponse {}));
        }
        let text = "no pod that starts has this token, or --pod-announce is off: the pod is used when the API \
                    server reports its address";
        Err(Status::not_found(text))
    }
}

/// The content of the page `/config?image=`: the settings of an image, each with its source.
pub(crate) fn config(current: &CurrentSettings, image: &Image) -> String {
    let page = porch_fn_settings::page(&current.settings, image);
    format!("{page:#}\n")
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

    use prost::Message;

    use porch_fn_proto::shard::LastError;
    use porch_fn_settings::CacheConfig;

    use super::*;
    use crate::evaluate::tests::runner;
    use crate::exec::ExecRuntime;
    use crate::exec::queue::Queue;
    use crate::metrics::tests::metrics;
    use crate::pods::tests::{call, runtime};
    use crate::settings::tests::current;

    fn describe() -> Describe {
        Describe {
            name: "function-runner-0".to_owned(),
            started_ms: 7,
            runner: Arc::new(runner(None)),
            scope: String::new(),
            store: None,
            current: watch::channel(current(CacheConfig::default(), true)).1,
            ring: None,
            answers: Semaphore::new(1),
        }
    }

    #[test]
    fn the_response_has_name_ring_failures_and_hash() {
        let ring: Arc<[Arc<str>]> = ["a:1", "b:1"].map(Arc::from).into();
        let exec = ExecRuntime {
            current: describe().current,
            environment: Vec::new(),
            queue: Queue::new(1, 0),
            default_prefix: String::new(),
            max_message: 0,
            metrics: metrics().0,
        };
        let runner = Arc::new(Runner { exec: Some(exec), ..runner(None) });
        runner.failures.note("f:v1", "", "INTERNAL", "boom\nmore");
        let full = Describe { runner, ring: Some(watch::channel(ring).1), ..describe() };
        for micros in [2, 2, 5] {
            full.runner.metrics.waited("f:v1", Duration::from_micros(micros));
        }
        let response = full.response(DescribeResponse::default());
        let failed = Failure {
            at_ms: response.failures[0].at_ms,
            count: 1,
            image: "f:v1".to_owned(),
            code: "INTERNAL".to_owned(),
            text: "boom".to_owned(),
        };
        let empty = DescribeResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: "function-runner-0".to_owned(),
            started_ms: 7,
            ..DescribeResponse::default()
        };
        let expected = DescribeResponse {
            exec_hash: "000000000000".to_owned(),
            has_peers: true,
            ring: vec!["a:1".to_owned(), "b:1".to_owned()],
            failures: vec![failed],
            queue_waits: vec![QueueWaits {
                image: "f:v1".to_owned(),
                buckets: vec![2, 5],
                counts: vec![2, 1],
            }],
            ..empty.clone()
        };
        assert_eq!(response, expected);
        assert_eq!(describe().response(DescribeResponse::default()), empty);
    }

    async fn image(describe: &Describe, image: &str) -> Result<DescribeImageResponse, Status> {
        let request = Request::new(DescribeImageRequest { image: image.to_owned() });
        describe.describe_image(request).await.map(Response::into_inner)
    }

    #[tokio::test]
    async fn an_image_has_pods_last_error_and_the_configuration_of_the_page() {
        let runtime = runtime(None);
        // This call starts a pod, which then vanishes.
        let parsed = Image::parse("f:v1", "example.com");
        runtime.evaluate("f:v1", parsed, "", &call("f:v1", "", std::time::Duration::from_mins(1))).await;
        let describe = Describe { runner: Arc::new(runner(Some(runtime))), ..describe() };
        describe.runner.last_errors.note("example.com/f:v1", "INTERNAL", "boom\nmore");
        let answer = image(&describe, "example.com/f:v1").await.unwrap();
        assert_eq!(answer.name, "function-runner-0");
        let pods: Vec<_> = answer.pods.iter().map(|pod| (&*pod.name, pod.calls)).collect();
        assert_eq!(pods, [("pod", 0)]);
        let LastError { at_ms, code, text } = answer.last_error.unwrap();
        assert!(at_ms > 0);
        assert_eq!((&*code, &*text), ("INTERNAL", "boom\nmore"));
        let parsed = Image::parse("example.com/f:v1", "").unwrap();
        assert_eq!(answer.config, config(&describe.current.borrow(), &parsed));
        assert!(answer.config.starts_with(b"{\n  \"image\": \"example.com/f:v1\""), "{:?}", answer.config);
    }

    #[tokio::test]
    async fn requests_for_images_are_checked_and_bounded() {
        let describe = describe();
        let repository = image(&describe, "example.com/f").await.unwrap();
        assert!(repository.config.is_empty(), "a repository has no settings of its own");
        let refused = image(&describe, "Not An Image").await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        let _permit = describe.answers.try_acquire().unwrap();
        let busy = image(&describe, "example.com/f").await.unwrap_err();
        assert_eq!(busy.code(), tonic::Code::ResourceExhausted);
    }

    #[test]
    fn reported_waits_are_bounded() {
        let describe = describe();
        for number in 0..60_000_u64 {
            let image = format!("{:0500}", number % 150);
            describe.runner.metrics.waited(&image, Duration::from_micros(number * number));
        }
        let response = describe.response(DescribeResponse::default());
        assert_eq!(response.queue_waits.len(), 101);
        assert!(response.encoded_len() < 1 << 20, "{}", response.encoded_len());
    }
}
