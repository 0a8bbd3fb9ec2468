//! Tests the effect of a pod's failure on its image: whether the registry is queried again.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::*;
use crate::pods::kubernetes::fake::{self, FakeRegistry, IMAGE, container, pod_waits};
use crate::pods::kubernetes::names;

struct Setup {
    registry: Arc<FakeRegistry>,
    store: Store,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Setup {
    async fn new() -> Self {
        let (images, registry) = fake::images(FakeRegistry::default());
        let (sender, events) = mpsc::unbounded_channel();
        let setup = Self { registry, store: Store::new(Connect::PodIp, None, images, sender), events };
        assert_eq!(setup.requests().await, 1);
        setup
    }

    /// Asks for the image's metadata, like for a new pod. Returns the number of requests to the
    /// registry.
    async fn requests(&self) -> usize {
        self.store.images.metadata(&IMAGE.into()).await.unwrap();
        self.registry.requests.swap(0, Ordering::Relaxed)
    }
}

/// A pod whose container waits with this reason and message.
fn pod(uid: &str, version: u32, container: &str, reason: &str, message: &str) -> Pod {
    fake::pod(uid, version, &pod_waits(container, reason, message))
}

const GONE: &str = "failed to resolve reference \"a.b/fn@sha256:one\": a.b/fn@sha256:one: not found";

#[tokio::test]
async fn the_registry_is_queried_again_after_a_node_did_not_find_an_image() {
    let mut it = Setup::new().await;
    it.store.record_pod(&pod("one", 1, names::CONTAINER, "ErrImagePull", GONE));
    // After this event the pool may create another pod, so the image's metadata must already count
    // as wrong.
    assert!(matches!(it.events.try_recv(), Ok(Event::Seen(_))));
    assert_eq!(it.requests().await, 1);
    // Each pod causes only one new query.
    it.store.record_pod(&pod("one", 2, names::CONTAINER, "ImagePullBackOff", GONE));
    it.store.replace_pods(&[pod("one", 3, names::CONTAINER, "ErrImagePull", GONE)]);
    assert_eq!(it.requests().await, 0);
    it.store.replace_pods(&[pod("two", 4, names::CONTAINER, "ErrImagePull", GONE)]);
    assert_eq!(it.requests().await, 1);
}

#[tokio::test]
async fn other_failures_do_not_affect_the_image() {
    for (container, reason, message) in [
        (names::CONTAINER, "ErrImagePull", "dial tcp: i/o timeout"),
        (names::CONTAINER, "CreateContainerConfigError", "secret \"x\" not found"),
        (names::WRAPPER_CONTAINER, "ErrImagePull", GONE),
    ] {
        let it = Setup::new().await;
        for version in 1..5 {
            it.store.record_pod(&pod("one", version, container, reason, message));
        }
        assert_eq!(it.requests().await, 0, "{container} {reason}");
    }
}

#[tokio::test]
async fn the_status_page_gets_the_clusters_message_until_the_pod_runs() {
    let it = Setup::new().await;
    let uid = Uid::from("one");
    let cause = || it.store.facts(&uid).and_then(|facts| facts.cause);
    assert_eq!(it.store.facts(&uid), None);
    it.store.record_pod(&pod("one", 1, names::CONTAINER, "ContainerCreating", ""));
    let facts = PodFacts { name: "fn".to_owned(), created: None, cause: None };
    assert_eq!(it.store.facts(&uid), Some(facts));
    it.store.record_pod(&pod("one", 2, names::CONTAINER, "ErrImagePull", GONE));
    let expected = format!("container function: ErrImagePull: {GONE}");
    assert_eq!(cause(), Some(expected.clone()));
    it.store.record_pod(&pod("one", 3, names::CONTAINER, "ImagePullBackOff", "Back-off pulling image"));
    assert_eq!(cause(), Some(expected), "the first message explains the failure");

    let end = json!({"terminated": {"exitCode": 7, "reason": "Error", "message": "no such file\n"}});
    let ended = json!({"phase": "Failed", "containerStatuses": [container("function", 0, &end, &json!({}))]});
    it.store.record_pod(&fake::pod("two", 4, &ended));
    let facts = it.store.facts(&"two".into()).unwrap();
    assert_eq!(facts.cause.as_deref(), Some("container function: Error, exit code 7: no such file"));
}
