//! Requests to open registries: their number, the meaning of the answers, and size limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use porch_fn_image::Image;
use porch_fn_registry::{Client, Options, Registry as _, RegistryError};
use serde_json::json;
use tokio::time::{Duration, sleep};

use crate::server::{Body, Reply, Server};
use crate::store::{Store, sha256};
use crate::{client, image, malformed, open, options};

const GIB: u64 = 1 << 30;
/// Bytes that sockets and the server may hold when the client stops reading.
const IN_FLIGHT: u64 = 16 << 20;

#[tokio::test]
async fn an_image_takes_two_requests_and_an_index_three() {
    let mut store = Store::default();
    let amd64 = store.image("team/fn", "v1");
    let arm64 = store.image("team/fn", "arm");
    let platforms =
        [("sha256:none", "unknown", "unknown"), (&arm64, "linux", "arm64"), (&amd64, "linux", "amd64")];
    let of_index = store.index("team/fn", "multi", &platforms);
    // An index may contain one nested index.
    let nested = store.index("team/fn", "nested", &[(&of_index, "linux", "amd64")]);
    store.index("team/fn", "deep", &[(&nested, "linux", "amd64")]);
    let server = open(store).await;
    // A digest takes precedence over a tag.
    let by_digest = format!("team/fn:v1@{arm64}");
    for (name, digest, argument, requests) in [
        ("team/fn:v1", &amd64, "v1", 2),
        ("team/fn:multi", &of_index, "v1", 3),
        ("team/fn:nested", &nested, "v1", 4),
        (&by_digest, &arm64, "arm", 2),
    ] {
        let metadata = client().metadata(&image(&server, name)).await.unwrap();
        assert_eq!(
            (&*metadata.digest, metadata.command),
            (&**digest, vec!["/function".into(), argument.into()])
        );
        assert_eq!(server.take().len(), requests);
    }
    let expected = malformed("manifest", "its indexes are nested too deep");
    assert_eq!(client().metadata(&image(&server, "team/fn:deep")).await, Err(expected));
}

#[tokio::test]
async fn the_digest_of_a_tag_takes_one_head_request() {
    let mut store = Store::default();
    let digest = store.image("fn", "v1");
    let server = open(store).await;
    let client = client();
    assert_eq!(&*client.digest(&image(&server, "fn:v1")).await.unwrap(), digest);
    assert_eq!(server.take(), ["HEAD /v2/fn/manifests/v1"]);
    assert_eq!(&*client.digest(&image(&server, &format!("fn:v1@{digest}"))).await.unwrap(), digest);
    assert_eq!(server.take(), [""; 0]);
    assert_eq!(client.digest(&image(&server, "fn:v2")).await, Err(RegistryError::NotFound));
}

#[tokio::test]
async fn the_manifest_is_fetched_if_head_gives_no_digest() {
    for of_head in [200, 405] {
        let mut store = Store::default();
        let digest = store.image("fn", "v1");
        let server = Server::start(move |seen| {
            let mut reply = store.answer(seen);
            reply.headers.retain(|(name, _)| *name != "docker-content-digest");
            if seen.method == "HEAD" {
                reply.status = of_head;
            }
            reply
        })
        .await;
        let (client, image) = (client(), image(&server, "fn:v1"));
        assert_eq!(&*client.digest(&image).await.unwrap(), digest);
        assert_eq!(server.take(), ["HEAD /v2/fn/manifests/v1", "GET /v2/fn/manifests/v1"]);
        assert_eq!(&*client.metadata(&image).await.unwrap().digest, digest);
    }
}

#[tokio::test]
async fn content_with_a_wrong_digest_is_rejected() {
    for (changed, what) in [("/manifests/", "manifest"), ("/blobs/", "image configuration")] {
        let mut store = Store::default();
        let digest = store.image("fn", "v1");
        let server = Server::start(move |seen| {
            if seen.path.contains(changed) {
                Reply::json(&json!({"config": {"digest": "sha256:x"}}))
            } else {
                store.answer(seen)
            }
        })
        .await;
        let found = client().metadata(&image(&server, &format!("fn@{digest}"))).await;
        assert_eq!(found, Err(malformed(what, "its content does not have its digest")));
    }
    let server =
        Server::start(|_| Reply::json(&json!({})).with("docker-content-digest", sha256(b"other"))).await;
    let found = client().metadata(&image(&server, "fn:v1")).await;
    assert_eq!(found, Err(malformed("manifest", "its content does not have its digest")));
}

#[tokio::test]
async fn a_malformed_digest_never_becomes_part_of_a_path() {
    for digest in ["../../../secret?x=", "sha256:../..", "md5:00", ""] {
        let mut store = Store::default();
        store.manifest("fn", "v1", &json!({"schemaVersion": 2, "config": {"digest": digest}}));
        store.index("fn", "v2", &[(digest, "linux", "amd64")]);
        let server = open(store).await;
        for tag in ["v1", "v2"] {
            let found = client().metadata(&image(&server, &format!("fn:{tag}"))).await;
            assert!(matches!(found, Err(RegistryError::Malformed { .. })), "{found:?}");
        }
        assert_eq!(server.take(), ["GET /v2/fn/manifests/v1", "GET /v2/fn/manifests/v2"]);
    }
}

#[tokio::test]
async fn each_status_has_its_error() {
    for (status, expected) in [
        (404, RegistryError::NotFound),
        (401, RegistryError::Unauthorized),
        (403, RegistryError::Unauthorized),
        (418, malformed("manifest", "the response has status 418")),
        (204, malformed("manifest", "the response has status 204")),
    ] {
        let server = Server::start(move |_| Reply::new(status, "pl4nted")).await;
        assert_eq!(client().metadata(&image(&server, "fn:v1")).await, Err(expected));
        assert_eq!(server.take().len(), 1, "{status}");
    }
}

/// Like Porch's client. A registry that asks for more patience than a call has gets no repeat.
#[tokio::test]
async fn a_passing_fault_is_repeated_twice() {
    for status in [429, 500, 502, 503, 504] {
        for (failures, patience, requests) in [(2, "0", 3), (3, "0", 3), (1, "3600", 1), (1, "no number", 2)]
        {
            let (store, failed) = (Store::of_images(), AtomicUsize::new(0));
            let server = Server::start(move |seen| {
                if failed.fetch_add(1, Ordering::Relaxed) < failures {
                    return Reply::new(status, "").with("retry-after", patience);
                }
                store.answer(seen)
            })
            .await;
            let found = client().digest(&image(&server, "a:v1")).await;
            let expected = RegistryError::Busy(status);
            assert_eq!(
                found.err(),
                (failures == requests || requests == 1).then_some(expected),
                "{status} {failures}"
            );
            assert_eq!(server.take().len(), requests, "{status} {failures}");
        }
    }
}

#[tokio::test]
async fn an_unknown_image_counts_as_answered_and_a_lost_registry_as_failed() {
    let server = open(Store::of_images()).await;
    let reports = Arc::<Mutex<Vec<_>>>::default();
    let reported = Arc::clone(&reports);
    let report = Arc::new(move |what, has_answered, _| reported.lock().push((what, has_answered)));
    let client = Client::new(Options { report, ..options() });
    client.metadata(&image(&server, "a:v1")).await.unwrap();
    client.digest(&image(&server, "a:v9")).await.unwrap_err();
    for gone in ["127.0.0.1:1/a:v1", "registry.invalid/a:v1"] {
        let found = client.tags(&Image::parse(gone, "").unwrap()).await;
        assert_eq!(found, Err(RegistryError::Unreachable), "{gone}");
    }
    let lost = ("tags", false);
    assert_eq!(*reports.lock(), [("metadata", true), ("digest", true), lost, lost]);
}

#[tokio::test]
async fn tags_are_read_page_by_page() {
    let server = Server::start(|seen| {
        let (tags, next) = match seen.path.as_str() {
            "/v2/team/fn/tags/list?n=1000" => (json!(["v1", "v2"]), "/v2/team/fn/tags/list?last=v2"),
            "/v2/team/fn/tags/list?last=v2" => (json!(["v3"]), "?last=v3"),
            "/v2/team/fn/tags/list?last=v3" => return Reply::json(&json!({"name": "x", "tags": null})),
            "/v2/circle/tags/list?n=1000" => (json!(["v1"]), "?n=1"),
            "/v2/circle/tags/list?n=1" => (json!(["v1"]), "?n=1000"),
            "/v2/away/tags/list?n=1000" => (json!(["v1"]), "http://127.0.0.1:1/v2/away/tags/list?n=1"),
            _ => return Reply::new(404, ""),
        };
        Reply::json(&json!({"name": "x", "tags": tags})).with("link", format!("<{next}>; rel=\"next\""))
    })
    .await;
    let tags = async |name: &str| client().tags(&image(&server, name)).await;
    assert_eq!(tags("team/fn").await.unwrap(), ["v1", "v2", "v3"]);
    assert_eq!(tags("none").await, Err(RegistryError::NotFound));
    assert_eq!(
        tags("away").await,
        Err(malformed("tag list", "the link to its next page leads to another host"))
    );
    server.take();
    assert_eq!(tags("circle").await, Err(malformed("tag list", "it has more than 100 pages")));
    assert_eq!(server.take().len(), 100);
}

#[tokio::test]
async fn a_body_of_a_gibibyte_is_rejected() {
    for (at, what, limit) in [
        ("/manifests/", "manifest", 1 << 20),
        ("/blobs/", "image configuration", 2 << 20),
        ("/tags/", "tag list", 2 << 20),
        ("/token", "token", 64 << 10),
    ] {
        for announced in [true, false] {
            let store = Store::of_images();
            let server = Server::start(move |seen| {
                if seen.path.contains(at) {
                    let reply = Reply { body: Body::Endless, ..Reply::new(200, "") };
                    return if announced { reply.with("content-length", GIB.to_string()) } else { reply };
                }
                if at == "/token" {
                    let host = seen.headers["host"].to_str().unwrap();
                    let challenge = format!("Bearer realm=\"http://{host}/token\"");
                    return Reply::new(401, "").with("www-authenticate", challenge);
                }
                store.answer(seen)
            })
            .await;
            let (client, image) = (client(), image(&server, "a:v1"));
            let error = match what {
                "tag list" => client.tags(&image).await.unwrap_err(),
                _ => client.metadata(&image).await.unwrap_err(),
            };
            assert_eq!(error, malformed(what, &format!("it has more than {limit} bytes")));
            let most = if announced { IN_FLIGHT } else { limit as u64 + IN_FLIGHT };
            assert!(server.sent() <= most, "{what}: {} bytes", server.sent());
        }
    }
}

#[tokio::test]
async fn a_hanging_registry_is_unreachable_after_the_timeout() {
    let server = Server::start(|_| Reply { body: Body::Never, ..Reply::new(200, "") }).await;
    let (client, image) = (Arc::new(client()), image(&server, "fn:v1"));
    let lookup = tokio::spawn(async move { client.metadata(&image).await });
    while server.seen().is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(lookup.await.unwrap(), Err(RegistryError::Unreachable));
}
