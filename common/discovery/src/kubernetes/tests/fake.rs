//! An API server of a few objects, without a network: so a paused clock does for it too.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, pending, ready};
use futures_util::stream;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::Instant;
use tower_service::Service;

/// The server. Its clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub(super) struct State {
    /// By resource and name.
    objects: BTreeMap<(&'static str, String), Value>,
    version: u64,
    /// Verbs and resources.
    pub(super) forbidden: BTreeSet<(&'static str, &'static str)>,
    pub(super) down: Option<Down>,
    /// A watch ends as soon as it is open.
    pub(super) watches_end: bool,
    watches: Vec<(&'static str, UnboundedSender<io::Result<Bytes>>)>,
    /// `VERB RESOURCE`, and when.
    pub(super) asked: Vec<(Instant, String)>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Down {
    Refuses,
    Hangs,
}

pub(super) const SLICES: &str = "endpointslices";
pub(super) const ENDPOINTS: &str = "endpoints";
const SERVICES: &str = "services";

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

// === impl Fake ===

impl Fake {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A slice of ready addresses.
    pub(super) fn slice(&self, name: &str, addresses: &[&str]) {
        let endpoints: Vec<_> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        self.state().put(SLICES, name, json!({"addressType": "IPv4", "endpoints": endpoints}));
    }

    /// The older kind of object.
    pub(super) fn endpoints(&self, addresses: &[&str]) {
        let addresses: Vec<_> = addresses.iter().map(|address| json!({"ip": address})).collect();
        self.state().put(ENDPOINTS, "runners", json!({"subsets": [{"addresses": addresses}]}));
    }

    pub(super) fn service(&self) {
        self.state().put(SERVICES, "runners", json!({}));
    }

    /// Who watches does not hear of the next changes.
    pub(super) fn forget_watches(&self) -> impl Sized + use<> {
        std::mem::take(&mut self.state().watches)
    }

    /// All watches end, or break off.
    pub(super) fn end_watches(&self, broken: bool) {
        for (_, watch) in self.state().watches.drain(..) {
            if broken {
                let _ = watch.send(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
    }

    /// All watches hear that their version is too old.
    pub(super) fn expire_watches(&self) {
        let expired = json!({"type": "ERROR", "object": {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410,
        }});
        for (_, watch) in self.state().watches.drain(..) {
            let _ = watch.send(Ok(format!("{expired}\n").into()));
        }
    }

    /// When it was asked that.
    pub(super) fn asked(&self, what: &str) -> Vec<Instant> {
        self.state().asked.iter().filter(|(_, asked)| asked == what).map(|(at, _)| *at).collect()
    }
}

impl Service<Request<Body>> for Fake {
    type Response = Answer;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Answer>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.state().answer(request.uri())
    }
}

// === impl State ===

impl State {
    fn put(&mut self, resource: &'static str, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"] = json!({"name": name, "resourceVersion": self.version.to_string()});
        let before = self.objects.insert((resource, name.to_owned()), object.clone());
        self.tell(resource, if before.is_some() { "MODIFIED" } else { "ADDED" }, &object);
    }

    pub(super) fn delete(&mut self, resource: &'static str, name: &str) {
        self.version += 1;
        let mut object = self.objects.remove(&(resource, name.to_owned())).expect("it is there");
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.tell(resource, "DELETED", &object);
    }

    fn tell(&mut self, resource: &str, what: &str, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": what, "object": object})));
        self.watches.retain(|(watched, watch)| *watched != resource || watch.send(Ok(line.clone())).is_ok());
    }

    fn answer(&mut self, uri: &http::Uri) -> BoxFuture<'static, io::Result<Answer>> {
        let query = uri.query().unwrap_or_default().to_owned();
        let parts: Vec<_> = uri.path().rsplit('/').collect();
        let (verb, resource) = match parts[..] {
            ["runners", "services", "ns", ..] => ("get", SERVICES),
            [SLICES, "ns", ..] if query.contains("labelSelector=kubernetes.io%2Fservice-name%3Drunners") => {
                (if query.contains("watch=true") { "watch" } else { "list" }, SLICES)
            }
            [ENDPOINTS, "ns", ..] if query.contains("fieldSelector=metadata.name%3Drunners") => {
                (if query.contains("watch=true") { "watch" } else { "list" }, ENDPOINTS)
            }
            _ => panic!("{uri}"),
        };
        self.asked.push((Instant::now(), format!("{verb} {resource}")));
        match self.down {
            Some(Down::Refuses) => return ready(Err(io::ErrorKind::ConnectionRefused.into())).boxed(),
            Some(Down::Hangs) => return pending().boxed(),
            None => {}
        }
        if self.forbidden.contains(&(verb, resource)) {
            return failure(403, "Forbidden");
        }
        match verb {
            "get" => match self.objects.get(&(resource, "runners".to_owned())) {
                Some(object) => whole(200, object),
                None => failure(404, "NotFound"),
            },
            "list" => {
                let items: Vec<_> = self.objects.iter().filter(|((of, _), _)| *of == resource).collect();
                let items: Vec<_> = items.into_iter().map(|(_, object)| object.clone()).collect();
                let metadata = json!({"resourceVersion": self.version.to_string()});
                whole(200, &json!({"metadata": metadata, "items": items}))
            }
            _ => {
                assert!(query.contains("timeoutSeconds=60"), "{query}");
                let (sender, receiver) = mpsc::unbounded_channel();
                if !self.watches_end {
                    // As after the version that is asked for.
                    let since = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
                    let since: u64 = since.unwrap().parse().unwrap();
                    for ((of, _), object) in &self.objects {
                        let version: u64 =
                            object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                        if *of == resource && version > since {
                            let line = format!("{}\n", json!({"type": "MODIFIED", "object": object}));
                            let _ = sender.send(Ok(line.into()));
                        }
                    }
                    self.watches.push((resource, sender));
                }
                let frames = stream::unfold(receiver, |mut receiver| async {
                    receiver.recv().await.map(|bytes| (bytes.map(Frame::data), receiver))
                });
                ready(Ok(Response::new(StreamBody::new(frames).boxed_unsync()))).boxed()
            }
        }
    }
}

fn whole(code: u16, value: &Value) -> BoxFuture<'static, io::Result<Answer>> {
    let body = Full::from(value.to_string()).map_err(|never: Infallible| match never {}).boxed_unsync();
    ready(Ok(Response::builder().status(code).body(body).unwrap())).boxed()
}

fn failure(code: u16, reason: &str) -> BoxFuture<'static, io::Result<Answer>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason, "reason": reason, "code": code,
    });
    whole(code, &status)
}
