//! What a pod's failure says of its image, which decides whether the registry is asked again.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use porch_fn_image::Image;
use porch_fn_registry::{Images, Metadata, Registry, RegistryError};
use serde_json::{Value, json};

use super::*;
use crate::pods::kubernetes::names;

const IMAGE: &str = "a.b/fn:v1";

/// Has every image, and counts how often it is asked.
#[derive(Debug, Default)]
struct Asked(Mutex<usize>);

impl Registry for Asked {
    fn metadata<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>> {
        *self.0.lock() += 1;
        let metadata = Metadata { digest: "sha256:one".into(), command: vec!["/fn".to_owned()] };
        std::future::ready(Ok(metadata)).boxed()
    }

    fn digest<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        *self.0.lock() += 1;
        std::future::ready(Ok("sha256:one".into())).boxed()
    }

    fn tags<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        std::future::ready(Err(RegistryError::NotFound)).boxed()
    }
}

struct Setup {
    asked: Arc<Asked>,
    images: Arc<ImageSource>,
    store: Store,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Setup {
    async fn new() -> Self {
        let asked = Arc::new(Asked::default());
        let images = Images::new(Arc::clone(&asked) as Arc<dyn Registry>, Duration::from_mins(10));
        let images = Arc::new(ImageSource::new(Arc::default(), images));
        let (sender, events) = mpsc::unbounded_channel();
        let store = Store::new(Connect::PodIp, sender).doubting(Arc::clone(&images));
        let setup = Self { asked, images, store, events };
        assert_eq!(setup.questions().await, 1);
        setup
    }

    /// How often the registry is asked for the next pod.
    async fn questions(&self) -> usize {
        self.images.metadata(&IMAGE.into()).await.unwrap();
        std::mem::take(&mut *self.asked.0.lock())
    }
}

/// In its state of this version its container waits so.
fn pod(uid: &str, version: u32, container: &str, reason: &str, message: &str) -> Pod {
    let object: Value = json!({
        "metadata": {
            "name": "fn", "uid": uid, "resourceVersion": version.to_string(),
            "labels": { names::MANAGED_BY: names::MANAGER },
            "annotations": { names::IMAGE_REFERENCE: IMAGE, names::SLOT: "0" },
        },
        "status": {
            "phase": "Pending",
            "containerStatuses": [{
                "name": container, "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "waiting": { "reason": reason, "message": message } },
            }],
        },
    });
    serde_json::from_value(object).unwrap()
}

const GONE: &str = "failed to resolve reference \"a.b/fn@sha256:one\": a.b/fn@sha256:one: not found";

#[tokio::test]
async fn an_image_that_a_node_did_not_find_is_asked_for_again() {
    let mut it = Setup::new().await;
    it.store.pod_seen(&pod("one", 1, names::CONTAINER, "ErrImagePull", GONE));
    // Before the pool orders another pod.
    assert!(matches!(it.events.try_recv(), Ok(Event::Seen(_))));
    assert_eq!(it.questions().await, 1);
    // Once for each pod.
    it.store.pod_seen(&pod("one", 2, names::CONTAINER, "ImagePullBackOff", GONE));
    it.store.pods_listed(&[pod("one", 3, names::CONTAINER, "ErrImagePull", GONE)]);
    assert_eq!(it.questions().await, 0);
    it.store.pods_listed(&[pod("two", 4, names::CONTAINER, "ErrImagePull", GONE)]);
    assert_eq!(it.questions().await, 1);
}

#[tokio::test]
async fn other_failures_say_nothing_of_the_image() {
    for (container, reason, message) in [
        (names::CONTAINER, "ErrImagePull", "dial tcp: i/o timeout"),
        (names::CONTAINER, "CreateContainerConfigError", "secret \"x\" not found"),
        (names::WRAPPER_CONTAINER, "ErrImagePull", GONE),
    ] {
        let it = Setup::new().await;
        for version in 1..5 {
            it.store.pod_seen(&pod("one", version, container, reason, message));
        }
        assert_eq!(it.questions().await, 0, "{container} {reason}");
    }
}
