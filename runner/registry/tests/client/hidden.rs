//! Credentials are shown with the first request of an image, also to registries that are open and
//! answer 404 for private images.

use porch_fn_registry::{Client, CredentialFile, CredentialSource, Options, Registry as _, RegistryError};
use serde_json::{Value, json};

use crate::server::{Reply, Seen, Server, fixture};
use crate::store::{OCI_MANIFEST, Store};
use crate::{ConfigFile, client, image, options, private};

const AUTH: &str = "bWU6cHc=";

fn with(credentials: CredentialFile) -> Client {
    Client::new(Options { credentials, ..options() })
}

fn config(server: &Server, entry: &Value) -> ConfigFile {
    ConfigFile::new(&json!({ server.registry(): entry }))
}

/// Has `private` for requests with this authorization only, and answers `top` to `/v2/`.
fn hiding(authorization: &'static str, top: Reply) -> impl Fn(&Seen) -> Reply + Send + Sync + 'static {
    let mut store = Store::default();
    store.image("open", "v1", OCI_MANIFEST);
    store.image("private", "v1", OCI_MANIFEST);
    move |seen| match seen.path.as_str() {
        "/v2/" => top.clone(),
        path if path.starts_with("/v2/private/") && seen.authorization() != Some(authorization) => {
            Reply::new(404, "{}")
        }
        _ => store.answer(seen),
    }
}

#[tokio::test]
async fn credentials_are_shown_first() {
    let basic = Reply::new(401, "").with("www-authenticate", "Basic realm=\"it\"");
    for top in [basic, Reply::new(200, "{}"), Reply::new(404, "{}")] {
        let server = Server::start(hiding("Basic bWU6cHc=", top)).await;
        let file = config(&server, &json!({ "auth": AUTH }));
        let (client, registry) = (with(file.private()), server.registry());
        let found = client.metadata(&image(&registry, "private:v1")).await.unwrap();
        assert_eq!(found.command[1], "v1");
        let asked = server.take();
        assert_eq!(asked[..2], ["GET /v2/", "GET /v2/private/manifests/v1"]);
        assert_eq!(asked.len(), 3);
        // The challenge is asked for once.
        client.metadata(&image(&registry, "open:v1")).await.unwrap();
        let missing = client.digest(&image(&registry, "private:v2")).await;
        assert_eq!((missing, server.take().len()), (Err(RegistryError::NotFound), 3));
    }
}

#[tokio::test]
async fn a_token_is_fetched_for_the_images_own_scope() {
    let tokens = Server::start(|seen| {
        let is_us = seen.authorization() == Some("Basic bWU6cHc=");
        if is_us { Reply::json(&json!({"token": "t"})) } else { Reply::new(401, "") }
    })
    .await;
    // ghcr.io names a repository that does not exist.
    let challenge = format!(
        "Bearer realm=\"http://{}/\",service=\"it\",scope=\"repository:user/image:pull\"",
        tokens.address
    );
    let top = Reply::new(401, "").with("www-authenticate", challenge);
    let server = Server::start(hiding("Bearer t", top)).await;
    let file = config(&server, &json!({ "auth": AUTH }));
    let client = with(file.private());
    client.metadata(&image(&server.registry(), "private:v1")).await.unwrap();
    assert_eq!(tokens.take(), ["GET /?service=it&scope=repository%3Aprivate%3Apull"]);
    client.digest(&image(&server.registry(), "private:v1")).await.unwrap();
    assert_eq!(tokens.take(), [""; 0], "it is kept");
}

#[tokio::test]
async fn without_credentials_for_it_a_registry_is_asked_anonymously() {
    let server = Server::start(hiding("Basic bWU6cHc=", Reply::new(200, ""))).await;
    let private_image = image(&server.registry(), "private:v1");
    let of_others = ConfigFile::new(&json!({ "a.b": { "auth": AUTH } }));
    for client in [client(), with(of_others.private())] {
        assert_eq!(client.digest(&private_image).await, Err(RegistryError::NotFound));
        assert_eq!(server.take(), ["HEAD /v2/private/manifests/v1"]);
    }
    // An identity token is for a token server, and this registry names none.
    let identity = config(&server, &json!({ "identitytoken": "id" }));
    assert_eq!(with(identity.private()).digest(&private_image).await, Err(RegistryError::NotFound));
    assert!(server.seen().iter().all(|seen| seen.authorization().is_none()));
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_reported_if_something_may_be_hidden() {
    let directory = tempfile::tempdir().unwrap();
    let client = with(private(&directory.path().join("config.json")));
    let basic = Reply::new(401, "").with("www-authenticate", "Basic");
    for (top, reported) in [(basic, true), (Reply::new(200, "{}"), false)] {
        let server = Server::start(hiding("Basic bWU6cHc=", top)).await;
        let error = client.digest(&image(&server.registry(), "private:v1")).await.unwrap_err();
        assert_eq!(matches!(error, RegistryError::Credentials(_)), reported, "{error}");
        client.digest(&image(&server.registry(), "open:v1")).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_shown_to_another_place() {
    // The registry sends us to a storage that has nothing, by plain HTTP.
    let storage = Server::start(|_| Reply::new(404, "").with("www-authenticate", "Basic")).await;
    let place = format!("http://{}/", storage.address);
    let server = Server::start_tls("server.crt", "server.key", move |_| {
        Reply::new(307, "").with("location", place.clone())
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("ca.crt"), directory.path().join("ca.crt")).unwrap();
    let file =
        ConfigFile::new(&json!({ "127.0.0.1": { "auth": AUTH }, server.registry(): { "auth": AUTH } }));
    let client = Client::new(Options {
        credentials: CredentialFile::new(CredentialSource::Default(vec![file.path()])),
        roots: porch_fn_registry::Roots::with_private(directory.path().to_owned()),
        insecure: vec![storage.registry()],
        ..options()
    });
    let found = client.digest(&image(&server.registry(), "private:v1")).await;
    assert_eq!(found, Err(RegistryError::NotFound));
    assert!(!storage.seen().is_empty());
    assert!(storage.seen().iter().all(|seen| seen.authorization().is_none()));
}
