//! A fake API server with only pods and their Services. It supports the parts of the API that a
//! runner uses.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Collected, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use porch_fn_tests::cluster::status;
use porch_fn_tests::process::Sandbox;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

use super::objects::{NAMESPACE, Pod};

type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// A handle to the server that can also change its objects.
#[derive(Clone)]
pub(crate) struct Api(Arc<Shared>);

struct Shared {
    address: std::net::SocketAddr,
    state: Mutex<State>,
    /// The newest resource version. Open watches wait until it changes.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    version: u64,
    pods: BTreeMap<String, Pod>,
    /// Watch events: the resource version and the JSON line of each.
    pod_events: Vec<(u64, Bytes)>,
    service_events: Vec<(u64, Bytes)>,
    /// A watch of pods has expired if it began before this version.
    expired: u64,
    /// When the runner began its last list of pods, and when it began the watch after that list.
    listed: Option<Instant>,
    watched: Option<Instant>,
}

// === impl Api ===

impl Api {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = Self(Arc::new(Shared { address, state: Mutex::default(), changed: watch::Sender::new(0) }));
        let served = api.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let api = served.clone();
                let answer = service_fn(move |request| {
                    let api = api.clone();
                    async move { Ok::<_, std::convert::Infallible>(api.answer(request).await) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        api
    }

    pub(crate) fn kubeconfig(&self, sandbox: &Sandbox) -> PathBuf {
        sandbox.kubeconfig(&format!("http://{}", self.0.address))
    }

    /// Adds ready pods, each with its Service.
    pub(crate) fn add(&self, pods: impl IntoIterator<Item = (usize, usize)>) {
        let mut state = self.0.state.lock().unwrap();
        for (image, slot) in pods {
            state.version += 1;
            let pod = Pod::new(image, slot, state.pods.len(), state.version);
            state.record_event("ADDED", &pod);
            let service = format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", pod.service());
            let version = pod.version;
            state.service_events.push((version, service.into()));
            state.pods.insert(pod.name(), pod);
        }
        self.0.changed.send_replace(state.version);
    }

    /// Changes these pods, like a runner that writes reclaim-after or a kubelet that writes the
    /// status.
    pub(crate) fn touch(&self, names: &[String]) {
        let mut state = self.0.state.lock().unwrap();
        for name in names {
            state.version += 1;
            let version = state.version;
            let pod = state.pods.get_mut(name).unwrap();
            (pod.version, pod.pushed) = (version, SystemTime::now());
            let pod = pod.clone();
            state.record_event("MODIFIED", &pod);
        }
        self.0.changed.send_replace(state.version);
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.state.lock().unwrap().pods.keys().cloned().collect()
    }

    /// Ends the watches of pods, so that the runner has to list all pods again.
    pub(crate) fn expire_watches(&self) {
        let mut state = self.0.state.lock().unwrap();
        (state.listed, state.watched) = (None, None);
        state.version += 1;
        state.expired = state.version;
        self.0.changed.send_replace(state.version);
    }

    /// When the runner requested the first page of its last list of pods, and when it began the
    /// next watch. Before that watch, the runner has processed the whole list.
    pub(crate) fn last_list(&self) -> Option<(Instant, Instant)> {
        let state = self.0.state.lock().unwrap();
        state.listed.zip(state.watched)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
        let path = head.uri.path().to_owned();
        let query = Query(head.uri.query().unwrap_or_default());
        let prefix = format!("/api/v1/namespaces/{NAMESPACE}/");
        let what = path.strip_prefix(&prefix).map(|rest| match rest.split_once('/') {
            Some((kind, name)) => (kind, Some(name)),
            None => (rest, None),
        });
        let watches = matches!(query.get("watch"), Some("true" | "1"));
        match (&head.method, what) {
            (&Method::GET, Some((kind @ ("pods" | "services"), None))) if watches => {
                self.watch(kind == "pods", &query)
            }
            (&Method::GET, Some((kind @ ("pods" | "services"), None))) => self.list(kind == "pods", &query),
            (&Method::GET, Some((kind @ ("pods" | "services"), Some(name)))) => {
                self.get(kind == "pods", name)
            }
            // A runner that sees a pod before the pod's Service tries to create the Service.
            (&Method::POST, Some(("services", None))) => failure(StatusCode::CONFLICT, "AlreadyExists"),
            (&Method::PATCH, Some(("pods", Some(name)))) => self.push(name, &body),
            _ => failure(StatusCode::NOT_FOUND, "NotFound"),
        }
    }

    fn list(&self, of_pods: bool, query: &Query<'_>) -> Response<Body> {
        let limit: usize = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
        let from: usize = query.get("continue").and_then(|from| from.parse().ok()).unwrap_or(0);
        let mut state = self.0.state.lock().unwrap();
        if of_pods && from == 0 {
            (state.listed, state.watched) = (Some(Instant::now()), None);
        }
        let version = state.version;
        let left = state.pods.len().saturating_sub(from);
        let page: Vec<Pod> = state.pods.values().skip(from).take(limit).cloned().collect();
        drop(state);
        let items: Vec<_> = page.iter().map(|pod| if of_pods { pod.json() } else { pod.service() }).collect();
        let next = if left > limit { (from + limit).to_string() } else { String::new() };
        let list = if of_pods { "PodList" } else { "ServiceList" };
        let text = format!(
            r#"{{"kind":"{list}","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{}]}}"#,
            items.join(",")
        );
        ok(text)
    }

    fn watch(&self, of_pods: bool, query: &Query<'_>) -> Response<Body> {
        let from: u64 = query.get("resourceVersion").and_then(|from| from.parse().ok()).unwrap_or(0);
        let seconds = query.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(60);
        if of_pods {
            self.0.state.lock().unwrap().watched = Some(Instant::now());
        }
        let shared = Arc::clone(&self.0);
        let changes = shared.changed.subscribe();
        let until = Instant::now() + Duration::from_secs(seconds);
        let next = move |(shared, mut changes, from): (Arc<Shared>, watch::Receiver<u64>, u64)| async move {
            if from == u64::MAX {
                return None;
            }
            loop {
                changes.borrow_and_update();
                let events = shared.state.lock().unwrap().after(of_pods, from);
                if let Some((lines, last)) = events {
                    return Some((Ok(Frame::data(lines)), (shared, changes, last)));
                }
                tokio::select! {
                    _ = changes.changed() => {}
                    () = tokio::time::sleep_until(until) => return None,
                }
            }
        };
        Response::new(StreamBody::new(stream::unfold((shared, changes, from), next)).boxed_unsync())
    }

    fn get(&self, of_pods: bool, name: &str) -> Response<Body> {
        let pod = self.0.state.lock().unwrap().pods.get(name).cloned();
        let Some(pod) = pod else { return failure(StatusCode::NOT_FOUND, "NotFound") };
        ok(if of_pods { pod.json() } else { pod.service() })
    }

    fn push(&self, name: &str, patch: &Bytes) -> Response<Body> {
        let patch: Value = serde_json::from_slice(patch).unwrap();
        let metadata = &patch["metadata"];
        let mut state = self.0.state.lock().unwrap();
        let version = state.version + 1;
        let Some(pod) = state.pods.get_mut(name) else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        if metadata["resourceVersion"].as_str() != Some(&pod.version.to_string()) {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        pod.version = version;
        pod.reclaim_after = metadata["annotations"]["fn.kpt.dev/reclaim-after"].as_str().map(str::to_owned);
        let pod = pod.clone();
        state.version = version;
        state.record_event("MODIFIED", &pod);
        self.0.changed.send_replace(version);
        ok(pod.json())
    }
}

// === impl State ===

impl State {
    fn record_event(&mut self, kind: &str, pod: &Pod) {
        let line = format!("{{\"type\":\"{kind}\",\"object\":{}}}\n", pod.json());
        self.pod_events.push((pod.version, line.into()));
    }

    /// The watch events after `version`, and the version of the last event.
    fn after(&self, of_pods: bool, version: u64) -> Option<(Bytes, u64)> {
        if of_pods && version < self.expired {
            let event = json!({"type": "ERROR", "object": status(StatusCode::GONE, "Expired")});
            return Some((Bytes::from(format!("{event}\n")), u64::MAX));
        }
        let events = if of_pods { &self.pod_events } else { &self.service_events };
        let from = events.partition_point(|(of, _)| *of <= version);
        let lines: Vec<_> = events[from..].iter().map(|(_, line)| line.clone()).collect();
        let (last, _) = events.last().filter(|_| !lines.is_empty())?;
        Some((lines.concat().into(), *last))
    }
}

struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

fn ok(text: String) -> Response<Body> {
    Response::new(Full::new(Bytes::from(text)).boxed_unsync())
}

fn failure(code: StatusCode, reason: &str) -> Response<Body> {
    let mut response = ok(status(code, reason).to_string());
    *response.status_mut() = code;
    response
}
