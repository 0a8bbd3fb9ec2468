//! What registries want to see, and credentials that change.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use parking_lot::Mutex;
use porch_fn_registry::{Client, CredentialFile, CredentialSource, Options, Registry as _, RegistryError};
use serde_json::json;

use crate::server::{Reply, Seen, Server};
use crate::store::{OCI_MANIFEST, Store};
use crate::{ConfigFile, client, image, options, pass, private};

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

fn with(credentials: CredentialFile) -> Client {
    Client::new(Options { credentials, ..options() })
}

fn login(password: &str) -> serde_json::Value {
    json!({"127.0.0.1": {"auth": BASE64_STANDARD.encode(format!("me:{password}"))}})
}

/// Entries hold for one port: those of tests are random.
fn for_server(server: &Server, entry: &serde_json::Value) -> serde_json::Value {
    json!({ server.registry(): entry })
}

fn store() -> Store {
    let mut store = Store::default();
    for name in ["a", "b"] {
        for tag in ["v1", "v2"] {
            store.image(name, tag, OCI_MANIFEST);
        }
    }
    store
}

/// A registry that takes the tokens `TOKEN SCOPE`, and who gives them.
struct WithTokens {
    registry: Server,
    tokens: Server,
    /// What tokens begin with now.
    token: Arc<Mutex<String>>,
}

impl WithTokens {
    async fn start(expires_in: u64, allowed: impl Fn(&Seen) -> bool + Send + Sync + 'static) -> Self {
        let token = Arc::new(Mutex::new("t1".to_owned()));
        let given = Arc::clone(&token);
        let tokens = Server::start(move |seen| {
            if !allowed(seen) {
                return Reply::new(401, "{}");
            }
            let text = format!("{}?{}", seen.path, seen.body);
            let name = text.split("repository%3A").nth(1).and_then(|rest| rest.split('%').next()).unwrap();
            let token = format!("{}-{name}", given.lock());
            Reply::json(&json!({"token": token, "expires_in": expires_in}))
        })
        .await;
        let realm = format!("http://{}/token", tokens.address);
        let (store, taken) = (store(), Arc::clone(&token));
        let registry = Server::start(move |seen| {
            let name = seen.path.split('/').nth(2).unwrap();
            let challenge =
                format!("Bearer realm=\"{realm}\",service=\"it\",scope=\"repository:{name}:pull\"");
            store.guarded(seen, &format!("Bearer {}-{name}", taken.lock()), &challenge)
        })
        .await;
        Self { registry, tokens, token }
    }

    fn take(&self) -> (usize, usize) {
        (self.registry.take().len(), self.tokens.take().len())
    }
}

#[tokio::test]
async fn a_token_is_fetched_once_per_repository() {
    let it = WithTokens::start(300, |seen| seen.authorization() == Some(&basic("me", "pw"))).await;
    let auth = BASE64_STANDARD.encode("me:pw");
    let file = ConfigFile::new(&for_server(&it.registry, &json!({ "auth": auth })));
    let (client, registry) = (with(file.private()), it.registry.registry());

    client.metadata(&image(&registry, "a:v1")).await.unwrap();
    assert_eq!(it.registry.take().len(), 3);
    assert_eq!(it.tokens.take(), ["GET /token?service=it&scope=repository%3Aa%3Apull"]);
    client.metadata(&image(&registry, "a:v2")).await.unwrap();
    assert_eq!(it.take(), (2, 0));
    // Of another repository: the scheme is known, the token is not.
    client.metadata(&image(&registry, "b:v1")).await.unwrap();
    assert_eq!(it.take(), (2, 1));
}

#[tokio::test]
async fn an_old_token_is_not_shown() {
    let it = WithTokens::start(300, |seen| seen.authorization().is_none()).await;
    let (client, image) = (client(), image(&it.registry.registry(), "a:v1"));
    client.digest(&image).await.unwrap();
    assert_eq!(it.take(), (2, 1));
    pass(Duration::from_secs(200)).await;
    client.digest(&image).await.unwrap();
    assert_eq!(it.take(), (1, 0));
    pass(Duration::from_secs(75)).await;
    client.digest(&image).await.unwrap();
    assert_eq!(it.take(), (1, 1));
}

#[tokio::test]
async fn a_token_that_was_taken_back_is_replaced() {
    let it = WithTokens::start(300, |_| true).await;
    let (client, image) = (client(), image(&it.registry.registry(), "a:v1"));
    client.digest(&image).await.unwrap();
    it.take();
    *it.token.lock() = "t2".into();
    client.digest(&image).await.unwrap();
    assert_eq!(it.take(), (2, 1));
}

#[tokio::test]
async fn an_identity_token_is_exchanged_in_a_form() {
    let it = WithTokens::start(300, |seen| {
        seen.method == "POST"
            && seen.headers["content-type"] == "application/x-www-form-urlencoded"
            && seen.body.contains("&refresh_token=id%2B+en%26tity")
    })
    .await;
    let entry = json!({"auth": BASE64_STANDARD.encode("<token>:"), "identitytoken": "id+ en&tity"});
    let file = ConfigFile::new(&for_server(&it.registry, &entry));
    with(file.private()).metadata(&image(&it.registry.registry(), "a:v1")).await.unwrap();
    let seen = it.tokens.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].path.as_str(), seen[0].authorization()), ("/token", None));
    assert_eq!(
        seen[0].body,
        "service=it&scope=repository%3Aa%3Apull&grant_type=refresh_token&client_id=porch-fn\
         &refresh_token=id%2B+en%26tity"
    );
}

#[tokio::test]
async fn a_registry_token_is_shown_as_it_is() {
    let it = WithTokens::start(300, |_| false).await;
    let file = ConfigFile::new(&for_server(&it.registry, &json!({"registrytoken": "t1-a"})));
    with(file.private()).metadata(&image(&it.registry.registry(), "a:v1")).await.unwrap();
    assert_eq!(it.take(), (3, 0));
}

#[tokio::test]
async fn wrong_credentials_are_told_and_not_tried_again() {
    let store = store();
    let server = Server::start(move |seen| store.guarded(seen, &basic("me", "right"), "Basic")).await;
    let file = ConfigFile::new(&for_server(&server, &json!({"username": "me", "password": "wrong"})));
    let image_of_basic = image(&server.registry(), "a:v1");
    let of_basic = with(file.private());
    assert_eq!(of_basic.metadata(&image_of_basic).await, Err(RegistryError::Unauthorized));
    assert_eq!(server.take().len(), 2);
    assert_eq!(of_basic.metadata(&image_of_basic).await, Err(RegistryError::Unauthorized));
    assert_eq!(server.take().len(), 1);
    assert_eq!(client().metadata(&image_of_basic).await, Err(RegistryError::Unauthorized));

    for status in [400, 401, 403] {
        let tokens = Server::start(move |_| Reply::new(status, "{}")).await;
        let realm = format!("Bearer realm=\"http://{}/\"", tokens.address);
        let server =
            Server::start(move |_| Reply::new(401, "").with("www-authenticate", realm.clone())).await;
        let image = image(&server.registry(), "a:v1");
        assert_eq!(client().metadata(&image).await, Err(RegistryError::Unauthorized));
        assert_eq!((server.take().len(), tokens.take().len()), (1, 1));
    }
}

#[tokio::test]
async fn rotated_credentials_are_read_at_the_first_refusal() {
    let password = Arc::new(Mutex::new("old".to_owned()));
    let (store, wanted) = (store(), Arc::clone(&password));
    let server = Server::start(move |seen| store.guarded(seen, &basic("me", &wanted.lock()), "Basic")).await;
    let entry = |password| for_server(&server, &json!({"username": "me", "password": password}));
    let file = ConfigFile::new(&entry("old"));
    let (client, image) = (with(file.private()), image(&server.registry(), "a:v1"));
    client.digest(&image).await.unwrap();
    server.take();

    file.write(&json!({"auths": entry("new")}).to_string());
    client.digest(&image).await.unwrap();
    assert_eq!(server.take().len(), 1, "what works is not touched");
    *password.lock() = "new".into();
    client.digest(&image).await.unwrap();
    assert_eq!(server.take().len(), 2);
    client.digest(&image).await.unwrap();
    assert_eq!(server.take().len(), 1);

    // And where they are rotated to what is wrong as well.
    file.write(&json!({"auths": entry("wrong")}).to_string());
    *password.lock() = "newer".into();
    assert_eq!(client.digest(&image).await, Err(RegistryError::Unauthorized));
    assert_eq!(server.take().len(), 2);
}

#[tokio::test]
async fn rotated_credentials_bring_other_tokens() {
    let password = Arc::new(Mutex::new("old".to_owned()));
    let wanted = Arc::clone(&password);
    let it =
        WithTokens::start(300, move |seen| seen.authorization() == Some(&basic("me", &wanted.lock()))).await;
    let entry = |password| for_server(&it.registry, &json!({"username": "me", "password": password}));
    let file = ConfigFile::new(&entry("old"));
    let (client, image) = (with(file.private()), image(&it.registry.registry(), "a:v1"));
    client.digest(&image).await.unwrap();
    it.take();

    // The registry takes back the cached token and the password that it came by.
    file.write(&json!({"auths": entry("new")}).to_string());
    *password.lock() = "new".into();
    *it.token.lock() = "t2".into();
    client.digest(&image).await.unwrap();
    assert_eq!(it.take(), (2, 1));

    // Here the token server is the one to refuse.
    pass(Duration::from_mins(5)).await;
    file.write(&json!({"auths": entry("newer")}).to_string());
    *password.lock() = "newer".into();
    client.digest(&image).await.unwrap();
    assert_eq!(it.take(), (1, 2));
}

#[tokio::test]
async fn a_registry_that_always_wants_something_else_is_left() {
    let times = AtomicUsize::new(0);
    let tokens = Server::start(|_| Reply::json(&json!({"token": "t"}))).await;
    let realm = format!("http://{}", tokens.address);
    let server = Server::start(move |_| {
        let time = times.fetch_add(1, Ordering::Relaxed);
        Reply::new(401, "").with("www-authenticate", format!("Bearer realm=\"{realm}/{time}\""))
    })
    .await;
    assert_eq!(client().digest(&image(&server.registry(), "a:v1")).await, Err(RegistryError::Unauthorized));
    assert_eq!(server.take().len(), 4);
}

#[tokio::test]
async fn credentials_do_not_go_out_in_clear() {
    let tokens = Server::start(|_| Reply::json(&json!({"token": "t"}))).await;
    let realm = format!("Bearer realm=\"http://localhost:{}\"", tokens.address.port());
    let server = Server::start_tls("server.crt", "server.key", move |_| {
        Reply::new(401, "").with("www-authenticate", realm.clone())
    })
    .await;
    let image = image(&format!("localhost:{}", server.address.port()), "a:v1");
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(crate::server::fixture("ca.crt"), directory.path().join("ca.crt")).unwrap();
    let roots = porch_fn_registry::Roots::with_private(directory.path().to_owned());
    let client = |insecure: Vec<String>| Client::new(Options { roots: roots.clone(), insecure, ..options() });
    let error = client(vec![]).digest(&image).await.unwrap_err();
    assert!(matches!(error, RegistryError::Malformed { what: "token", .. }), "{error}");
    assert!(error.to_string().contains("--insecure-registries"), "{error}");
    assert_eq!(tokens.take().len(), 0);
    // The realm's host by name: then it is meant.
    let port = tokens.address.port();
    let found = client(vec![format!("localhost:{port}")]).digest(&image).await;
    assert_eq!(found, Err(RegistryError::Unauthorized));
    assert!(!tokens.take().is_empty());
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_told_as_long_as_there_was_no_good_one() {
    let server = Server::start(|seen| store().guarded(seen, &basic("me", "p"), "Basic")).await;
    let image = image(&server.registry(), "a:v1");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.json");
    let credentials = private(&path);
    let client = with(credentials.clone());
    let shown = path.display();
    let told = |problem: &str| {
        Err(RegistryError::Credentials(format!(
            "the registry credentials of --registry-auth-secret-path {shown} cannot be used: {problem}; mount a \
             Secret of type kubernetes.io/dockerconfigjson there"
        )))
    };
    assert_eq!(client.digest(&image).await, told("there is no such file"));
    std::fs::create_dir(&path).unwrap();
    assert_eq!(client.digest(&image).await, told("it is not a file"));
    std::fs::remove_dir(&path).unwrap();
    for (text, problem) in [
        ("{\n  \"auths\" \"pl4nted\"}", "line 2, column 11: this is not JSON"),
        ("{}", "it has no auths"),
        (
            r#"{"auths": {}, "credsStore": "desktop"}"#,
            "it leaves credentials to a program (credsStore), and there is none here: write the credentials into \
             auths, and remove credsStore",
        ),
        (
            r#"{"auths": {}, "credHelpers": {"gcr.io": "gcloud"}}"#,
            "it leaves credentials to a program (credHelpers), and there is none here: write the credentials into \
             auths, and remove credHelpers",
        ),
        (&" ".repeat((1 << 20) + 1), "it has more than 1048576 bytes"),
    ] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(client.digest(&image).await, told(problem));
        assert_eq!(credentials.last_error().map(RegistryError::Credentials), told(problem).err());
    }
    assert!(server.seen().iter().all(|seen| seen.authorization().is_none()));

    // What everybody may have is had.
    let open = Server::start(|seen| store().answer(seen)).await;
    client.metadata(&crate::image(&open.registry(), "a:v1")).await.unwrap();
    assert_eq!(open.take().len(), 3);
    let missing = client.digest(&crate::image(&open.registry(), "c:v1")).await;
    assert_eq!(missing, Err(RegistryError::NotFound));
    assert_eq!(open.take(), ["HEAD /v2/c/manifests/v1"]);

    // A good one counts at once; a broken one after it does not.
    std::fs::write(
        &path,
        json!({"auths": for_server(&server, &json!({"username": "me", "password": "p"}))}).to_string(),
    )
    .unwrap();
    client.digest(&image).await.unwrap();
    assert_eq!(credentials.last_error(), None);
    std::fs::write(&path, "{").unwrap();
    credentials.reload().await;
    assert!(credentials.last_error().unwrap().contains("line 1, column 1: the JSON ends too early"));
    client.digest(&image).await.unwrap();
}

#[tokio::test]
async fn the_default_file_is_used_as_far_as_it_goes() {
    let store = store();
    let server = Server::start(move |seen| store.guarded(seen, &basic("me", "pw"), "Basic")).await;
    let file = ConfigFile::new(&json!({}));
    let missing = file.directory.path().join("missing.json");
    let default = CredentialFile::new(CredentialSource::Default(vec![missing, file.path()]));
    let (client, image) = (with(default.clone()), image(&server.registry(), "a:v1"));
    file.write("{");
    assert_eq!(client.digest(&image).await, Err(RegistryError::Unauthorized));
    assert!(default.last_error().is_some());
    let auth = BASE64_STANDARD.encode("me:pw");
    let auths = for_server(&server, &json!({ "auth": auth }));
    file.write(&json!({"auths": auths, "credsStore": "desktop"}).to_string());
    client.digest(&image).await.unwrap();
    assert_eq!(default.last_error(), None);
    std::fs::remove_file(file.path()).unwrap();
    default.reload().await;
    assert_eq!(client.digest(&image).await, Err(RegistryError::Unauthorized));
}

#[tokio::test]
async fn who_copies_the_file_sees_each_good_content() {
    let file = ConfigFile::new(&login("pl4nted"));
    let credentials = file.private();
    let mut content = credentials.subscribe();
    assert!(content.borrow_and_update().is_none());
    credentials.reload().await;
    assert!(content.has_changed().unwrap());
    let first = content.borrow_and_update().clone().unwrap();
    assert_eq!(first.file.bytes, std::fs::read(file.path()).unwrap());
    assert!(first.file.modified.is_some());
    assert!(!format!("{first:?} {credentials:?}").contains("auths"));

    credentials.reload().await;
    file.write("broken");
    credentials.reload().await;
    assert!(!content.has_changed().unwrap());

    file.write(&json!({"auths": login("other")}).to_string());
    credentials.reload().await;
    assert!(content.has_changed().unwrap());
    assert_eq!(content.borrow().as_ref().unwrap().file.bytes, std::fs::read(file.path()).unwrap());
}
