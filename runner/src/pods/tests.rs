//! Tests which failed calls the router may send to another runner, and which image a tag selects.

use bytes::Bytes;
use futures_util::FutureExt;
use jiff::SignedDuration;
use porch_fn_grpc::{Charge, is_shed, message_of};
use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::{Action, Config, Creation, Event, Phase, Pod, PodStats, Time, Uid};
use porch_fn_proto::shard::ImagePod;
use porch_fn_proto::{Chunks, encode_request};
use porch_fn_telemetry::span::Span;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tonic::Code;

use super::driver::image_pod;
use super::probe::CONNECTION;
use super::*;
use crate::metrics::tests::metrics;

const TAGS: [&str; 8] = ["latest", "stable", "v0.4", "v0.4.1", "v1", "v1.9.0", "v1.10.0", "v2.0.0-rc.1"];

/// A backend whose pods are ready immediately and listen at `address`.
struct ReadyPods {
    events: mpsc::UnboundedSender<Event>,
    address: Option<String>,
}

#[tonic::async_trait]
impl Backend for ReadyPods {
    async fn execute(&self, action: Action) -> Option<Event> {
        match action {
            Action::Create { name, shard_key, recipe, reclaim_after } => {
                let uid = Uid::from("pod");
                let pod = Pod {
                    name: name.clone(),
                    uid: uid.clone(),
                    shard_key,
                    phase: Phase::Running,
                    recipe,
                    reclaim_after: Some(reclaim_after),
                    ..Pod::default()
                };
                self.events.send(Event::Seen(pod)).unwrap();
                Some(Event::Created { name, result: Creation::Ok(uid) })
            }
            Action::Probe { uid, .. } => Some(Event::Ready(uid)),
            _ => None,
        }
    }

    fn disconnect(&self, _: &Uid) {}

    fn connection(&self, _: &Uid) -> Option<Arc<Connection>> {
        Some(Arc::new(Connection::new(self.address.clone()?, CONNECTION, None).unwrap()))
    }

    fn facts(&self, _: &Uid) -> Option<PodFacts> {
        None
    }
}

fn digest() -> String {
    format!("f@sha256:{}", "0".repeat(64))
}

/// A runtime with [`ReadyPods`]. Its task runs whenever the test waits.
pub(crate) fn runtime(address: Option<String>) -> PodRuntime {
    let (events, receiver) = mpsc::unbounded_channel();
    events.send(Event::Synced(Vec::new())).unwrap();
    let backend = Arc::new(ReadyPods { events: events.clone(), address });
    let events = (events, receiver);
    let (driver, pool) = Driver::new(Config::default(), backend, SignedDuration::ZERO, events, metrics().0);
    tokio::spawn(driver.run());
    let mut file = ImageCommands::default();
    for image in TAGS.map(|tag| format!("f:{tag}")).into_iter().chain([digest()]) {
        file.add(&image, vec!["cat".to_owned()], "example.com").unwrap();
    }
    PodRuntime {
        pool,
        images: Arc::new(ImageSource { file, registries: None }),
        default_prefix: "example.com".to_owned(),
        max_message: 1 << 20,
        max_retries: 0,
        metrics: metrics().0,
    }
}

/// A call with a deadline `wait` from now.
pub(crate) fn call(image: &str, tag: &str, wait: Duration) -> Call {
    let message = encode_request(Bytes::from_static(b"kind: ResourceList\n").into(), image, tag);
    Call {
        headers: HeaderMap::new(),
        framed: frame(message.clone()),
        message,
        deadline: Instant::now() + wait,
        charge: Charge::default(),
        span: Span::default(),
    }
}

async fn answer(runtime: PodRuntime, tag: &str) -> (Reply, String) {
    let call = call("f:v1", tag, Duration::from_mins(1));
    let reply = runtime.evaluate("f:v1", Image::parse("f:v1", "example.com"), tag, &call).await.unwrap();
    let message = message_of(reply.status_headers());
    (reply, message)
}

#[tokio::test]
async fn a_call_that_no_pod_has_started_may_go_to_another_runner() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for address in [None, Some(closed.to_string())] {
        let (reply, message) = answer(runtime(address), "").await;
        assert_eq!((reply.code(), is_shed(reply.status_headers())), (Code::Unavailable, true), "{message}");
        assert!(message.starts_with("unable to get the grpc client to the pod for f:v1: "), "{message}");
    }
}

#[tokio::test]
async fn a_call_with_a_warm_pod_waits_for_no_other_task() {
    let pool = runtime(Some("127.0.0.1:1".to_owned())).pool;
    let acquire = || {
        let running = (Chunks::default(), Instant::now());
        pool.acquire("f:v1".into(), "f:v1".into(), Instant::now() + Duration::from_mins(1), running)
    };
    let (_, cold) = acquire().await.unwrap();
    for verdict in [Verdict::Served, Verdict::Full] {
        let (_, warm) = acquire().now_or_never().unwrap().unwrap();
        assert_eq!(pool.stats()[0].in_flight, 2);
        warm.finish(verdict);
        assert_eq!(pool.stats()[0].in_flight, 1);
    }
    drop(cold);
    assert_eq!(pool.stats()[0].in_flight, 0);
}

#[tokio::test]
async fn calls_that_wait_end_with_the_driver() {
    let events = mpsc::unbounded_channel();
    let backend = Arc::new(ReadyPods { events: events.0.clone(), address: None });
    let (driver, pool) = Driver::new(Config::default(), backend, SignedDuration::ZERO, events, metrics().0);
    let acquire = || {
        let running = (Chunks::default(), Instant::now());
        pool.acquire("f:v1".into(), "f:v1".into(), Instant::now() + Duration::from_mins(1), running)
    };
    let mut waiting = Box::pin(acquire());
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(driver);
    for call in [waiting.await, acquire().await] {
        assert_eq!(call.err(), Some(PodError::Stopped));
    }
}

/// Starts a wrapper-server that receives a call and then closes the connection. Returns its address
/// and the number of calls that it has received.
async fn dying_wrapper() -> (String, watch::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, taken) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // An empty SETTINGS frame, which HTTP/2 begins with.
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            let mut read = Vec::new();
            while !read.windows(12).any(|part| part == b"ResourceList") {
                if stream.read_buf(&mut read).await.unwrap_or_default() == 0 {
                    break;
                }
            }
            sender.send_modify(|taken| *taken += 1);
        }
    });
    (address, taken)
}

#[tokio::test]
async fn a_call_whose_pod_dies_is_repeated_up_to_the_retry_limit() {
    for retries in [0, 1, 2, 5] {
        let (address, taken) = dying_wrapper().await;
        let (reply, message) =
            answer(PodRuntime { max_retries: retries, ..runtime(Some(address)) }, "").await;
        assert_eq!((reply.code(), is_shed(reply.status_headers())), (Code::Unavailable, false), "{message}");
        let text = "unable to evaluate f:v1 with pod evaluator: rpc error: code = Unavailable desc = the \
                    connections to the function's pods were lost during this call, and the call is not run again: \
                    look for out-of-memory kills and crashes of the function";
        assert_eq!(message, text);
        assert_eq!(*taken.borrow(), 1 + retries as usize);
    }
}

#[tokio::test]
async fn the_tag_field_selects_the_tag() {
    let runtime = runtime(None);
    let digest = digest();
    for (image, tag, chosen) in [
        ("f", "", Some("f:latest")),
        ("f:v1", "", Some("f:v1")),
        ("f", "v0.4.1", Some("f:v0.4.1")),
        ("f:v1", "v0.4", Some("f:v0.4")),
        ("f:v1", "~1.9", Some("f:v1.9.0")),
        ("f", ">=1.0 <2", Some("f:v1.10.0")),
        ("f", ">=2.0.0-0", Some("f:v2.0.0-rc.1")),
        ("f:v1", "stable", Some("f:v1")),
        (&digest, "~1.9", Some(&digest)),
        ("f", ">=3", None),
    ] {
        let parsed = Image::parse(image, "example.com");
        let expected = chosen.map(|chosen| Image::parse(chosen, "example.com").unwrap());
        let found = runtime.choose(image, parsed, tag).await.ok().flatten().map(|(image, _)| image);
        assert_eq!(
            found.as_ref().map(ImageKey::as_str),
            expected.as_ref().map(Image::as_str),
            "{image} {tag}"
        );
    }
    assert_eq!(answer(runtime, ">=3").await.0.code(), Code::NotFound);
}

#[test]
fn a_reported_pod_has_its_state_and_age() {
    for state in ["ready", "starting", "terminating"] {
        let pod = PodStats { uid: Uid::from("pod"), state, calls: 3 };
        let facts =
            PodFacts { name: "f-v1-0".to_owned(), created: Some(Time::from_millis(500)), cause: None };
        let expected =
            ImagePod { name: "f-v1-0".to_owned(), state: state.to_owned(), age_ms: 2000, calls: 3 };
        assert_eq!(image_pod(&pod, Some(facts), Time::from_millis(2500)), expected);
        assert_eq!(image_pod(&pod, None, Time::default()).name, "pod");
    }
}
