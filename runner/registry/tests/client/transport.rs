//! TLS, redirects and connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use http::Version;
use porch_fn_registry::{Client, Options, Registry as _, RegistryError, Roots};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::server::{Reply, Server, fixture};
use crate::store::{OCI_MANIFEST, Store};
use crate::{ConfigFile, client, image, options};

fn store() -> Store {
    let mut store = Store::default();
    store.image("fn", "v1", OCI_MANIFEST);
    store
}

async fn tls_server(certificate: &str, key: &str) -> Server {
    let store = store();
    Server::start_tls(certificate, key, move |seen| store.answer(seen)).await
}

/// Over HTTPS, trusting what is in the directory.
fn trusting(directory: &Path) -> (Client, Roots) {
    let roots = Roots::with_private(directory.to_owned());
    (Client::new(Options { roots: roots.clone(), insecure: Vec::new(), ..options() }), roots)
}

fn put(directory: &Path, name: &str, certificate: &str) {
    std::fs::copy(fixture(certificate), directory.join(name)).unwrap();
}

#[tokio::test]
async fn a_registry_is_trusted_by_the_ca_that_was_given() {
    let server = tls_server("server.crt", "server.key").await;
    let image = image(&server.registry(), "fn:v1");
    for (files, trusted) in [
        (&[][..], false),
        (&[("ca.crt", "ca.crt")], true),
        (&[("ca.pem", "ca.crt")], true),
        (&[("ca.crt", "ca.crt"), ("ca.pem", "other-ca.crt")], true),
        (&[("ca.crt", "other-ca.crt"), ("ca.pem", "ca.crt")], false),
        (&[("ca.crt", "server.key")], false),
        (&[("ca.crt", "regenerate")], false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        for (name, certificate) in files {
            put(directory.path(), name, certificate);
        }
        let (client, roots) = trusting(directory.path());
        let found = client.metadata(&image).await;
        let expected = if trusted { Ok("v1") } else { Err(RegistryError::Untrusted) };
        assert_eq!(
            found.as_ref().map(|it| it.command[1].as_str()),
            expected.as_ref().map(|it| *it),
            "{files:?}"
        );
        let is_read = files.iter().any(|(_, from)| from.ends_with("ca.crt"));
        assert_eq!(roots.last_error().is_none(), is_read, "{files:?} {:?}", roots.last_error());
    }
    assert!(server.seen().iter().all(|seen| seen.version == Version::HTTP_2));
}

#[tokio::test]
async fn a_changed_ca_counts_without_a_restart_and_a_broken_one_does_not() {
    let server = tls_server("server.crt", "server.key").await;
    let image = image(&server.registry(), "fn:v1");
    let directory = tempfile::tempdir().unwrap();
    put(directory.path(), "ca.crt", "other-ca.crt");
    let (client, roots) = trusting(directory.path());
    assert_eq!(client.metadata(&image).await, Err(RegistryError::Untrusted));
    put(directory.path(), "ca.crt", "ca.crt");
    roots.reload().await;
    client.metadata(&image).await.unwrap();
    std::fs::write(directory.path().join("ca.crt"), "-----BEGIN CERTIFICATE-----\n%%").unwrap();
    roots.reload().await;
    assert!(roots.last_error().unwrap().ends_with("ca.crt: it is not PEM"), "{:?}", roots.last_error());
    client.metadata(&image).await.unwrap();
    std::fs::remove_file(directory.path().join("ca.crt")).unwrap();
    roots.reload().await;
    assert!(roots.last_error().unwrap().ends_with("there is neither ca.crt nor ca.pem"));
    client.metadata(&image).await.unwrap();
    // And what is no longer trusted is not, although a connection was open.
    put(directory.path(), "ca.crt", "other-ca.crt");
    roots.reload().await;
    assert_eq!(client.metadata(&image).await, Err(RegistryError::Untrusted));
}

#[tokio::test]
async fn a_certificate_that_is_its_own_ca_is_trusted_for_its_name_and_time() {
    // The first is what webpki alone refuses, by a name that `verifier` knows.
    for (certificate, expected) in [
        ("self.crt", Ok(2)),
        ("self-other.crt", Err(RegistryError::CertificateName)),
        ("self-expired.crt", Err(RegistryError::CertificateTime)),
    ] {
        let server = tls_server(certificate, "self.key").await;
        let directory = tempfile::tempdir().unwrap();
        put(directory.path(), "ca.crt", certificate);
        let (client, roots) = trusting(directory.path());
        let found = client.metadata(&image(&server.registry(), "fn:v1")).await;
        assert_eq!(roots.last_error(), None);
        assert_eq!(found.map(|it| it.command.len()), expected, "{certificate}");
    }
    // Only what was named is: not what another one calls itself.
    let server = tls_server("self.crt", "self.key").await;
    let directory = tempfile::tempdir().unwrap();
    put(directory.path(), "ca.crt", "ca.crt");
    let (client, _) = trusting(directory.path());
    assert_eq!(client.metadata(&image(&server.registry(), "fn:v1")).await, Err(RegistryError::Untrusted));
}

#[tokio::test]
async fn plain_http_is_for_those_that_were_named() {
    let store = store();
    let server = Server::start(move |seen| store.answer(seen)).await;
    let (port, image) = (server.address.port(), image(&server.registry(), "fn:v1"));
    for (insecure, expected) in [
        (vec!["127.0.0.1".to_owned()], true),
        (vec![format!("127.0.0.1:{port}")], true),
        (vec!["localhost".to_owned()], false),
        (vec!["127.0.0.1:1".to_owned()], false),
        (vec![], false),
    ] {
        let client = Client::new(Options { insecure: insecure.clone(), ..options() });
        let found = client.metadata(&image).await.map(|_| ());
        // TLS to what does not speak it: the text names --insecure-registries.
        assert_eq!(found, if expected { Ok(()) } else { Err(RegistryError::Untrusted) }, "{insecure:?}");
    }
}

#[tokio::test]
async fn a_redirect_takes_no_credentials_to_another_host() {
    let storage = {
        let store = store();
        Server::start(move |seen| store.answer(seen)).await
    };
    let place = format!("http://{}", storage.address);
    let store = store();
    let authorization = "Basic bWU6cHc=";
    let server = Server::start(move |seen| {
        let reply = store.guarded(seen, authorization, "Basic");
        if reply.status == 200 && seen.path.contains("/blobs/") {
            return Reply::new(307, "").with("location", format!("{place}{}", seen.path));
        }
        reply
    })
    .await;
    let file = ConfigFile::new(&serde_json::json!({ server.registry(): {"auth": "bWU6cHc="} }));
    let client = Client::new(Options { credentials: file.private(), ..options() });
    client.metadata(&image(&server.registry(), "fn:v1")).await.unwrap();
    assert!(server.seen().iter().any(|seen| seen.authorization() == Some(authorization)));
    let seen = storage.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].authorization(), None);
}

#[tokio::test]
async fn a_refusal_elsewhere_does_not_mean_our_credentials() {
    let storage = Server::start(|_| Reply::new(403, "expired")).await;
    let place = format!("http://{}/blob?signature=s", storage.address);
    let store = store();
    let server = Server::start(move |seen| {
        if seen.path.contains("/blobs/") {
            return Reply::new(302, "").with("location", place.clone());
        }
        store.answer(seen)
    })
    .await;
    let found = client().metadata(&image(&server.registry(), "fn:v1")).await;
    let reason = "it came with status 403".to_owned();
    assert_eq!(found, Err(RegistryError::Malformed { what: "image configuration", reason }));
    assert_eq!((server.take().len(), storage.take().len()), (2, 1));
}

#[tokio::test]
async fn redirects_end() {
    let server = Server::start(|seen| Reply::new(302, "").with("location", format!("{}x", seen.path))).await;
    let found = client().metadata(&image(&server.registry(), "fn:v1")).await;
    assert_eq!(found, Err(RegistryError::Unreachable));
    assert_eq!(server.take().len(), 6);
}

#[tokio::test]
async fn no_redirect_leads_from_https_to_plain_http() {
    let plain = {
        let store = store();
        Server::start(move |seen| store.answer(seen)).await
    };
    let place = format!("http://{}", plain.address);
    let server = Server::start_tls("server.crt", "server.key", move |seen| {
        Reply::new(302, "").with("location", format!("{place}{}", seen.path))
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    put(directory.path(), "ca.crt", "ca.crt");
    let image = image(&server.registry(), "fn:v1");
    assert_eq!(trusting(directory.path()).0.metadata(&image).await, Err(RegistryError::Unreachable));
    assert_eq!(plain.take().len(), 0);
    let named = Client::new(Options {
        roots: Roots::with_private(directory.path().to_owned()),
        insecure: vec![plain.registry()],
        ..options()
    });
    named.metadata(&image).await.unwrap();
    assert_eq!(plain.take().len(), 2);
}

#[tokio::test]
async fn a_registry_that_is_not_there_is_told() {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let found = client().metadata(&image(&address.to_string(), "fn:v1")).await;
    assert_eq!(found, Err(RegistryError::Unreachable));
    let found = client().metadata(&image("registry.invalid", "fn:v1")).await;
    assert_eq!(found, Err(RegistryError::Unreachable));
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_no_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let digest = format!("sha256:{}", "0".repeat(64));
    let head = format!("HTTP/1.1 200 OK\r\ndocker-content-digest: {digest}\r\ncontent-length: 9\r\n\r\n");
    // Each connection serves one request; the second request on it is read, and answered by its
    // end.
    let serving = tokio::spawn(async move {
        let mut connections = 0;
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            connections += 1;
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0);
            stream.write_all(head.as_bytes()).await.unwrap();
            if connections == 2 {
                return;
            }
            assert!(stream.read(&mut buffer).await.unwrap() > 0);
        }
    });
    let (client, image) = (client(), image(&address.to_string(), "fn:v1"));
    assert_eq!(*client.digest(&image).await.unwrap(), *digest);
    assert_eq!(*client.digest(&image).await.unwrap(), *digest);
    serving.await.unwrap();
}
