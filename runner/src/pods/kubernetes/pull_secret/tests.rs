//! The pull secret follows its file, leaves what is not ours, and is shown nowhere.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::codegen::Service;

use super::*;

const OLD: &str = r#"{"auths":{"a.b":{"auth":"b2xkOnBsYW50ZWQ="}}}"#;
const NEW: &str = r#"{"auths":{"a.b":{"auth":"bmV3OnBsYW50ZWQ="}}}"#;
const NAME: &str = "auth-secret";
const EVERY: Duration = Duration::from_mins(1);

fn content(text: &'static str, modified: Option<u64>) -> Content {
    Content { bytes: Bytes::from_static(text.as_bytes()), modified: modified.map(Time::from_millis) }
}

fn secret(text: &'static str, modified: Option<u64>) -> Secret {
    copy(Secret::default(), &content(text, modified))
}

#[test]
fn what_is_planned() {
    let changed = |change: fn(&mut Secret), mut secret: Secret| {
        change(&mut secret);
        secret
    };
    let immutable: fn(&mut Secret) = |secret| secret.immutable = Some(true);
    let opaque: fn(&mut Secret) = |secret| secret.type_ = Some("Opaque".to_owned());
    let empty: fn(&mut Secret) = |secret| secret.data = None;
    let other_key: fn(&mut Secret) = |secret| {
        let data = secret.data.take().unwrap().into_values().map(|data| ("config.json".to_owned(), data));
        secret.data = Some(data.collect());
    };
    let foreign: fn(&mut Secret) = |secret| secret.metadata = ObjectMeta::default();
    let unreadable_time: fn(&mut Secret) = |secret| {
        let annotations = secret.metadata.annotations.as_mut().unwrap();
        annotations.insert(names::CONFIG_TIME.to_owned(), "soon".to_owned());
    };
    let (old, new) = (secret(OLD, Some(1_000)), secret(NEW, Some(2_000)));
    for (what, existing, wanted, expected) in [
        ("nothing there", None, content(NEW, Some(2_000)), Plan::Create),
        ("the same", Some(new.clone()), content(NEW, Some(2_000)), Plan::Keep),
        ("the same of an earlier file", Some(old.clone()), content(OLD, Some(2_000)), Plan::Keep),
        ("the same of a later file", Some(new.clone()), content(NEW, Some(1_000)), Plan::Keep),
        ("the same of another's", Some(changed(foreign, new.clone())), content(NEW, None), Plan::Keep),
        ("the same, immutable", Some(changed(immutable, new.clone())), content(NEW, None), Plan::Keep),
        ("of an earlier file", Some(old.clone()), content(NEW, Some(2_000)), Plan::Update),
        ("of a file as old", Some(old.clone()), content(NEW, Some(1_000)), Plan::Update),
        ("of a later file", Some(new.clone()), content(OLD, Some(1_999)), Plan::NewerThere),
        ("our time is unknown", Some(new.clone()), content(OLD, None), Plan::NewerThere),
        ("no time at all", Some(secret(OLD, None)), content(NEW, None), Plan::Update),
        ("another's", Some(changed(foreign, new.clone())), content(OLD, Some(1_000)), Plan::Update),
        ("another's time", Some(changed(unreadable_time, new.clone())), content(OLD, Some(1)), Plan::Update),
        ("no data", Some(changed(empty, old.clone())), content(OLD, Some(1_000)), Plan::Update),
        ("another key", Some(changed(other_key, old.clone())), content(OLD, Some(1_000)), Plan::Update),
        ("immutable", Some(changed(immutable, old.clone())), content(NEW, Some(2_000)), Plan::Recreate),
        (
            "immutable and later",
            Some(changed(immutable, new.clone())),
            content(OLD, Some(1_000)),
            Plan::NewerThere,
        ),
        (
            "another's, of another type",
            Some(changed(foreign, changed(opaque, new.clone()))),
            content(NEW, Some(2_000)),
            Plan::Foreign,
        ),
        (
            "another's, immutable",
            Some(changed(foreign, changed(immutable, old.clone()))),
            content(NEW, Some(2_000)),
            Plan::Foreign,
        ),
        (
            "another's, immutable, the same",
            Some(changed(foreign, changed(immutable, new.clone()))),
            content(NEW, Some(2_000)),
            Plan::Keep,
        ),
        ("another type", Some(changed(opaque, new.clone())), content(NEW, Some(2_000)), Plan::Recreate),
        (
            "another type and later",
            Some(changed(opaque, new.clone())),
            content(OLD, Some(1_000)),
            Plan::Recreate,
        ),
        ("no type", Some(Secret { type_: None, ..new }), content(NEW, Some(2_000)), Plan::Recreate),
    ] {
        assert_eq!(plan(existing.as_ref(), &wanted), expected, "{what}");
    }
}

#[test]
fn a_copy_leaves_what_is_not_ours() {
    let existing = json!({
        "metadata": {
            "name": NAME, "uid": "u", "resourceVersion": "7", "labels": { "team": "a" },
            "annotations": { "note": "b", "fn.kpt.dev/config-time": "2020-01-01T00:00:00.000Z" },
        },
        "type": TYPE,
        "data": { "other": "b3RoZXI=" },
    });
    let existing: Secret = serde_json::from_value(existing).unwrap();
    let copied =
        serde_json::to_value(copy(existing.clone(), &content("{}", Some(1_700_000_000_123)))).unwrap();
    let expected = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": NAME, "uid": "u", "resourceVersion": "7",
            "labels": { "team": "a", "app.kubernetes.io/managed-by": "porch-fn-runner" },
            "annotations": { "note": "b", "fn.kpt.dev/config-time": "2023-11-14T22:13:20.123Z" },
        },
        "type": TYPE,
        "data": { "other": "b3RoZXI=", ".dockerconfigjson": "e30=" },
    });
    assert_eq!(copied, expected);
    let without_time = copy(existing, &content("{}", None)).metadata.annotations.unwrap();
    assert_eq!(without_time.into_keys().collect::<Vec<_>>(), ["note"]);
}

#[test]
fn no_secret_is_shown() {
    let shown = format!("{:?}", Some(content(OLD, Some(5))));
    assert_eq!(shown, "Some(Content { bytes: [45 bytes], modified: Some(Time(5)) })");
}

/// One Secret on an API server.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    secret: Option<Value>,
    version: u64,
    /// `GET`, `POST 201`, …
    log: Vec<String>,
    /// Answers instead of the true ones, for requests of the method.
    instead: VecDeque<(Method, u16, String)>,
    /// Done after the next GET, as if by another.
    meanwhile: Option<Value>,
}

impl Server {
    fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    fn put(&self, secret: impl serde::Serialize) {
        self.0.lock().store(serde_json::to_value(secret).unwrap());
    }

    fn fail(&self, method: Method, status: u16, text: &str) {
        self.0.lock().instead.push_back((method, status, text.to_owned()));
    }

    fn secret(&self) -> Option<Secret> {
        self.0.lock().secret.clone().map(|secret| serde_json::from_value(secret).unwrap())
    }

    fn text(&self) -> String {
        String::from_utf8(self.secret().unwrap().data.unwrap()[KEY].0.clone()).unwrap()
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().log)
    }
}

impl Stored {
    fn store(&mut self, mut secret: Value) {
        self.version += 1;
        let uid = self
            .secret
            .as_ref()
            .map_or(json!(format!("uid-{}", self.version)), |secret| secret["metadata"]["uid"].clone());
        secret["metadata"]["uid"] = uid;
        secret["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.secret = Some(secret);
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, String) {
        let collection = "/api/v1/namespaces/functions/secrets";
        let expected_path =
            if *method == Method::POST { collection.to_owned() } else { format!("{collection}/{NAME}") };
        assert_eq!(path, expected_path);
        if let Some(at) = self.instead.iter().position(|(of, _, _)| of == method)
            && let Some((_, status, text)) = self.instead.remove(at)
        {
            return (status, text);
        }
        let body: Value = if body.is_empty() { Value::Null } else { serde_json::from_slice(body).unwrap() };
        let current = |part: &str| self.secret.as_ref().map(|secret| secret["metadata"][part].clone());
        match *method {
            Method::GET => {
                let answer = match &self.secret {
                    Some(secret) => (200, secret.to_string()),
                    None => (404, status(404)),
                };
                if let Some(secret) = self.meanwhile.take() {
                    self.store(secret);
                }
                answer
            }
            Method::POST if self.secret.is_some() => (409, status(409)),
            Method::POST => {
                self.store(body.clone());
                (201, body.to_string())
            }
            _ if self.secret.is_none() => (404, status(404)),
            Method::PUT => {
                if current("resourceVersion") != Some(body["metadata"]["resourceVersion"].clone()) {
                    return (409, status(409));
                }
                self.store(body.clone());
                (200, body.to_string())
            }
            Method::DELETE => {
                let conditions = &body["preconditions"];
                if current("uid") != Some(conditions["uid"].clone()) {
                    return (409, status(409));
                }
                let deleted = self.secret.take();
                (200, deleted.map(|secret| secret.to_string()).unwrap_or_default())
            }
            _ => panic!("the runner has no right to {method}"),
        }
    }
}

fn status(code: u16) -> String {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "as the test wants" })
        .to_string()
}

impl Service<Request<Body>> for Server {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let stored = Arc::clone(&self.0);
        let answer = async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let mut stored = stored.lock();
            let (code, text) = stored.answer(&parts.method, parts.uri.path(), &body);
            stored.log.push(format!("{} {code}", parts.method));
            let response = Response::builder().status(code).body(Body::from(text.into_bytes()));
            Ok(response.unwrap())
        };
        answer.boxed()
    }
}

/// A runner that follows its file.
struct Runner {
    content: watch::Sender<Option<Content>>,
    state: watch::Receiver<State>,
    seen: Arc<Mutex<Vec<State>>>,
    _task: tokio::task::JoinHandle<()>,
}

impl Runner {
    fn start(server: &Server, first: Option<Content>) -> Self {
        let (content, contents) = watch::channel(first);
        let (state, states) = watch::channel(State::Pending);
        let (namespace, name) = ("functions".to_owned(), NAME.to_owned());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut of_seen, all) = (states.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            while of_seen.changed().await.is_ok() {
                all.lock().push(of_seen.borrow_and_update().clone());
            }
        });
        let task = follow(server.client(), namespace, name, contents, EVERY, state);
        Self { content, state: states, seen, _task: tokio::spawn(task) }
    }

    /// All states since the last time.
    fn states(&self) -> Vec<State> {
        std::mem::take(&mut self.seen.lock())
    }

    async fn settled(&mut self) -> State {
        let settled = self.state.wait_for(|state| *state != State::Pending);
        timeout(EVERY * 10, settled).await.unwrap().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn pods_wait_for_new_credentials() {
    let server = Server::default();
    let mut runner = Runner::start(&server, Some(content(OLD, Some(1_000))));
    assert_eq!(runner.settled().await, State::Ready);
    runner.states();
    runner.content.send_replace(Some(content(NEW, Some(2_000))));
    pass(MOMENT).await;
    assert_eq!(runner.states(), [State::Pending, State::Ready]);
    assert_eq!(server.text(), NEW);
    // Looking again is no news.
    pass(EVERY * 3).await;
    assert_eq!(runner.states(), []);

    // What cannot be written is waited for once.
    for _ in 0..3 {
        server.fail(Method::PUT, 503, &status(503));
    }
    runner.content.send_replace(Some(content(OLD, Some(3_000))));
    pass(EVERY).await;
    let seen = runner.states();
    assert!(matches!(&seen[..], [State::Pending, State::Failed(_), State::Ready]), "{seen:?}");

    // Nor is what is back to what was written, though nobody can look.
    for _ in 0..3 {
        server.fail(Method::GET, 503, &status(503));
    }
    runner.content.send_replace(Some(content(NEW, Some(4_000))));
    pass(MOMENT).await;
    runner.content.send_replace(Some(content(OLD, Some(3_000))));
    pass(MOMENT).await;
    let seen = runner.states();
    assert!(
        matches!(&seen[..], [State::Pending, State::Failed(_), State::Pending, State::Ready]),
        "{seen:?}"
    );
}

/// Time is paused, so it passes only when nobody has anything to do.
async fn pass(duration: Duration) {
    sleep(duration).await;
}

const MOMENT: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn the_secret_follows_the_file() {
    let server = Server::default();
    let runner = Runner::start(&server, None);
    pass(MOMENT).await;
    assert_eq!(*runner.state.borrow(), State::Pending, "it may only be early");
    // As whoever reads the file says at first.
    runner.content.send_replace(None);
    pass(FIRST_CONTENT_WITHIN.saturating_sub(MOMENT * 2)).await;
    assert_eq!(*runner.state.borrow(), State::Pending);
    pass(MOMENT * 2).await;
    assert_eq!(*runner.state.borrow(), State::Nothing);
    pass(EVERY * 3).await;
    assert_eq!((server.log(), runner.state.borrow().clone()), (vec![], State::Nothing));

    runner.content.send_replace(Some(content(OLD, Some(1_000))));
    pass(MOMENT).await;
    assert_eq!(runner.states(), [State::Nothing, State::Pending, State::Ready]);
    assert_eq!(server.log(), ["GET 404", "POST 201"]);
    let created = server.secret().unwrap();
    assert_eq!(created, Secret { metadata: created.metadata.clone(), ..secret(OLD, Some(1_000)) });
    assert_eq!(created.metadata.name.as_deref(), Some(NAME));

    runner.content.send_replace(Some(content(NEW, Some(2_000))));
    pass(MOMENT).await;
    assert_eq!(server.log(), ["GET 200", "PUT 200"]);
    assert_eq!(server.text(), NEW);
    assert_eq!(server.secret().unwrap().metadata.uid, created.metadata.uid);

    runner.content.send_replace(None);
    pass(MOMENT).await;
    assert_eq!((server.log().len(), server.text()), (0, NEW.to_owned()), "what was written stays");
    assert_eq!(*runner.state.borrow(), State::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_was_deleted_comes_back() {
    let server = Server::default();
    let mut runner = Runner::start(&server, Some(content(OLD, Some(1_000))));
    runner.settled().await;
    pass(EVERY + MOMENT).await;
    assert_eq!(server.log(), ["GET 404", "POST 201", "GET 200"]);
    server.0.lock().secret = None;
    // Also when the file is not watched any more.
    drop(runner.content);
    pass(EVERY + MOMENT).await;
    assert_eq!(server.log(), ["GET 404", "POST 201"]);
    assert_eq!(server.text(), OLD);
}

#[tokio::test(start_paused = true)]
async fn runners_do_not_write_in_turn() {
    let server = Server::default();
    let mut first = Runner::start(&server, Some(content(NEW, Some(2_000))));
    first.settled().await;
    let mut second = Runner::start(&server, Some(content(OLD, Some(1_000))));
    assert_eq!(second.settled().await, State::Ready, "pods can be made with later credentials");
    pass(EVERY * 100).await;
    assert!(server.log().iter().filter(|request| !request.starts_with("GET")).eq(["POST 201"]));
    assert_eq!(server.text(), NEW);
    // Its file changes too, at last.
    second.content.send_replace(Some(content(NEW, Some(60_000))));
    pass(EVERY * 100).await;
    assert!(server.log().iter().all(|request| request == "GET 200"));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_changed_is_made_anew() {
    let server = Server::default();
    let opaque = Secret { type_: Some("Opaque".to_owned()), ..secret(OLD, None) };
    server.put(opaque);
    let before = server.secret().unwrap().metadata.uid;
    let mut runner = Runner::start(&server, Some(content(NEW, Some(2_000))));
    assert_eq!(runner.settled().await, State::Ready);
    assert_eq!(server.log(), ["GET 200", "DELETE 200", "POST 201"]);
    let after = server.secret().unwrap();
    assert_ne!(after.metadata.uid, before);
    assert_eq!((after.type_.as_deref(), server.text().as_str()), (Some(TYPE), NEW));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ours_is_not_deleted() {
    let opaque: fn(&mut Secret) = |secret| secret.type_ = Some("Opaque".to_owned());
    let immutable: fn(&mut Secret) = |secret| secret.immutable = Some(true);
    for change in [opaque, immutable] {
        let server = Server::default();
        let mut users = Secret { metadata: ObjectMeta::default(), ..secret(OLD, None) };
        change(&mut users);
        server.put(&users);
        let before = server.secret();
        let mut runner = Runner::start(&server, Some(content(NEW, Some(2_000))));
        let State::Failed(told) = runner.settled().await else { panic!("it cannot be written") };
        assert!(told.contains(NAME) && told.contains("--registry-auth-secret-name"), "{told}");
        pass(EVERY * 3).await;
        assert!(server.log().iter().all(|request| request == "GET 200"));
        assert_eq!(server.secret(), before);

        // Its owner takes it away.
        server.0.lock().secret = None;
        pass(LAST_PAUSE).await;
        assert_eq!(*runner.state.borrow(), State::Ready);
        assert_eq!(server.text(), NEW);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_second_looks_again() {
    // Created by another, of an earlier file.
    let server = Server::default();
    server.0.lock().meanwhile = Some(serde_json::to_value(secret(OLD, Some(1_000))).unwrap());
    let mut runner = Runner::start(&server, Some(content(NEW, Some(2_000))));
    assert_eq!(runner.settled().await, State::Ready);
    assert_eq!(server.log(), ["GET 404", "POST 409", "GET 200", "PUT 200"]);
    assert_eq!(server.text(), NEW);

    // Changed by another, to a later one.
    server.put(secret(OLD, Some(1_000)));
    server.0.lock().meanwhile = Some(serde_json::to_value(secret(OLD, Some(3_000))).unwrap());
    pass(EVERY + MOMENT).await;
    assert_eq!(server.log(), ["GET 200", "PUT 409", "GET 200"]);
    assert_eq!(server.text(), OLD);

    // Deleted by another.
    server.put(secret(OLD, Some(1_000)));
    server.fail(Method::PUT, 404, &status(404));
    let deleted = server.0.lock().secret.take().unwrap();
    server.fail(Method::GET, 200, &deleted.to_string());
    pass(EVERY + MOMENT).await;
    assert_eq!(server.log(), ["GET 200", "PUT 404", "GET 404", "POST 201"]);
}

#[tokio::test(start_paused = true)]
async fn failures_are_told_and_tried_again() {
    let stop = |code: u16| status(code);
    for (method, code, text, expected) in [
        (Method::GET, 403, stop(403), "its Role needs the verbs"),
        (Method::POST, 403, stop(403), "its Role needs the verbs"),
        (Method::POST, 404, stop(404), "(--pod-namespace) does not exist"),
        (Method::POST, 422, stop(422), "must be a docker config"),
        (Method::GET, 503, "no API server here".to_owned(), "does not say so"),
        (Method::GET, 200, r#"{"data":"planted"}"#.to_owned(), "no Secret"),
        (Method::GET, 200, r#"{"data":{".dockerconfigjson":"planted"}}"#.to_owned(), "no Secret"),
    ] {
        let server = Server::default();
        for _ in 0..6 {
            server.fail(method.clone(), code, &text);
        }
        let mut runner = Runner::start(&server, Some(content(OLD, Some(1_000))));
        let State::Failed(told) = runner.settled().await else { panic!("{method} {code} is no failure") };
        assert!(told.contains(expected) && told.contains(NAME), "{told}");
        assert!(!told.contains("as the test wants") && !told.contains("planted"), "{told}");
        // 1, 2, 4, 8 and 16 seconds; then 30.
        pass(Duration::from_mins(1)).await;
        assert_eq!(server.log().iter().filter(|request| request.starts_with(method.as_str())).count(), 6);
        assert!(matches!(&*runner.state.borrow(), State::Failed(_)));
        pass(Duration::from_secs(2)).await;
        assert_eq!(*runner.state.borrow(), State::Ready, "{method} {code}");
        assert_eq!(server.text(), OLD);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_later_leaves_the_secret_ready() {
    let server = Server::default();
    let mut runner = Runner::start(&server, Some(content(OLD, Some(1_000))));
    runner.settled().await;
    server.fail(Method::GET, 503, &status(503));
    pass(EVERY + MOMENT).await;
    assert_eq!(server.log(), ["GET 404", "POST 201", "GET 503"]);
    assert_eq!(*runner.state.borrow(), State::Ready);

    // New credentials that do not come there are another matter.
    server.fail(Method::PUT, 503, &status(503));
    runner.content.send_replace(Some(content(NEW, Some(2_000))));
    pass(MOMENT).await;
    assert!(matches!(&*runner.state.borrow(), State::Failed(_)));
    pass(LAST_PAUSE).await;
    assert_eq!(*runner.state.borrow(), State::Ready);
    assert_eq!(server.text(), NEW);
}

#[tokio::test(start_paused = true)]
async fn two_who_always_write_are_told_apart() {
    let server = Server::default();
    server.put(secret(OLD, None));
    for _ in 0..LOOKS {
        server.fail(Method::PUT, 409, &status(409));
    }
    let mut runner = Runner::start(&server, Some(content(NEW, Some(2_000))));
    let State::Failed(told) = runner.settled().await else { panic!("it cannot be written") };
    assert!(told.contains("changed by others"), "{told}");
    assert_eq!(server.log().len(), 2 * LOOKS);
    pass(FIRST_PAUSE + MOMENT).await;
    assert_eq!(*runner.state.borrow(), State::Ready);
}
