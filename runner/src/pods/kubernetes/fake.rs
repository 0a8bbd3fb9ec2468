//! Parts that tests share: an API server and a registry in this process, and pods as the kubelet
//! reports them.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::client::Body;
use porch_fn_image::Image;
use porch_fn_registry::{Images, Metadata, Registry, RegistryError};
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::codegen::Service;

use super::names;
use crate::pods::commands::ImageCommands;
use crate::pods::images::ImageSource;

pub(super) const IMAGE: &str = "example.com/f:v1";

/// The code and the body of an answer; `None` if the server never answers.
pub(super) type Answer = Option<(u16, String)>;

struct Server<F>(Arc<F>);

/// Returns a client of an API server that answers requests with this function.
pub(super) fn client(answer: impl Fn(&Method, &Uri, &[u8]) -> Answer + Send + Sync + 'static) -> Client {
    Client::new(Server(Arc::new(answer)), "functions")
}

/// An answer that reports a failure.
pub(super) fn failure(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code,
        "details": { "retryAfterSeconds": if code == 429 { 5 } else { 0 } },
    });
    serde_json::to_string(&status).ok().map(|text| (code, text))
}

impl<F: Fn(&Method, &Uri, &[u8]) -> Answer + Send + Sync + 'static> Service<Request<Body>> for Server<F> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = Arc::clone(&self.0);
        let answer = async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            match answer(&head.method, &head.uri, &body) {
                Some((code, text)) => {
                    Ok(Response::builder().status(code).body(Body::from(text.into_bytes())).unwrap())
                }
                None => pending().await,
            }
        };
        answer.boxed()
    }
}

/// A registry that has every image.
#[derive(Debug, Default)]
pub(super) struct FakeRegistry {
    pub(super) delay: Duration,
    pub(super) requests: AtomicUsize,
}

impl Registry for FakeRegistry {
    fn metadata<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (digest, command) = ("sha256:00".into(), vec!["f".to_owned()]);
        let metadata = Metadata { digest, command, since: SystemTime::now() };
        async { sleep(self.delay).await }.map(|()| Ok(metadata)).boxed()
    }

    fn digest<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        ready(Ok("sha256:00".into())).boxed()
    }

    fn tags<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        ready(Err(RegistryError::NotFound)).boxed()
    }
}

pub(super) fn images(registry: FakeRegistry) -> (Arc<ImageSource>, Arc<FakeRegistry>) {
    let registry = Arc::new(registry);
    let registries = Images::new(Arc::clone(&registry) as Arc<dyn Registry>, Duration::from_mins(10));
    let registries = Some(Arc::new(registries));
    (Arc::new(ImageSource { file: ImageCommands::default(), registries }), registry)
}

/// A function pod of [`IMAGE`] with this version and status.
pub(super) fn pod(uid: &str, version: u32, status: &Value) -> Pod {
    let object = json!({
        "metadata": {
            "name": "fn", "uid": uid, "resourceVersion": version.to_string(),
            "labels": { names::MANAGED_BY: names::MANAGER },
            "annotations": { names::IMAGE_REFERENCE: IMAGE, names::SLOT: "0" },
        },
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

pub(super) fn container(name: &str, restarts: i32, state: &Value, last_state: &Value) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": restarts,
           "state": state, "lastState": last_state})
}

pub(super) fn waiting(reason: &str, message: &str) -> Value {
    json!({"waiting": {"reason": reason, "message": message}})
}

/// The status of a pod in which this container waits.
pub(super) fn pod_waits(name: &str, reason: &str, message: &str) -> Value {
    json!({"containerStatuses": [container(name, 0, &waiting(reason, message), &json!({}))]})
}
