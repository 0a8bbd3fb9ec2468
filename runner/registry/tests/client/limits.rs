//! Answers that are too large, and those that never come.

use std::time::Duration;

use porch_fn_registry::{Client, Options, Registry as _, RegistryError};
use serde_json::json;
use tokio::time::timeout;

use crate::server::{Reply, Server};
use crate::store::{OCI_MANIFEST, Store};
use crate::{client, image, options};

const GIB: u64 = 1 << 30;
/// What sockets and the server hold when the client has read its fill.
const IN_FLIGHT: u64 = 16 << 20;

#[tokio::test]
async fn a_body_of_a_gibibyte_is_refused() {
    for (at, what, limit) in [
        ("/manifests/", "manifest", 4 << 20),
        ("/blobs/", "image configuration", 8 << 20),
        ("/tags/", "tag list", 4 << 20),
        ("/token", "token", 64 << 10),
    ] {
        for announced in [true, false] {
            let mut store = Store::default();
            store.image("fn", "v1", OCI_MANIFEST);
            let server = Server::start(move |seen| {
                if seen.path.contains(at) {
                    let reply = Reply::endless();
                    return if announced { reply.with("content-length", GIB.to_string()) } else { reply };
                }
                if at == "/token" {
                    let realm =
                        format!("Bearer realm=\"http://{}/token\"", seen.headers["host"].to_str().unwrap());
                    return Reply::new(401, "").with("www-authenticate", realm);
                }
                store.answer(seen)
            })
            .await;
            let (client, image) = (client(), image(&server.registry(), "fn:v1"));
            let error = match what {
                "tag list" => client.tags(&image).await.unwrap_err(),
                _ => client.metadata(&image).await.unwrap_err(),
            };
            assert_eq!(error, RegistryError::TooLarge { what, limit });
            let most = if announced { IN_FLIGHT } else { limit as u64 + IN_FLIGHT };
            assert!(server.sent() <= most, "{what}: {} bytes", server.sent());
        }
    }
}

#[tokio::test]
async fn what_a_manifest_says_is_too_large_is_not_asked_for() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let mut store = Store::default();
    let manifest = json!({"schemaVersion": 2, "config": {"digest": digest, "size": GIB}});
    store.manifest("fn", "v1", OCI_MANIFEST, &manifest);
    let server = Server::start(move |seen| store.answer(seen)).await;
    let found = client().metadata(&image(&server.registry(), "fn:v1")).await;
    assert_eq!(found, Err(RegistryError::TooLarge { what: "image configuration", limit: 8 << 20 }));
    assert_eq!(server.take().len(), 1);
}

#[tokio::test]
async fn registries_that_hang_are_told_and_hold_up_no_other() {
    let mut hanging = Vec::new();
    for _ in 0..4 {
        hanging.push(Server::start(|_| Reply::never()).await);
    }
    let mut store = Store::default();
    store.image("fn", "v1", OCI_MANIFEST);
    let good = Server::start(move |seen| store.answer(seen)).await;
    let within = Duration::from_secs(10);
    let client = Client::new(Options { within, ..options() });
    let hung: Vec<_> = hanging.iter().map(|server| image(&server.registry(), "fn:v1")).collect();
    let started = tokio::time::Instant::now();
    let (hung, good) = futures_util::future::join(
        futures_util::future::join_all((0..40).map(|index| client.metadata(&hung[index % hung.len()]))),
        async {
            let found = client.metadata(&image(&good.registry(), "fn:v1")).await;
            (found, started.elapsed())
        },
    )
    .await;
    assert_eq!(hung, vec![Err(RegistryError::Unreachable); 40]);
    assert!(good.0.is_ok(), "{good:?}");
    assert!(good.1 < within, "{good:?}");
}

#[tokio::test]
async fn large_answers_wait_for_each_other_and_small_ones_for_none() {
    const LARGE_AT_ONCE: usize = 8;
    // Each sends half a MiB of a manifest, and then nothing more.
    let mut hanging = Vec::new();
    for _ in 0..LARGE_AT_ONCE {
        hanging.push(Server::start(|_| Reply::begun(512 << 10)).await);
    }
    let mut store = Store::default();
    store.image("fn", "small", OCI_MANIFEST);
    let long = "x".repeat(512 << 10);
    store.image_of("fn", "large", OCI_MANIFEST, &json!({"config": {"Entrypoint": ["/f"]}, "comment": long}));
    let good = Server::start(move |seen| store.answer(seen)).await;
    let within = Duration::from_secs(10);
    let client = Client::new(Options { within, ..options() });
    let hung: Vec<_> = hanging.iter().map(|server| image(&server.registry(), "fn:v1")).collect();
    let (small, large) = (image(&good.registry(), "fn:small"), image(&good.registry(), "fn:large"));
    let hanging = futures_util::future::join_all(hung.iter().map(|image| client.metadata(image)));
    let (hung, ()) = futures_util::future::join(hanging, async {
        // It waits once all of them hold what they may, which is long before they end.
        let waits = async {
            while let Ok(found) = timeout(Duration::from_millis(500), client.metadata(&large)).await {
                found.unwrap();
            }
        };
        timeout(within.mul_f64(0.7), waits).await.expect("a large one waits");
        timeout(within / 4, client.metadata(&small)).await.expect("a small one waits for none").unwrap();
    })
    .await;
    assert_eq!(hung, vec![Err(RegistryError::Unreachable); LARGE_AT_ONCE]);
    client.metadata(&large).await.unwrap();
}
