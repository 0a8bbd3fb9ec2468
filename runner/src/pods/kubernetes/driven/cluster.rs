//! An API server for pods alone, in memory: a client's service, whose changes go straight into a
//! store.
//!
//! A pod that is created runs at once. One that is deleted ends a little later, as its processes
//! do.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use parking_lot::Mutex;
use porch_fn_pool::Uid;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tonic::codegen::Service;

use crate::pods::kubernetes::backend::Shared;
use crate::pods::kubernetes::names;

/// How long a pod takes to end.
const ENDS_AFTER: Duration = Duration::from_secs(2);

/// How long it may take, by its deletion timestamp.
const GRACE: Duration = Duration::from_secs(30);

/// The server. All its pods have one address.
#[derive(Clone)]
pub(super) struct FakeCluster {
    ip: IpAddr,
    /// Where its clock began, which is paused with that of the runner.
    began: (Instant, Timestamp),
    state: Arc<Mutex<State>>,
    /// Who watches.
    watcher: Arc<OnceLock<Weak<Shared>>>,
}

#[derive(Default)]
struct State {
    version: u64,
    pods: BTreeMap<String, Value>,
    /// Writes to pods of this image are refused, by one error after the other.
    refused_image: Option<String>,
    refusals: usize,
    /// Most pods that there were, with those that end.
    most: usize,
    /// When pods were deleted, by image.
    deleted: Vec<(String, Instant)>,
}

impl FakeCluster {
    pub(super) fn new(ip: IpAddr) -> Self {
        Self { ip, began: (Instant::now(), Timestamp::now()), state: Arc::default(), watcher: Arc::default() }
    }

    fn now(&self) -> Timestamp {
        self.began.1 + self.began.0.elapsed()
    }

    /// Has `shared` hear of every change.
    pub(super) fn watched_by(&self, shared: &Arc<Shared>) {
        self.watcher.set(Arc::downgrade(shared)).unwrap();
    }

    /// From now on a webhook refuses what is written to pods of the image.
    pub(super) fn refuse(&self, image: Option<&str>) {
        self.state.lock().refused_image = image.map(str::to_owned);
    }

    pub(super) fn refusals(&self) -> usize {
        self.state.lock().refusals
    }

    /// Most pods at once.
    pub(super) fn most_pods(&self) -> usize {
        self.state.lock().most
    }

    /// From now on.
    pub(super) fn count_anew(&self) {
        let mut state = self.state.lock();
        state.most = 0;
        state.count();
    }

    pub(super) fn deleted(&self) -> Vec<(String, Instant)> {
        self.state.lock().deleted.clone()
    }

    /// An annotation of each pod.
    pub(super) fn annotations(&self, name: &str) -> Vec<String> {
        let state = self.state.lock();
        state.pods.values().map(|pod| annotation(pod, name).to_owned()).collect()
    }

    fn tell(&self, pod: &Value) {
        if let Some(shared) = self.watcher.get().and_then(Weak::upgrade) {
            shared.store.pod_seen(&serde_json::from_value::<Pod>(pod.clone()).unwrap());
        }
    }

    fn answer(&self, method: &Method, path: &str, body: &Bytes) -> Response<Body> {
        let name = path.rsplit_once("/pods/").map(|(_, name)| name);
        let sent: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut state = self.state.lock();
        let of = name.and_then(|name| state.pods.get(name)).unwrap_or(&sent);
        let image = annotation(of, names::IMAGE_REFERENCE).to_owned();
        if method != Method::GET && state.refused_image.as_ref() == Some(&image) {
            state.refusals += 1;
            let (code, reason) = match state.refusals % 2 {
                0 => (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
                _ => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            };
            return failure(code, reason);
        }
        match (method, name) {
            (&Method::POST, None) => {
                let name = sent["metadata"]["name"].as_str().unwrap().to_owned();
                if state.pods.contains_key(&name) {
                    return failure(StatusCode::CONFLICT, "AlreadyExists");
                }
                let pod = state.create(name, sent, self.ip);
                drop(state);
                self.tell(&pod);
                success(StatusCode::CREATED, &pod)
            }
            (_, None) => failure(StatusCode::NOT_FOUND, "NotFound"),
            (method, Some(name)) => {
                let Some(pod) = state.pods.get(name).cloned() else {
                    return failure(StatusCode::NOT_FOUND, "NotFound");
                };
                if method == Method::GET {
                    return success(StatusCode::OK, &pod);
                }
                let judged = if method == Method::PATCH { &sent["metadata"] } else { &sent["preconditions"] };
                let metadata = &pod["metadata"];
                if judged["uid"] != metadata["uid"]
                    || judged["resourceVersion"] != metadata["resourceVersion"]
                {
                    return failure(StatusCode::CONFLICT, "Conflict");
                }
                let pod = if method == Method::PATCH {
                    let until = &sent["metadata"]["annotations"][names::RECLAIM_AFTER];
                    state.change(name, &["annotations", names::RECLAIM_AFTER], until.clone())
                } else {
                    state.deleted.push((image, Instant::now()));
                    let ends = json!((self.now() + GRACE).to_string());
                    tokio::spawn(self.clone().end(name.to_owned()));
                    state.change(name, &["deletionTimestamp"], ends)
                };
                drop(state);
                self.tell(&pod);
                success(StatusCode::OK, &pod)
            }
        }
    }

    async fn end(self, name: String) {
        sleep(ENDS_AFTER).await;
        let pod = self.state.lock().pods.remove(&name).unwrap();
        if let Some(shared) = self.watcher.get().and_then(Weak::upgrade) {
            shared.store.pod_gone(&Uid::from(pod["metadata"]["uid"].as_str().unwrap()));
        }
    }
}

impl State {
    fn create(&mut self, name: String, mut pod: Value, ip: IpAddr) -> Value {
        self.version += 1;
        pod["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        pod["status"] = json!({ "phase": "Running", "podIP": ip.to_string() });
        self.pods.insert(name, pod.clone());
        self.count();
        pod
    }

    fn change(&mut self, name: &str, path: &[&str], value: Value) -> Value {
        self.version += 1;
        let pod = self.pods.get_mut(name).unwrap();
        *path.iter().fold(&mut pod["metadata"], |at, key| &mut at[key]) = value;
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        pod.clone()
    }

    fn count(&mut self) {
        self.most = self.most.max(self.pods.len());
    }
}

impl Service<Request<Body>> for FakeCluster {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let cluster = self.clone();
        let answer = async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Ok(cluster.answer(&head.method, head.uri.path(), &body))
        };
        answer.boxed()
    }
}

fn annotation<'a>(pod: &'a Value, name: &str) -> &'a str {
    pod["metadata"]["annotations"][name].as_str().unwrap_or_default()
}

fn success(code: StatusCode, object: &Value) -> Response<Body> {
    Response::builder().status(code).body(Body::from(object.to_string().into_bytes())).unwrap()
}

/// What a webhook that fails says, by way of the API server.
fn failure(code: StatusCode, reason: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": reason, "message": "failed calling webhook", "code": code.as_u16(),
        "details": { "retryAfterSeconds": 5 },
    });
    success(code, &status)
}
