//! Tests that the pull secret follows the credentials file of the runner that owns its name, that a
//! foreign Secret is never deleted, and that no error quotes a Secret.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::pods::kubernetes::fake::{self, Answer};

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
    /// Methods and codes: `GET 200`, `POST 201`, …
    log: Vec<String>,
    /// Answers that replace the normal ones, for requests with this method.
    instead: VecDeque<(Method, Answer)>,
}

impl Server {
    fn pull_secret(&self) -> PullSecret {
        let stored = Arc::clone(&self.0);
        let client = fake::client(move |method, uri, body| {
            let mut stored = stored.lock();
            let answer = stored.answer(method, uri.path(), body);
            stored.log.extend(answer.as_ref().map(|(code, _)| format!("{method} {code}")));
            answer
        });
        PullSecret { client, namespace: "functions".into(), name: NAME.into() }
    }

    fn put(&self, secret: impl serde::Serialize) {
        self.0.lock().store(serde_json::to_value(secret).unwrap());
    }

    fn fail(&self, method: Method, answer: Answer) {
        self.0.lock().instead.push_back((method, answer));
    }

    fn secret(&self) -> Secret {
        serde_json::from_value(self.0.lock().secret.clone().unwrap()).unwrap()
    }

    fn text(&self) -> String {
        String::from_utf8(self.secret().data.unwrap()[KEY].0.clone()).unwrap()
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().log)
    }
}

impl Stored {
    fn store(&mut self, mut secret: Value) {
        self.version += 1;
        let uid = self.secret.as_ref().map(|secret| secret["metadata"]["uid"].clone());
        secret["metadata"]["uid"] = uid.unwrap_or_else(|| json!(format!("uid-{}", self.version)));
        secret["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.secret = Some(secret);
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Answer {
        let name = if *method == Method::POST { String::new() } else { format!("/{NAME}") };
        assert_eq!(path, format!("/api/v1/namespaces/functions/secrets{name}"));
        if let Some(at) = self.instead.iter().position(|(of, _)| of == method) {
            return self.instead.remove(at)?.1;
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let known = self.secret.clone();
        let differs =
            |sent: &Value, part| known.as_ref().is_some_and(|known| known["metadata"][part] != sent[part]);
        match *method {
            Method::POST if known.is_some() => status(409),
            Method::PUT if differs(&body["metadata"], "resourceVersion") => status(409),
            Method::DELETE if differs(&body["preconditions"], "uid") => status(409),
            Method::POST | Method::PUT if known.is_some() || *method == Method::POST => {
                self.store(body.clone());
                Some((if known.is_none() { 201 } else { 200 }, body.to_string()))
            }
            _ if known.is_none() => status(404),
            Method::GET => Some((200, known?.to_string())),
            Method::DELETE => Some((200, self.secret.take()?.to_string())),
            _ => panic!("the runner's Role does not allow {method}"),
        }
    }
}

fn status(code: u16) -> Answer {
    fake::failure(code, "", "refused by the test")
}

/// A runner that copies its credentials file into the Secret if it owns the Secret's name.
struct Runner {
    content: watch::Sender<Option<CredentialsFileContent>>,
    owned: watch::Sender<OwnedShards>,
    settled: watch::Receiver<bool>,
    _task: JoinHandle<()>,
}

impl Runner {
    fn start(server: &Server, first: Option<CredentialsFileContent>, owned: OwnedShards) -> Self {
        let (content, contents) = watch::channel(first);
        let (owned, owners) = watch::channel(owned);
        let (sender, settled) = watch::channel(false);
        let task = tokio::spawn(server.pull_secret().follow(contents, owners, EVERY, sender));
        Self { content, owned, settled, _task: task }
    }

    fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }
}

#[tokio::test(start_paused = true)]
async fn the_secret_follows_the_owners_file_and_pods_wait_for_it() {
    let server = Server::default();
    let runner = Runner::start(&server, None, OwnedShards::All);
    sleep(FIRST_CONTENT_WITHIN.saturating_sub(MOMENT)).await;
    assert!(!runner.is_settled(), "the file may not have been read yet");
    sleep(EVERY * 3).await;
    assert!(runner.is_settled(), "there is no file");
    assert_eq!(server.log(), [""; 0]);

    runner.content.send_replace(Some(content(OLD)));
    sleep(MOMENT).await;
    assert!(runner.is_settled());
    assert_eq!(server.log(), ["GET 404", "POST 201"]);
    let created = server.secret();
    assert_eq!(created, Secret { metadata: created.metadata.clone(), ..secret(OLD) });
    assert_eq!(created.metadata.name.as_deref(), Some(NAME));

    server.fail(Method::PUT, status(503));
    runner.content.send_replace(Some(content(NEW)));
    sleep(MOMENT).await;
    assert!(!runner.is_settled(), "pods wait for the second attempt");
    sleep(FIRST_PAUSE).await;
    assert!(runner.is_settled());
    assert_eq!(server.log(), ["GET 200", "PUT 503", "GET 200", "PUT 200"]);
    assert_eq!(server.text(), NEW);
    assert_eq!(server.secret().metadata.uid, created.metadata.uid);

    runner.content.send_replace(None);
    sleep(MOMENT).await;
    assert_eq!((server.log().len(), server.text()), (0, NEW.to_owned()), "the Secret stays");
    assert!(runner.is_settled());

    runner.content.send_replace(Some(content(NEW)));
    server.0.lock().secret = None;
    // The runner restores a deleted Secret even when nothing watches the file any more.
    drop((runner.content, runner.owned));
    sleep(EVERY + MOMENT).await;
    assert_eq!(server.text(), NEW, "a deleted Secret comes back");
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_writes_the_secret() {
    let server = Server::default();
    let owner = Runner::start(&server, Some(content(OLD)), OwnedShards::All);
    sleep(MOMENT).await;
    let other = Runner::start(&server, Some(content(NEW)), OwnedShards::None);
    sleep(MOMENT).await;
    assert!(!other.is_settled(), "the owner may be about to write it");
    sleep(EVERY * 100).await;
    assert!(other.is_settled(), "pods do not wait forever");
    assert!(server.log().iter().filter(|request| !request.starts_with("GET")).eq(["POST 201"]));
    assert_eq!(server.text(), OLD);
    // The owner's file changes too.
    owner.content.send_replace(Some(content(NEW)));
    sleep(EVERY).await;
    assert_eq!(server.text(), NEW);
    // The other runner becomes the owner, and its file changes too.
    server.log();
    owner.owned.send_replace(OwnedShards::None);
    other.content.send_replace(Some(content(OLD)));
    other.owned.send_replace(OwnedShards::All);
    sleep(EVERY).await;
    assert_eq!((server.text().as_str(), other.is_settled()), (OLD, true));
    assert_eq!(server.log().iter().filter(|request| !request.starts_with("GET")).count(), 1);
}

/// Each case has the Secret before, the expected requests, and whether the Secret has the new
/// content afterwards.
#[tokio::test(start_paused = true)]
async fn a_secret_is_changed_in_place_unless_it_cannot_be() {
    let opaque = Secret { type_: Some("Opaque".to_owned()), ..secret(OLD) };
    let immutable = Secret { immutable: Some(true), ..secret(OLD) };
    let mut noted = secret(OLD);
    noted.metadata.annotations = Some([("note".to_owned(), "b".to_owned())].into());
    noted.data.as_mut().unwrap().insert("other".to_owned(), ByteString::default());
    let foreign = |secret: &Secret| Secret { metadata: ObjectMeta::default(), ..secret.clone() };
    let (update, replace) = (&["GET 200", "PUT 200"][..], &["GET 200", "DELETE 200", "POST 201"][..]);
    for (before, expected, is_written) in [
        (secret(OLD), update, true),
        (foreign(&secret(OLD)), update, true),
        (Secret { data: None, ..secret(OLD) }, update, true),
        (noted, update, true),
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
        sleep(MOMENT).await;
        assert_eq!(server.log(), expected, "{before:?}");
        assert_eq!(runner.is_settled(), is_written, "{before:?}");
        if !is_written {
            // The runner writes its content only after the foreign Secret is deleted.
            sleep(EVERY * 3).await;
            assert!(server.log().iter().all(|request| request == "GET 200") && runner.is_settled());
            server.0.lock().secret = None;
            sleep(LAST_PAUSE).await;
        }
        assert_eq!(server.text(), NEW);
        let after = server.secret();
        assert_eq!(after.data.unwrap().contains_key("other"), after.metadata.annotations.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn failed_writes_are_repeated_and_their_errors_do_not_quote_the_secret() {
    let text = |code, text: &str| Some((code, text.to_owned()));
    for (method, answer, expected) in [
        (Method::GET, status(403), "its Role needs the verbs"),
        (Method::POST, status(403), "its Role needs the verbs"),
        (Method::POST, status(404), "(--pod-namespace) does not exist"),
        (Method::POST, status(422), "must be a docker config"),
        (Method::GET, text(503, "no API server here"), "or did not answer"),
        (Method::GET, text(200, r#"{"data":"planted"}"#), "no valid Secret"),
        (Method::GET, text(200, r#"{"data":{".dockerconfigjson":"planted"}}"#), "no valid Secret"),
    ] {
        let server = Server::default();
        server.fail(method, answer);
        let error = server.pull_secret().bring_up_to_date(OLD.as_bytes(), true).await.unwrap_err();
        assert!(error.contains(expected) && error.contains(NAME) && !error.contains("planted"), "{error}");
    }
    let server = Server::default();
    (0..6).for_each(|_| server.fail(Method::POST, status(409)));
    let runner = Runner::start(&server, Some(content(OLD)), OwnedShards::All);
    // The pauses between attempts are 1, 2, 4, 8 and 16 seconds, then 30.
    sleep(Duration::from_mins(1)).await;
    assert_eq!(server.log().iter().filter(|request| *request == "POST 409").count(), 6);
    assert!(runner.is_settled(), "pods do not wait forever");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(server.text(), OLD);
}
