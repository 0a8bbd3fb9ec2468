//! Registries that are open, and say of private images that they are not there.

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

fn images() -> Store {
    let mut store = Store::default();
    store.image("open", "v1", OCI_MANIFEST);
    store.image("private", "v1", OCI_MANIFEST);
    store
}

/// Has `private` for those alone who show `authorization`, and says `top` of `/v2/`.
fn hiding(authorization: &'static str, top: Reply) -> impl Fn(&Seen) -> Reply + Send + Sync + 'static {
    let store = images();
    move |seen| match seen.path.as_str() {
        "/v2/" => top.clone(),
        path if path.starts_with("/v2/private/") && seen.authorization() != Some(authorization) => {
            Reply::new(404, "{}")
        }
        _ => store.answer(seen),
    }
}

#[tokio::test]
async fn credentials_are_shown_before_it_is_believed() {
    let says_basic = Reply::new(401, "").with("www-authenticate", "Basic realm=\"it\"");
    for top in [says_basic, Reply::new(200, "{}"), Reply::new(404, "{}")] {
        let server = Server::start(hiding("Basic bWU6cHc=", top)).await;
        let file = config(&server, &json!({ "auth": AUTH }));
        let (client, registry) = (with(file.private()), server.registry());
        let found = client.metadata(&image(&registry, "private:v1")).await.unwrap();
        assert_eq!(found.command[1], "v1");
        let manifest = "GET /v2/private/manifests/v1";
        let asked = server.take();
        assert_eq!(asked[..3], [manifest, "GET /v2/", manifest]);
        // What was found out holds for the blob too.
        assert_eq!(asked.len(), 4);

        // Others are asked for as before, without credentials.
        client.metadata(&image(&registry, "open:v1")).await.unwrap();
        assert!(server.seen().iter().all(|seen| seen.authorization().is_none()));
        assert_eq!(server.take().len(), 2);
        // What is not there even so is not there.
        let missing = client.digest(&image(&registry, "private:v2")).await;
        assert_eq!(missing, Err(RegistryError::NotFound));
        assert_eq!(server.take().len(), 3);
    }
}

#[tokio::test]
async fn a_token_is_fetched_where_the_registry_wants_one() {
    let tokens = Server::start(|seen| {
        let is_us = seen.authorization() == Some("Basic bWU6cHc=");
        if is_us { Reply::json(&json!({"token": "t"})) } else { Reply::new(401, "") }
    })
    .await;
    let challenge = format!("Bearer realm=\"http://{}/\",service=\"it\"", tokens.address);
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
async fn who_has_nothing_to_show_believes_it_at_once() {
    let server = Server::start(hiding("Basic bWU6cHc=", Reply::new(200, ""))).await;
    let private_image = image(&server.registry(), "private:v1");
    let of_others = ConfigFile::new(&json!({ "a.b": { "auth": AUTH } }));
    for client in [client(), with(of_others.private())] {
        assert_eq!(client.digest(&private_image).await, Err(RegistryError::NotFound));
        assert_eq!(server.take(), ["HEAD /v2/private/manifests/v1"]);
    }
    // An identity token is for a token server, of which this registry has not told.
    let identity = config(&server, &json!({ "identitytoken": "id" }));
    assert_eq!(with(identity.private()).digest(&private_image).await, Err(RegistryError::NotFound));
    assert_eq!(server.take().len(), 2);
}

#[tokio::test]
async fn credentials_that_are_refused_are_told() {
    let store = images();
    let server = Server::start(move |seen| match seen.authorization() {
        Some(_) => Reply::new(401, ""),
        None if seen.path.starts_with("/v2/private/") => Reply::new(404, ""),
        None => store.answer(seen),
    })
    .await;
    let file = config(&server, &json!({ "auth": AUTH }));
    let client = with(file.private());
    let private_image = image(&server.registry(), "private:v1");
    assert_eq!(client.digest(&private_image).await, Err(RegistryError::Unauthorized));
    assert_eq!(server.take().len(), 3);
    client.digest(&image(&server.registry(), "open:v1")).await.unwrap();
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_told_where_something_is_hidden() {
    let directory = tempfile::tempdir().unwrap();
    let client = with(private(&directory.path().join("config.json")));
    let says_basic = Reply::new(401, "").with("www-authenticate", "Basic");
    for (top, told) in [(says_basic, true), (Reply::new(200, "{}"), false)] {
        let server = Server::start(hiding("Basic bWU6cHc=", top)).await;
        let error = client.digest(&image(&server.registry(), "private:v1")).await.unwrap_err();
        assert_eq!(matches!(error, RegistryError::Credentials(_)), told, "{error}");
        client.digest(&image(&server.registry(), "open:v1")).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_shown_to_another_place() {
    // The registry sends us to a storage that has nothing, by plain HTTP.
    let storage = Server::start(|_| Reply::new(404, "")).await;
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
    assert_eq!((server.seen().len(), storage.seen().len()), (1, 1));
    let seen = [server.seen(), storage.seen()].concat();
    assert!(seen.iter().all(|seen| seen.authorization().is_none()));
}
