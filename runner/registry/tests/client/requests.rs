//! What is asked of open registries, and what their answers mean.

use porch_fn_registry::{Registry as _, RegistryError};
use serde_json::json;

use crate::server::{Reply, Server};
use crate::store::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Store, sha256};
use crate::{client, image};

fn malformed(what: &'static str, reason: &str) -> RegistryError {
    RegistryError::Malformed { what, reason: reason.into() }
}

#[tokio::test]
async fn an_image_takes_two_requests_and_an_index_three() {
    for (manifest, index) in [(OCI_MANIFEST, OCI_INDEX), (DOCKER_MANIFEST, DOCKER_LIST)] {
        let mut store = Store::default();
        let amd64 = store.image("team/fn", "v1", manifest);
        let arm64 = store.image("team/fn", "arm", manifest);
        let of_index = store.index(
            "team/fn",
            "multi",
            index,
            &[("sha256:none", "unknown", "unknown"), (&arm64, "linux", "arm64"), (&amd64, "linux", "amd64")],
        );
        let server = Server::start(move |seen| store.answer(seen)).await;
        let (client, registry) = (client(), server.registry());

        let metadata = client.metadata(&image(&registry, "team/fn:v1")).await.unwrap();
        assert_eq!(
            (&*metadata.digest, &metadata.command[..]),
            (&*amd64, &["/function".to_owned(), "v1".to_owned()][..])
        );
        assert_eq!(server.take().len(), 2);

        let metadata = client.metadata(&image(&registry, "team/fn:multi")).await.unwrap();
        assert_eq!((&*metadata.digest, &*metadata.command[1]), (&*of_index, "v1"));
        assert_eq!(server.take().len(), 3);

        // The digest beside a tag decides.
        let by_digest = client.metadata(&image(&registry, &format!("team/fn:v1@{arm64}"))).await.unwrap();
        assert_eq!((&*by_digest.digest, &*by_digest.command[1]), (&*arm64, "arm"));
        assert_eq!(server.take().len(), 2);
    }
}

#[tokio::test]
async fn one_index_within_another_is_followed_and_no_further_one() {
    let mut store = Store::default();
    let image_digest = store.image("fn", "leaf", OCI_MANIFEST);
    let one = store.index("fn", "one", OCI_INDEX, &[(&image_digest, "linux", "amd64")]);
    let two = store.index("fn", "two", OCI_INDEX, &[(&one, "linux", "amd64")]);
    store.index("fn", "three", OCI_INDEX, &[(&two, "linux", "amd64")]);
    let server = Server::start(move |seen| store.answer(seen)).await;
    let (client, registry) = (client(), server.registry());
    assert_eq!(client.metadata(&image(&registry, "fn:two")).await.unwrap().command[1], "leaf");
    assert_eq!(
        client.metadata(&image(&registry, "fn:three")).await,
        Err(malformed("manifest", "it has indexes within indexes within indexes"))
    );
}

#[tokio::test]
async fn a_digest_takes_one_request_without_a_body() {
    let mut store = Store::default();
    let digest = store.image("fn", "v1", OCI_MANIFEST);
    let server = Server::start(move |seen| store.answer(seen)).await;
    let (client, registry) = (client(), server.registry());
    assert_eq!(&*client.digest(&image(&registry, "fn:v1")).await.unwrap(), digest);
    assert_eq!(server.take(), ["HEAD /v2/fn/manifests/v1"]);
    assert_eq!(&*client.digest(&image(&registry, &format!("fn:v1@{digest}"))).await.unwrap(), digest);
    assert_eq!(server.take(), [""; 0]);
    assert_eq!(client.digest(&image(&registry, "fn:v2")).await, Err(RegistryError::NotFound));
}

#[tokio::test]
async fn a_registry_that_does_not_tell_digests_is_asked_for_the_manifest() {
    for of_head in [200, 405] {
        let mut store = Store::default();
        let digest = store.image("fn", "v1", OCI_MANIFEST);
        let server = Server::start(move |seen| {
            let mut reply = store.answer(seen);
            reply.headers.retain(|(name, _)| *name != "docker-content-digest");
            if seen.method == "HEAD" {
                reply.status = of_head;
            }
            reply
        })
        .await;
        let (client, image) = (client(), image(&server.registry(), "fn:v1"));
        assert_eq!(&*client.digest(&image).await.unwrap(), digest);
        assert_eq!(server.take(), ["HEAD /v2/fn/manifests/v1", "GET /v2/fn/manifests/v1"]);
        assert_eq!(&*client.metadata(&image).await.unwrap().digest, digest);
    }
}

#[tokio::test]
async fn content_that_is_not_what_its_digest_says_is_refused() {
    let not_it = |what| malformed(what, "its content does not have its digest");
    for (changed, what) in [("/manifests/", "manifest"), ("/blobs/", "image configuration")] {
        let mut store = Store::default();
        let digest = store.image("fn", "v1", OCI_MANIFEST);
        let server = Server::start(move |seen| {
            let mut reply = store.answer(seen);
            if seen.path.contains(changed) {
                reply =
                    Reply { headers: Vec::new(), ..Reply::json(&json!({"config": {"digest": "sha256:x"}})) };
            }
            reply
        })
        .await;
        let found = client().metadata(&image(&server.registry(), &format!("fn@{digest}"))).await;
        assert_eq!(found, Err(not_it(what)));
    }

    let mut store = Store::default();
    store.image("fn", "v1", OCI_MANIFEST);
    let server = Server::start(move |seen| {
        let mut reply = store.answer(seen);
        reply.headers.retain(|(name, _)| *name != "docker-content-digest");
        reply.with("docker-content-digest", sha256(b"something else"))
    })
    .await;
    assert_eq!(client().metadata(&image(&server.registry(), "fn:v1")).await, Err(not_it("manifest")));
}

#[tokio::test]
async fn no_digest_of_a_manifest_becomes_another_path() {
    for digest in ["../../../secret?x=", "sha256:../..", "md5:00", ""] {
        let mut store = Store::default();
        store.manifest("fn", "v1", OCI_MANIFEST, &json!({"schemaVersion": 2, "config": {"digest": digest}}));
        store.index("fn", "v2", OCI_INDEX, &[(digest, "linux", "amd64")]);
        let server = Server::start(move |seen| store.answer(seen)).await;
        let client = client();
        for tag in ["v1", "v2"] {
            let found = client.metadata(&image(&server.registry(), &format!("fn:{tag}"))).await;
            assert!(matches!(found, Err(RegistryError::Malformed { .. })), "{found:?}");
        }
        assert_eq!(server.take(), ["GET /v2/fn/manifests/v1", "GET /v2/fn/manifests/v2"]);
    }
}

#[tokio::test]
async fn each_status_has_its_meaning() {
    for (status, expected) in [
        (404, RegistryError::NotFound),
        (401, RegistryError::Unauthorized),
        (403, RegistryError::Unauthorized),
        (429, RegistryError::Busy { status: 429 }),
        (500, RegistryError::Busy { status: 500 }),
        (503, RegistryError::Busy { status: 503 }),
        (418, malformed("manifest", "it came with status 418")),
        (204, malformed("manifest", "it came with status 204")),
    ] {
        let server = Server::start(move |_| Reply::new(status, "pl4nted")).await;
        let found = client().metadata(&image(&server.registry(), "fn:v1")).await;
        assert_eq!(found, Err(expected));
        assert_eq!(server.take().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn tags_are_read_page_by_page() {
    let server = Server::start(|seen| {
        let (tags, next) = match seen.path.as_str() {
            "/v2/team/fn/tags/list?n=1000" => (json!(["v1", "v2"]), Some("/v2/team/fn/tags/list?last=v2")),
            "/v2/team/fn/tags/list?last=v2" => (json!(["v3"]), Some("?last=v3")),
            "/v2/team/fn/tags/list?last=v3" => (json!(null), None),
            "/v2/circle/tags/list?n=1000" => (json!(["v1"]), Some("?n=1")),
            "/v2/circle/tags/list?n=1" => (json!(["v1"]), Some("?n=1000")),
            "/v2/away/tags/list?n=1000" => (json!(["v1"]), Some("http://127.0.0.1:1/v2/away/tags/list?n=1")),
            _ => return Reply::new(404, ""),
        };
        let reply = Reply::json(&json!({"name": "x", "tags": tags}));
        match next {
            Some(next) => reply.with("link", format!("<{next}>; rel=\"next\"")),
            None => reply,
        }
    })
    .await;
    let (client, registry) = (client(), server.registry());
    let tags = async |name: &str| client.tags(&image(&registry, name)).await;
    assert_eq!(tags("team/fn").await.unwrap(), ["v1", "v2", "v3"]);
    assert_eq!(tags("none").await, Err(RegistryError::NotFound));
    assert_eq!(
        tags("away").await,
        Err(malformed("tag list", "its next page is said to be at another place"))
    );
    server.take();
    assert_eq!(
        tags("circle").await,
        Err(malformed("tag list", "it has more than 100 pages, which are not read"))
    );
    assert_eq!(server.take().len(), 100);
}
