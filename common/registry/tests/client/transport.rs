//! TLS, redirects and connections.

use porch_fn_image::Image;
use porch_fn_registry::{Client, Credentials, Options, Registry as _, RegistryError, Roots, roots};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::server::{Reply, Server, basic};
use crate::store::Store;
use crate::{TempDir, client, client_with, image, malformed, open, options, plain};

async fn tls_server(certificate: &str, key: &str) -> Server {
    let store = Store::of_images();
    Server::start_tls(certificate, key, move |seen| store.answer(seen)).await
}

/// A client that uses HTTPS and trusts the CA in the directory.
fn trusting(directory: &TempDir) -> (Client, Roots) {
    let roots = roots(Some(directory.path().to_owned()), Vec::new()).unwrap();
    (Client::new(Options { roots: roots.clone(), ..options() }), roots)
}

#[tokio::test]
async fn a_registry_is_trusted_by_the_given_ca() {
    let server = tls_server("server.crt", "server.key").await;
    for (files, trusted) in [
        (&[][..], false),
        (&[("ca.crt", "ca.crt")], true),
        (&[("ca.pem", "ca.crt")], true),
        (&[("ca.crt", "ca.crt"), ("ca.pem", "other-ca.crt")], true),
        (&[("ca.crt", "other-ca.crt"), ("ca.pem", "ca.crt")], false),
        (&[("ca.crt", "server.key")], false),
        (&[("ca.crt", "regenerate")], false),
    ] {
        let directory = TempDir(tempfile::tempdir().unwrap());
        for (name, certificate) in files {
            directory.put(name, certificate);
        }
        let (client, roots) = trusting(&directory);
        let found = client.metadata(&image(&server, "a:v1")).await.map(|found| found.command.len());
        assert_eq!(found, if trusted { Ok(2) } else { Err(RegistryError::Untrusted) }, "{files:?}");
        let is_read = files.iter().any(|(_, from)| from.ends_with("ca.crt"));
        assert_eq!(roots.last_error().is_none(), is_read, "{files:?} {:?}", roots.last_error());
    }
    assert!(server.seen().iter().all(|seen| seen.version == http::Version::HTTP_2));
}

#[tokio::test]
async fn a_changed_ca_is_used_without_a_restart_and_a_broken_one_is_not() {
    let server = tls_server("server.crt", "server.key").await;
    let image = image(&server, "a:v1");
    let directory = TempDir::ca("other-ca.crt");
    let (client, roots) = trusting(&directory);
    let untrusted = Err(RegistryError::Untrusted);
    assert_eq!(client.metadata(&image).await, untrusted);
    directory.put("ca.crt", "ca.crt");
    roots.reload().await;
    client.metadata(&image).await.unwrap();
    let ca = directory.path().join("ca.crt");
    std::fs::write(&ca, "-----BEGIN CERTIFICATE-----\n%%").unwrap();
    roots.reload().await;
    assert!(roots.last_error().unwrap().ends_with("ca.crt: it is not PEM"), "{:?}", roots.last_error());
    client.metadata(&image).await.unwrap();
    std::fs::remove_file(&ca).unwrap();
    roots.reload().await;
    assert!(roots.last_error().unwrap().ends_with("there is neither ca.crt nor ca.pem"));
    client.metadata(&image).await.unwrap();
    // A certificate that is no longer trusted is rejected, although a connection was open.
    directory.put("ca.crt", "other-ca.crt");
    roots.reload().await;
    assert_eq!(client.metadata(&image).await, untrusted);
}

#[tokio::test]
async fn a_certificate_that_is_its_own_ca_is_trusted_for_its_name_and_time() {
    // webpki rejects the first certificate; the client's own verifier makes an exception for it. In
    // the last case, the CA did not sign the certificate.
    for (certificate, ca, expected) in [
        ("self.crt", "self.crt", Ok(2)),
        ("self-other.crt", "self-other.crt", Err(RegistryError::CertificateName)),
        ("self-expired.crt", "self-expired.crt", Err(RegistryError::CertificateTime)),
        ("self.crt", "ca.crt", Err(RegistryError::Untrusted)),
    ] {
        let server = tls_server(certificate, "self.key").await;
        let directory = TempDir::ca(ca);
        let (client, roots) = trusting(&directory);
        let found = client.metadata(&image(&server, "a:v1")).await;
        assert_eq!(roots.last_error(), None);
        assert_eq!(found.map(|found| found.command.len()), expected, "{certificate}");
    }
}

#[tokio::test]
async fn credentials_are_sent_by_plain_http_only_to_insecure_registries() {
    let server = open(Store::of_images()).await;
    let file = TempDir::config(&server, &json!({"auth": "bWU6cHc="}));
    let with_port = server.address.to_string();
    for (insecure, expected) in [
        (&["127.0.0.1"][..], true),
        (&[&*with_port], true),
        (&["localhost"], false),
        (&["127.0.0.1:1"], false),
        (&[], false),
    ] {
        let credentials = Credentials::File(file.credentials());
        let options = Options { roots: plain(insecure), credentials, ..options() };
        let found = Client::new(options).metadata(&image(&server, "a:v1")).await.map(|_| ());
        // Without the flag, the client uses TLS, which the server does not speak.
        assert_eq!(found, if expected { Ok(()) } else { Err(RegistryError::PlainHttp) }, "{insecure:?}");
        let seen = server.take();
        assert_eq!(seen.is_empty(), !expected);
    }
}

#[tokio::test]
async fn a_private_registry_without_tls_is_asked_by_plain_http_without_credentials() {
    let server = open(Store::of_images()).await;
    let client = Client::new(Options { roots: plain(&[]), ..options() });
    client.metadata(&image(&server, "a:v1")).await.unwrap();
    assert!(server.seen().iter().all(|seen| seen.authorization().is_none()));
}

#[tokio::test]
async fn a_redirect_sends_no_credentials_to_another_host() {
    let storage = open(Store::of_images()).await;
    let (store, place) = (Store::of_images(), storage.url(""));
    let server = Server::start(move |seen| {
        let reply = store.guarded(seen, &basic("me", "pw"), "Basic");
        let is_blob = reply.status == 200 && seen.path.contains("/blobs/");
        if is_blob { Reply::redirect(format!("{place}{}", seen.path)) } else { reply }
    })
    .await;
    let file = TempDir::config(&server, &json!({"auth": "bWU6cHc="}));
    client_with(file.credentials()).metadata(&image(&server, "a:v1")).await.unwrap();
    assert!(server.seen().iter().any(|seen| seen.authorization() == Some(&basic("me", "pw"))));
    let seen = storage.seen();
    assert_eq!((seen.len(), seen[0].authorization()), (1, None));
}

#[tokio::test]
async fn a_refusal_by_another_host_is_not_about_the_credentials() {
    let storage = Server::start(|_| Reply::new(403, "expired")).await;
    let (store, place) = (Store::of_images(), storage.url("/blob?signature=s"));
    let server = Server::start(move |seen| {
        if seen.path.contains("/blobs/") { Reply::redirect(place.clone()) } else { store.answer(seen) }
    })
    .await;
    let found = client().metadata(&image(&server, "a:v1")).await;
    assert_eq!(found, Err(malformed("image configuration", "the response has status 403")));
    assert_eq!((server.take().len(), storage.take().len()), (2, 1));

    // A challenge by another host gets no credentials, although the file has some for that host.
    let storage = Server::start(|_| Reply::new(404, "").with("www-authenticate", "Basic")).await;
    let place = storage.url("/");
    let server = Server::start(move |_| Reply::redirect(place.clone())).await;
    let entry = json!({"auth": "bWU6cHc="});
    let file = TempDir::config(&server, &entry);
    file.write(
        &json!({"auths": {server.address.to_string(): entry, storage.address.to_string(): entry}})
            .to_string(),
    );
    let found = client_with(file.credentials()).digest(&image(&server, "a:v1")).await;
    assert_eq!(found, Err(RegistryError::NotFound));
    assert!(!storage.seen().is_empty() && storage.seen().iter().all(|seen| seen.authorization().is_none()));
}

#[tokio::test]
async fn a_sixth_redirect_and_one_from_https_to_plain_http_are_rejected() {
    let server = Server::start(|seen| Reply::redirect(format!("{}x", seen.path))).await;
    assert_eq!(client().metadata(&image(&server, "a:v1")).await, Err(RegistryError::Unreachable));
    assert_eq!(server.take().len(), 6);

    let plain = open(Store::of_images()).await;
    let place = plain.url("");
    let server = Server::start_tls("server.crt", "server.key", move |seen| {
        Reply::redirect(format!("{place}{}", seen.path))
    })
    .await;
    let (image, ca) = (image(&server, "a:v1"), TempDir::ca("ca.crt"));
    let (client, _) = trusting(&ca);
    assert_eq!(client.metadata(&image).await, Err(RegistryError::Unreachable));
    assert_eq!(plain.take().len(), 0);
    let roots = roots(Some(ca.path().to_owned()), vec![plain.address.to_string()]).unwrap();
    let named = Client::new(Options { roots, ..options() });
    named.metadata(&image).await.unwrap();
    assert_eq!(plain.take().len(), 2);
}

#[tokio::test]
async fn a_request_on_a_closed_kept_connection_is_repeated() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let image = Image::parse(&format!("{}/fn:v1", listener.local_addr().unwrap()), "").unwrap();
    let digest = format!("sha256:{}", "0".repeat(64));
    let head = format!("HTTP/1.1 200 OK\r\ndocker-content-digest: {digest}\r\ncontent-length: 9\r\n\r\n");
    // The server answers one request on each connection. It reads a second request on the first
    // connection, and closes the connection without an answer.
    let serving = tokio::spawn(async move {
        let mut buffer = [0; 4096];
        for connection in 1..=2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut buffer).await.unwrap() > 0);
            stream.write_all(head.as_bytes()).await.unwrap();
            if connection == 1 {
                assert!(stream.read(&mut buffer).await.unwrap() > 0);
            }
        }
    });
    let client = client();
    for _ in 0..2 {
        assert_eq!(*client.digest(&image).await.unwrap(), *digest);
    }
    serving.await.unwrap();
}
