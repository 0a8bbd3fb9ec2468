//! Reads the API server's audit log, so that tests can count a user's requests.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use serde_json::Value;

use crate::process::eventually;

/// The audit log, and a client whose requests mark times in this log.
#[derive(Clone)]
pub struct Audit {
    path: PathBuf,
    client: Client,
}

/// A time in the log.
#[derive(Debug, Clone)]
pub struct Mark {
    offset: u64,
    received: String,
}

/// One request. A watch is one request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// `admin` or `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Such as `pods` or `pods/status`. Empty for a path that is no resource.
    pub resource: String,
    /// Empty for a resource without namespaces.
    pub namespace: String,
    /// Empty for lists.
    pub name: String,
    pub code: u16,
}

#[derive(Debug)]
struct Event {
    id: String,
    received: String,
    request: Request,
}

// === impl Audit ===

impl Audit {
    pub(super) fn new(path: PathBuf, client: Client) -> Self {
        Self { path, client }
    }

    pub async fn mark(&self) -> Mark {
        // All requests before this offset precede the request that `log_marker` sends.
        // The offset may be inside a line; `read` ignores the rest of that line, because it is no
        // JSON.
        let offset = std::fs::metadata(&self.path).expect("there is an audit log").len();
        self.log_marker(offset).await
    }

    /// The requests that the API server has received since the mark, in the order of its responses.
    pub async fn since(&self, mark: &Mark) -> Vec<Request> {
        let now = self.log_marker(mark.offset).await;
        between(read(&self.path, mark.offset).0, &mark.received, &now.received)
    }

    /// Sends a request with a unique name, and waits until it is in the log.
    async fn log_marker(&self, offset: u64) -> Mark {
        static MARKERS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("marker-{}-{}", std::process::id(), MARKERS.fetch_add(1, Ordering::Relaxed));
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "default");
        maps.get_opt(&name).await.expect("the API server answers");
        eventually("the request is in the audit log", async || {
            let (events, end) = read(&self.path, offset);
            let marker = events.into_iter().find(|event| event.request.name == name)?;
            Some(Mark { offset: end, received: marker.received })
        })
        .await
    }
}

/// The events from an offset on, and the offset of the end of the last complete event.
fn read(path: &Path, offset: u64) -> (Vec<Event>, u64) {
    let mut text = Vec::new();
    let mut file = File::open(path).expect("the audit log can be opened");
    file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_to_end(&mut text)).expect("a readable log");
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let lines = text[..whole].split(|&byte| byte == b'\n');
    (lines.filter_map(|line| event(&serde_json::from_slice(line).ok()?)).collect(), offset + whole as u64)
}

/// The requests received after `from` and before `to`, each once. All times have the same width, so
/// they can be compared as text.
fn between(events: Vec<Event>, from: &str, to: &str) -> Vec<Request> {
    // A watch has two events: one for its start and one for its end.
    let mut seen = BTreeSet::new();
    let events =
        events.into_iter().filter(|event| event.received.as_str() > from && event.received.as_str() < to);
    events.filter(|event| seen.insert(event.id.clone())).map(|event| event.request).collect()
}

fn event(line: &Value) -> Option<Event> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &line["objectRef"];
    let mut resource = text(&object["resource"]);
    if let Some(part) = object["subresource"].as_str() {
        resource = format!("{resource}/{part}");
    }
    let code = line["responseStatus"]["code"].as_u64().and_then(|code| code.try_into().ok());
    Some(Event {
        id: line["auditID"].as_str()?.to_owned(),
        received: line["requestReceivedTimestamp"].as_str()?.to_owned(),
        request: Request {
            user: text(&line["user"]["username"]),
            verb: text(&line["verb"]),
            resource,
            namespace: text(&object["namespace"]),
            name: text(&object["name"]),
            code: code.unwrap_or_default(),
        },
    })
}
