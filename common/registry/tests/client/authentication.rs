//! Authentication at registries and token servers, and credentials that change.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use porch_fn_registry::{Client, CredentialSource, Options, Registry as _, RegistryError, roots};
use serde_json::{Value, json};

use crate::server::{Reply, Seen, Server, basic};
use crate::store::Store;
use crate::{TempDir, client, client_with, image, options, plain};

fn login(password: &str) -> Value {
    json!({"username": "me", "password": password})
}

/// Starts a registry that requires this password.
async fn password_registry(password: &Arc<Mutex<String>>) -> Server {
    let (store, wanted) = (Store::of_images(), Arc::clone(password));
    Server::start(move |seen| store.guarded(seen, &basic("me", &wanted.lock()), "Basic")).await
}

fn password(text: &str) -> Arc<Mutex<String>> {
    Arc::new(Mutex::new(text.to_owned()))
}

/// A registry that accepts the tokens `t1-NAME`, and its token server.
struct WithTokens {
    registry: Server,
    tokens: Server,
}

impl WithTokens {
    async fn start(allowed: impl Fn(&Seen) -> bool + Send + Sync + 'static) -> Self {
        let tokens = Server::start(move |seen| {
            if !allowed(seen) {
                return Reply::new(401, "{}");
            }
            let text = format!("{}?{}", seen.path, seen.body);
            let name = text.split("repository%3A").nth(1).and_then(|rest| rest.split('%').next()).unwrap();
            Reply::json(&json!({"token": format!("t1-{name}")}))
        })
        .await;
        let realm = tokens.url("/token");
        let store = Store::of_images();
        let registry = Server::start(move |seen| {
            // Like ghcr.io's, the challenge's scope names a repository that does not exist.
            let challenge =
                format!("Bearer realm=\"{realm}\",service=\"it\",scope=\"repository:user/image:pull\"");
            let name = seen.path.split('/').nth(2).unwrap();
            store.guarded(seen, &format!("Bearer t1-{name}"), &challenge)
        })
        .await;
        Self { registry, tokens }
    }

    fn take(&self) -> (usize, usize) {
        (self.registry.take().len(), self.tokens.take().len())
    }
}

/// A private registry may speak plain HTTP, and its token server then, too. The second image's
/// challenge is cached before the client has found out that the registry does not speak TLS.
#[tokio::test]
async fn every_image_of_a_private_registry_without_tls_has_its_token() {
    let it = WithTokens::start(|_| true).await;
    let client = Client::new(Options { roots: plain(&[]), ..options() });
    for name in ["a:v1", "b:v1", "a:v1", "b:v1"] {
        client.metadata(&image(&it.registry, name)).await.unwrap();
    }
}

#[tokio::test]
async fn a_token_is_fetched_once_per_lookup() {
    let it = WithTokens::start(|seen| seen.authorization() == Some(&basic("me", "pw"))).await;
    let file = TempDir::config(&it.registry, &login("pw"));
    let client = client_with(file.credentials());
    client.metadata(&image(&it.registry, "a:v1")).await.unwrap();
    let asked = it.registry.take();
    assert_eq!((&*asked[0], asked.len()), ("GET /v2/", 3), "the client requests the challenge first");
    assert_eq!(it.tokens.take(), ["GET /token?service=it&scope=repository%3Aa%3Apull"]);
    // The client has cached the challenge.
    client.metadata(&image(&it.registry, "b:v1")).await.unwrap();
    assert_eq!(it.take(), (2, 1));
}

#[tokio::test]
async fn an_identity_token_is_exchanged_in_a_form() {
    let it = WithTokens::start(|seen| {
        seen.method == "POST" && seen.headers["content-type"] == "application/x-www-form-urlencoded"
    })
    .await;
    let file =
        TempDir::config(&it.registry, &json!({"auth": "PHRva2VuPjo=", "identitytoken": "id+ en&tity"}));
    client_with(file.credentials()).metadata(&image(&it.registry, "a:v1")).await.unwrap();
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
async fn wrong_credentials_are_reported_and_not_sent_again() {
    let server = password_registry(&password("right")).await;
    let file = TempDir::config(&server, &login("wrong"));
    let (basic_client, wanted) = (client_with(file.credentials()), image(&server, "a:v1"));
    for requests in [2, 1] {
        assert_eq!(basic_client.metadata(&wanted).await, Err(RegistryError::Unauthorized));
        assert_eq!(server.take().len(), requests, "the challenge is requested once");
    }
    assert_eq!(client().metadata(&wanted).await, Err(RegistryError::Unauthorized));

    for status in [400, 401, 403] {
        let tokens = Server::start(move |_| Reply::new(status, "{}")).await;
        let challenge = format!("Bearer realm=\"{}\"", tokens.url("/"));
        let server =
            Server::start(move |_| Reply::new(401, "").with("www-authenticate", challenge.clone())).await;
        assert_eq!(client().metadata(&image(&server, "a:v1")).await, Err(RegistryError::Unauthorized));
        assert_eq!((server.take().len(), tokens.take().len()), (1, 1));
    }
}

#[tokio::test]
async fn rotated_credentials_are_read_at_the_first_refusal() {
    let wanted = password("old");
    let server = password_registry(&wanted).await;
    let file = TempDir::config(&server, &login("old"));
    let (client, image) = (client_with(file.credentials()), image(&server, "a:v1"));
    client.digest(&image).await.unwrap();
    server.take();
    let rotate = |password: &str| {
        file.write(&json!({"auths": {server.address.to_string(): login(password)}}).to_string());
    };

    rotate("new");
    client.digest(&image).await.unwrap();
    assert_eq!(server.take().len(), 1, "working credentials are not read again");
    *wanted.lock() = "new".into();
    for requests in [2, 1] {
        client.digest(&image).await.unwrap();
        assert_eq!(server.take().len(), requests);
    }
    // The new password is wrong.
    rotate("wrong");
    *wanted.lock() = "newer".into();
    assert_eq!(client.digest(&image).await, Err(RegistryError::Unauthorized));
    assert_eq!(server.take().len(), 2);
}

#[tokio::test]
async fn rotated_credentials_are_read_when_the_token_server_refuses() {
    let it = WithTokens::start(|seen| seen.authorization() == Some(&basic("me", "new"))).await;
    let file = TempDir::config(&it.registry, &login("old"));
    let (credentials, image) = (file.credentials(), image(&it.registry, "a:v1"));
    credentials.reload().await;
    file.write(&json!({"auths": {it.registry.address.to_string(): login("new")}}).to_string());
    client_with(credentials).digest(&image).await.unwrap();
    assert_eq!(it.take(), (2, 2));
}

#[tokio::test]
async fn attempts_end_if_the_challenge_changes_every_time() {
    let times = AtomicUsize::new(0);
    let tokens = Server::start(|_| Reply::json(&json!({"token": "t"}))).await;
    let realm = tokens.url("");
    let server = Server::start(move |_| {
        let time = times.fetch_add(1, Ordering::Relaxed);
        Reply::new(401, "").with("www-authenticate", format!("Bearer realm=\"{realm}/{time}\""))
    })
    .await;
    assert_eq!(client().digest(&image(&server, "a:v1")).await, Err(RegistryError::Unauthorized));
    assert_eq!(server.take().len(), 4);
}

#[tokio::test]
async fn credentials_are_not_sent_unencrypted() {
    let tokens = Server::start(|_| Reply::json(&json!({"token": "t"}))).await;
    let realm = format!("Bearer realm=\"{}\"", tokens.url(""));
    let server = Server::start_tls("server.crt", "server.key", move |_| {
        Reply::new(401, "").with("www-authenticate", realm.clone())
    })
    .await;
    let (image, ca) = (image(&server, "a:v1"), TempDir::ca("ca.crt"));
    let client = |insecure: Vec<String>| {
        Client::new(Options { roots: roots(Some(ca.path().to_owned()), insecure).unwrap(), ..options() })
    };
    let error = client(vec![]).digest(&image).await.unwrap_err();
    assert!(matches!(error, RegistryError::Malformed { what: "token", .. }), "{error}");
    assert!(error.to_string().contains("--insecure-registries"), "{error}");
    assert_eq!(tokens.take().len(), 0);
    // The realm's host is an insecure registry, so plain HTTP is allowed.
    let found = client(vec![tokens.address.to_string()]).digest(&image).await;
    assert_eq!(found, Err(RegistryError::Unauthorized));
    assert!(!tokens.take().is_empty());
}

/// Some registries send no challenge. They answer 404 to anonymous requests for private images.
#[tokio::test]
async fn credentials_are_sent_even_to_a_registry_without_a_challenge() {
    let basic_challenge = Reply::new(401, "").with("www-authenticate", "Basic realm=\"it\"");
    for (base_reply, is_reported) in
        [(basic_challenge, true), (Reply::new(200, "{}"), false), (Reply::new(404, ""), false)]
    {
        let store = Store::of_images();
        let server = Server::start(move |seen| match seen.path.as_str() {
            "/v2/" => base_reply.clone(),
            path if path.starts_with("/v2/b/") && seen.authorization() != Some(&basic("me", "pw")) => {
                Reply::new(404, "{}")
            }
            _ => store.answer(seen),
        })
        .await;
        let (open, private) = (image(&server, "a:v1"), image(&server, "b:v1"));
        let file = TempDir::config(&server, &login("pw"));
        let client = client_with(file.credentials());
        client.metadata(&private).await.unwrap();
        client.metadata(&open).await.unwrap();
        assert_eq!(client.digest(&image(&server, "b:v9")).await, Err(RegistryError::NotFound));
        assert_eq!((&*server.take()[0], server.seen().len()), ("GET /v2/", 0));

        // Without credentials for this registry, requests are anonymous. An identity token is sent
        // only to a token server.
        file.write(r#"{"auths": {"a.b": {"auth": "bWU6cHc="}}}"#);
        for anonymous in [client_with(file.credentials()), crate::client()] {
            assert_eq!(anonymous.digest(&private).await, Err(RegistryError::NotFound));
            assert_eq!(server.take(), ["HEAD /v2/b/manifests/v1"]);
        }
        let identity = TempDir::config(&server, &json!({"identitytoken": "id"}));
        assert_eq!(client_with(identity.credentials()).digest(&private).await, Err(RegistryError::NotFound));
        assert!(server.seen().iter().all(|seen| seen.authorization().is_none()));

        // At a 404, an unusable file is reported only after a Basic challenge.
        file.write("{");
        let broken = client_with(file.credentials());
        let error = broken.digest(&private).await.unwrap_err();
        assert_eq!(matches!(error, RegistryError::Credentials(_)), is_reported, "{error}");
        broken.digest(&open).await.unwrap();
    }
}

#[tokio::test]
async fn an_unusable_file_is_reported_until_a_usable_one_was_read() {
    let server = password_registry(&password("p")).await;
    let wanted = image(&server, "a:v1");
    let file = TempDir(tempfile::tempdir().unwrap());
    let (credentials, path) = (file.credentials(), file.file());
    let (client, shown) = (client_with(credentials.clone()), path.display());
    let reported = |problem: &str| {
        Err(RegistryError::Credentials(format!(
            "the registry credentials of --registry-auth-secret-path {shown} cannot be used: {problem}; mount a \
             Secret of type kubernetes.io/dockerconfigjson there"
        )))
    };
    assert_eq!(client.digest(&wanted).await, reported("there is no such file"));
    std::fs::create_dir(&path).unwrap();
    assert_eq!(client.digest(&wanted).await, reported("it is not a file"));
    std::fs::remove_dir(&path).unwrap();
    for (text, problem) in [
        ("{\n  \"auths\" \"pl4nted\"}", "it is not JSON (line 2, column 11)"),
        ("{}", "it has no auths"),
        (
            r#"{"auths": {}, "credsStore": "desktop"}"#,
            "it uses a credential helper (credsStore), which the runner cannot run: write the credentials into the \
             key auths, and remove the key credsStore",
        ),
        (&" ".repeat((1 << 20) + 1), "it has more than 1048576 bytes"),
    ] {
        file.write(text);
        assert_eq!(client.digest(&wanted).await, reported(problem));
        assert_eq!(credentials.last_error().map(RegistryError::Credentials), reported(problem).err());
    }
    assert!(server.seen().iter().all(|seen| seen.authorization().is_none()));

    // A usable file takes effect at once. A broken file after it is ignored.
    file.write(&json!({"auths": {server.address.to_string(): login("p")}}).to_string());
    client.digest(&wanted).await.unwrap();
    assert_eq!(credentials.last_error(), None);
    let mut copied = credentials.subscribe();
    assert_eq!(copied.borrow_and_update().as_ref().unwrap().bytes, std::fs::read(&path).unwrap());
    file.write("{");
    credentials.reload().await;
    assert!(credentials.last_error().unwrap().contains("the JSON ends too early (line 1, column 1)"));
    assert!(!copied.has_changed().unwrap());
    client.digest(&wanted).await.unwrap();
}

#[tokio::test]
async fn the_default_docker_config_is_used_without_its_helpers() {
    let server = password_registry(&password("pw")).await;
    let file = TempDir::config(&server, &login("pw"));
    let default = CredentialSource::Default(Some(file.file())).watch();
    let (client, image) = (client_with(default.clone()), image(&server, "a:v1"));
    let auths = json!({server.address.to_string(): login("pw")});
    file.write(&json!({"auths": auths, "credsStore": "desktop"}).to_string());
    client.digest(&image).await.unwrap();
    assert_eq!(default.last_error(), None);
    std::fs::remove_file(file.file()).unwrap();
    default.reload().await;
    assert_eq!(client.digest(&image).await, Err(RegistryError::Unauthorized));
    file.write("{");
    let broken = client_with(CredentialSource::Default(Some(file.file())).watch());
    let error = broken.digest(&image).await.unwrap_err().to_string();
    assert!(
        error.contains("config.json cannot be used: ") && error.contains("--enable-private-registries"),
        "{error}"
    );
}
