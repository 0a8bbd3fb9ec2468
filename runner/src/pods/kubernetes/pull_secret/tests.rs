//! The pull secret follows its owner's file, leaves foreign Secrets alone, and is logged nowhere.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::codegen::Service;

use super::*;

const OLD: &str = r#"{"auths":{"a.b":{"auth":"b2xkOnBsYW50ZWQ="}}}"#;
const NEW: &str = r#"{"auths":{"a.b":{"auth":"bmV3OnBsYW50ZWQ="}}}"#;
const NAME: &str = "auth-secret";
const EVERY: Duration = Duration::from_mins(1);
const MOMENT: Duration = Duration::from_millis(1);

fn content(text: &'static str) -> CredentialsFileContent {
    CredentialsFileContent::parse(Bytes::from_static(text.as_bytes())).unwrap()
}

fn secret(text: &str) -> Secret {
    serde_json::from_slice(&encoded(Secret::default(), text.as_bytes()).unwrap()).unwrap()
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
                self.secret.as_ref().map_or((404, status(404)), |secret| (200, secret.to_string()))
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

/// A runner that follows its file, and may own the Secret.
struct Runner {
    content: watch::Sender<Option<CredentialsFileContent>>,
    owned: watch::Sender<OwnedShards>,
    settled: watch::Receiver<bool>,
    _task: tokio::task::JoinHandle<()>,
}

impl Runner {
    fn start(server: &Server, first: Option<CredentialsFileContent>, owned: OwnedShards) -> Self {
        let (content, contents) = watch::channel(first);
        let (owned, owners) = watch::channel(owned);
        let (sender, settled) = watch::channel(false);
        let secret = PullSecret { client: server.client(), namespace: "functions".into(), name: NAME.into() };
        let task = tokio::spawn(secret.follow(contents, owners, EVERY, sender));
        Self { content, owned, settled, _task: task }
    }

    fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }
}

/// Time is paused: it passes only when no task has anything to do.
async fn pass(duration: Duration) {
    sleep(duration).await;
}

#[tokio::test(start_paused = true)]
async fn the_secret_follows_the_owners_file_and_pods_wait_for_it() {
    let server = Server::default();
    let runner = Runner::start(&server, None, OwnedShards::All);
    pass(FIRST_CONTENT_WITHIN.saturating_sub(MOMENT)).await;
    assert!(!runner.is_settled(), "the file may not have been read yet");
    pass(EVERY * 3).await;
    assert!(runner.is_settled(), "there is no file");
    assert_eq!(server.log(), [""; 0]);

    runner.content.send_replace(Some(content(OLD)));
    pass(MOMENT).await;
    assert!(runner.is_settled());
    assert_eq!(server.log(), ["GET 404", "POST 201"]);
    let created = server.secret().unwrap();
    assert_eq!(created, Secret { metadata: created.metadata.clone(), ..secret(OLD) });
    assert_eq!(created.metadata.name.as_deref(), Some(NAME));

    server.fail(Method::PUT, 503, &status(503));
    runner.content.send_replace(Some(content(NEW)));
    pass(MOMENT).await;
    assert!(!runner.is_settled(), "pods wait for the second try");
    pass(FIRST_PAUSE).await;
    assert!(runner.is_settled());
    assert_eq!(server.log(), ["GET 200", "PUT 503", "GET 200", "PUT 200"]);
    assert_eq!(server.text(), NEW);
    assert_eq!(server.secret().unwrap().metadata.uid, created.metadata.uid);

    runner.content.send_replace(None);
    pass(MOMENT).await;
    assert_eq!((server.log().len(), server.text()), (0, NEW.to_owned()), "the Secret stays");
    assert!(runner.is_settled());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_secret_comes_back() {
    let server = Server::default();
    let runner = Runner::start(&server, Some(content(OLD)), OwnedShards::All);
    pass(EVERY + MOMENT).await;
    assert_eq!(server.log(), ["GET 404", "POST 201", "GET 200"]);
    server.0.lock().secret = None;
    // Also when the file is not watched any more.
    drop((runner.content, runner.owned));
    pass(EVERY + MOMENT).await;
    assert_eq!(server.log(), ["GET 404", "POST 201"]);
    assert_eq!(server.text(), OLD);
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_writes() {
    let server = Server::default();
    let owner = Runner::start(&server, Some(content(OLD)), OwnedShards::All);
    pass(MOMENT).await;
    let other = Runner::start(&server, Some(content(NEW)), OwnedShards::None);
    pass(MOMENT).await;
    assert!(!other.is_settled(), "the owner may be about to write it");
    pass(EVERY * 100).await;
    assert!(other.is_settled(), "pods do not wait for ever");
    assert!(server.log().iter().filter(|request| !request.starts_with("GET")).eq(["POST 201"]));
    assert_eq!(server.text(), OLD);
    // The owner's file changes too.
    owner.content.send_replace(Some(content(NEW)));
    pass(EVERY).await;
    assert_eq!(server.text(), NEW);
    // The other runner becomes the owner, and its file is another one again.
    server.log();
    owner.owned.send_replace(OwnedShards::None);
    other.content.send_replace(Some(content(OLD)));
    other.owned.send_replace(OwnedShards::All);
    pass(EVERY).await;
    assert_eq!((server.text().as_str(), other.is_settled()), (OLD, true));
    assert_eq!(server.log().iter().filter(|request| !request.starts_with("GET")).count(), 1);
}

/// The Secret before, the requests, and whether the content is in the Secret in the end.
#[tokio::test(start_paused = true)]
async fn a_secret_is_changed_in_place_unless_it_cannot_be() {
    let opaque = Secret { type_: Some("Opaque".to_owned()), ..secret(OLD) };
    let immutable = Secret { immutable: Some(true), ..secret(OLD) };
    let other_key =
        Secret { data: Some([("config.json".to_owned(), ByteString::default())].into()), ..secret(OLD) };
    let foreign = |secret: &Secret| Secret { metadata: ObjectMeta::default(), ..secret.clone() };
    let (update, replace) = (&["GET 200", "PUT 200"][..], &["GET 200", "DELETE 200", "POST 201"][..]);
    for (before, expected, is_written) in [
        (secret(OLD), update, true),
        (foreign(&secret(OLD)), update, true),
        (Secret { data: None, ..secret(OLD) }, update, true),
        (other_key, update, true),
        (opaque.clone(), replace, true),
        (Secret { type_: None, ..secret(OLD) }, replace, true),
        (immutable.clone(), replace, true),
        (Secret { immutable: Some(true), ..secret(NEW) }, &["GET 200"], true),
        (foreign(&secret(NEW)), &["GET 200"], true),
        (foreign(&opaque), &["GET 200"], false),
        (foreign(&immutable), &["GET 200"], false),
    ] {
        let server = Server::default();
        server.put(&before);
        let runner = Runner::start(&server, Some(content(NEW)), OwnedShards::All);
        pass(MOMENT).await;
        assert_eq!(server.log(), expected, "{before:?}");
        assert_eq!(runner.is_settled(), is_written, "{before:?}");
        if !is_written {
            // Until its owner takes it away.
            pass(EVERY * 3).await;
            assert!(server.log().iter().all(|request| request == "GET 200") && runner.is_settled());
            server.0.lock().secret = None;
            pass(LAST_PAUSE).await;
        }
        assert_eq!(server.text(), NEW);
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_leaves_other_fields_alone() {
    let server = Server::default();
    server.put(json!({
        "metadata": {"name": NAME, "labels": {"team": "a"}, "annotations": {"note": "b"}},
        "type": TYPE, "data": {"other": "b3RoZXI="},
    }));
    let _runner = Runner::start(&server, Some(content("{}")), OwnedShards::All);
    pass(MOMENT).await;
    let labels = json!({"team": "a", "app.kubernetes.io/managed-by": "porch-fn-runner"});
    let written = serde_json::to_value(server.secret().unwrap()).unwrap();
    assert_eq!(
        (&written["metadata"]["labels"], &written["metadata"]["annotations"]["note"]),
        (&labels, &json!("b"))
    );
    assert_eq!(written["data"], json!({"other": "b3RoZXI=", ".dockerconfigjson": "e30="}));
}

#[tokio::test(start_paused = true)]
async fn failures_are_logged_without_the_secret_and_tried_again() {
    for (method, code, text, expected) in [
        (Method::GET, 403, status(403), "its Role needs the verbs"),
        (Method::POST, 403, status(403), "its Role needs the verbs"),
        (Method::POST, 404, status(404), "(--pod-namespace) does not exist"),
        (Method::POST, 422, status(422), "must be a docker config"),
        (Method::GET, 503, "no API server here".to_owned(), "does not say so"),
        (Method::GET, 200, r#"{"data":"planted"}"#.to_owned(), "no Secret"),
        (Method::GET, 200, r#"{"data":{".dockerconfigjson":"planted"}}"#.to_owned(), "no Secret"),
    ] {
        let server = Server::default();
        for _ in 0..7 {
            server.fail(method.clone(), code, &text);
        }
        let secret = PullSecret { client: server.client(), namespace: "functions".into(), name: NAME.into() };
        let error = secret.bring_up_to_date(OLD.as_bytes(), true).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(NAME), "{error}");
        assert!(!error.contains("as the test wants") && !error.contains("planted"), "{error}");
        let runner = Runner::start(&server, Some(content(OLD)), OwnedShards::All);
        // After 1, 2, 4, 8 and 16 seconds; then 30.
        pass(Duration::from_mins(1)).await;
        assert_eq!(server.log().iter().filter(|request| request.starts_with(method.as_str())).count(), 7);
        assert!(runner.is_settled(), "pods do not wait for ever");
        pass(Duration::from_secs(2)).await;
        assert_eq!(server.text(), OLD);
    }
    // Another writer was faster.
    let server = Server::default();
    server.put(secret(OLD));
    server.fail(Method::PUT, 409, &status(409));
    let _runner = Runner::start(&server, Some(content(NEW)), OwnedShards::All);
    pass(FIRST_PAUSE + MOMENT).await;
    assert_eq!(server.log(), ["GET 200", "PUT 409", "GET 200", "PUT 200"]);
}
