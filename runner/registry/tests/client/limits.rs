//! Answers that are too large, and those that never come.

use std::time::Duration;

use porch_fn_registry::{Client, Options, Registry as _, RegistryError};

use crate::server::{Reply, Server};
use crate::store::{OCI_MANIFEST, Store};
use crate::{client, image, options};

const GIB: u64 = 1 << 30;
/// What sockets and the server hold when the client has read its fill.
const IN_FLIGHT: u64 = 16 << 20;

#[tokio::test]
async fn a_body_of_a_gibibyte_is_refused() {
    for (at, what, limit) in [
        ("/manifests/", "manifest", 1 << 20),
        ("/blobs/", "image configuration", 2 << 20),
        ("/tags/", "tag list", 2 << 20),
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
async fn a_registry_that_hangs_is_unreachable_in_time() {
    let server = Server::start(|_| Reply::never()).await;
    let client = Client::new(Options { within: Duration::from_millis(300), ..options() });
    let image = image(&server.registry(), "fn:v1");
    assert_eq!(client.metadata(&image).await, Err(RegistryError::Unreachable));
    assert_eq!(client.digest(&image).await, Err(RegistryError::Unreachable));
    assert_eq!(client.tags(&image).await, Err(RegistryError::Unreachable));
}
