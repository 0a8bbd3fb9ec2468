//! A fake API server with a few objects. It uses no network, so it works on a paused clock.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, pending, ready};
use futures_util::stream;
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::Instant;
use tower_service::Service;

/// The server. Clones share its state.
#[derive(Clone, Default)]
pub(super) struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    /// The objects, by resource and name.
    objects: BTreeMap<(&'static str, String), Value>,
    version: u64,
    /// Verbs and resources that the caller has no rights for.
    pub(super) forbidden: BTreeSet<(&'static str, &'static str)>,
    pub(super) outage: Option<Outage>,
    /// Every new watch ends as soon as it is opened.
    pub(super) watches_end_at_once: bool,
    /// The open watches. A watch that a test removes from this list stays open but reports nothing.
    pub(super) watches: Vec<(&'static str, UnboundedSender<io::Result<Bytes>>)>,
    /// The requests so far: the time, and `VERB RESOURCE`.
    requests: Vec<(Instant, String)>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Outage {
    Refused,
    Hanging,
}

pub(super) const SLICES: &str = "endpointslices";
pub(super) const ENDPOINTS: &str = "endpoints";
const SERVICES: &str = "services";

type Answer = BoxFuture<'static, io::Result<Response<UnsyncBoxBody<Bytes, io::Error>>>>;

impl FakeApi {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Creates or replaces a slice of ready addresses.
    pub(super) fn put_slice(&self, name: &str, addresses: &[&str]) {
        let endpoints: Vec<_> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        self.state().put(SLICES, name, json!({"addressType": "IPv4", "endpoints": endpoints}));
    }

    /// Creates or replaces the `Endpoints` object.
    pub(super) fn put_endpoints(&self, addresses: &[&str]) {
        let addresses: Vec<_> = addresses.iter().map(|address| json!({"ip": address})).collect();
        self.state().put(ENDPOINTS, "runners", json!({"subsets": [{"addresses": addresses}]}));
    }

    pub(super) fn put_service(&self) {
        self.state().put(SERVICES, "runners", json!({}));
    }

    /// Ends all watches. Each sends the result of `last` first, unless that is `None`.
    pub(super) fn end_watches(&self, last: impl Fn() -> Option<io::Result<Bytes>>) {
        for (_, watch) in self.state().watches.drain(..) {
            let _ = last().map(|last| watch.send(last));
        }
    }

    /// Interrupts the connections of all watches.
    pub(super) fn break_watches(&self) {
        self.end_watches(|| Some(Err(io::ErrorKind::ConnectionReset.into())));
    }

    /// Ends all watches with the error that their version is too old.
    pub(super) fn expire_watches(&self) {
        let expired = json!({"type": "ERROR", "object": status(410, "Expired")});
        self.end_watches(|| Some(Ok(format!("{expired}\n").into())));
    }

    /// The times of the requests `VERB RESOURCE`.
    pub(super) fn request_times(&self, request: &str) -> Vec<Instant> {
        self.state().requests.iter().filter(|(_, made)| made == request).map(|(at, _)| *at).collect()
    }
}

impl Service<Request<Body>> for FakeApi {
    type Response = Response<UnsyncBoxBody<Bytes, io::Error>>;
    type Error = io::Error;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        self.state().answer(request.uri())
    }
}

impl State {
    fn put(&mut self, resource: &'static str, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"] = json!({"name": name, "resourceVersion": self.version.to_string()});
        self.objects.insert((resource, name.to_owned()), object.clone());
        self.report(resource, "MODIFIED", &object);
    }

    pub(super) fn delete(&mut self, resource: &'static str, name: &str) {
        self.version += 1;
        let mut object = self.objects.remove(&(resource, name.to_owned())).expect("the object exists");
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.report(resource, "DELETED", &object);
    }

    fn report(&mut self, resource: &str, event: &str, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": event, "object": object})));
        self.watches.retain(|(watched, watch)| *watched != resource || watch.send(Ok(line.clone())).is_ok());
    }

    fn answer(&mut self, uri: &Uri) -> Answer {
        let query = uri.query().unwrap_or_default();
        let parts: Vec<_> = uri.path().rsplit('/').collect();
        let (resource, selector) = match parts[..] {
            ["runners", "services", "ns", ..] => (SERVICES, ""),
            [SLICES, "ns", ..] => (SLICES, "labelSelector=kubernetes.io%2Fservice-name%3Drunners"),
            [ENDPOINTS, "ns", ..] => (ENDPOINTS, "fieldSelector=metadata.name%3Drunners"),
            _ => panic!("{uri}"),
        };
        assert!(query.contains(selector), "{uri}");
        let list_or_watch = if query.contains("watch=true") { "watch" } else { "list" };
        let verb = if resource == SERVICES { "get" } else { list_or_watch };
        self.requests.push((Instant::now(), format!("{verb} {resource}")));
        match self.outage {
            Some(Outage::Refused) => return ready(Err(io::ErrorKind::ConnectionRefused.into())).boxed(),
            Some(Outage::Hanging) => return pending().boxed(),
            None if self.forbidden.contains(&(verb, resource)) => {
                return answer(403, &status(403, "Forbidden"));
            }
            None => {}
        }
        let mut objects =
            self.objects.iter().filter(|((of, _), _)| *of == resource).map(|(_, object)| object);
        match verb {
            "get" => match objects.next_back() {
                Some(object) => answer(200, object),
                None => answer(404, &status(404, "NotFound")),
            },
            "list" => {
                let metadata = json!({"resourceVersion": self.version.to_string()});
                answer(200, &json!({"metadata": metadata, "items": objects.collect::<Vec<_>>()}))
            }
            _ => {
                assert!(query.contains("timeoutSeconds=60"), "{query}");
                let (sender, receiver) = mpsc::unbounded_channel();
                if !self.watches_end_at_once {
                    let since = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
                    let since: u64 = since.unwrap().parse().unwrap();
                    for object in objects {
                        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
                        if version.parse::<u64>().unwrap() > since {
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

fn status(code: u16, reason: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code,
    })
}

fn answer(code: u16, value: &Value) -> Answer {
    let body = Full::from(value.to_string()).map_err(|never: Infallible| match never {}).boxed_unsync();
    ready(Ok(Response::builder().status(code).body(body).unwrap())).boxed()
}
