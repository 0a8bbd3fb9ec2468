//! Where a registry may send us to. A proxy plays registries that are not on loopback.

use serde_json::json;

use crate::children::run;
use crate::server::{Reply, Seen, Server};
use crate::store::{OCI_MANIFEST, Store};

/// Part of the error's text.
const REFUSED: &str = "loopback, link-local or cluster address";

/// How the registry names the place.
#[derive(Debug, Clone, Copy)]
enum Way {
    Manifest,
    Blob,
    Realm,
}

/// A registry that names the place, the place's own answers, and a proxy to both: the host decides.
async fn proxy(registry: &str, way: Way, place: &str) -> Server {
    let (registry, place) = (registry.to_owned(), place.to_owned());
    let answer = at_the_place();
    Server::start(move |seen| {
        if seen.headers["host"] != *registry {
            return answer(seen);
        }
        match way {
            Way::Manifest => redirect(&place, seen),
            Way::Blob if seen.path.contains("/blobs/") => redirect(&place, seen),
            Way::Realm if seen.authorization() != Some("Bearer t") => {
                Reply::new(401, "").with("www-authenticate", format!("Bearer realm=\"{place}/token\""))
            }
            Way::Blob | Way::Realm => answer(seen),
        }
    })
    .await
}

fn redirect(place: &str, seen: &Seen) -> Reply {
    Reply::new(307, "").with("location", format!("{place}{}", seen.path))
}

fn at_the_place() -> impl Fn(&Seen) -> Reply + Send + Sync + 'static {
    let mut store = Store::default();
    store.image("fn", "v1", OCI_MANIFEST);
    move |seen| {
        if seen.path.starts_with("/token") { Reply::json(&json!({"token": "t"})) } else { store.answer(seen) }
    }
}

/// What the child expects of the registry, and how many requests came for other hosts.
async fn ask(registry: &str, way: Way, place: &str, expected: &str, no_proxy: &str) -> usize {
    let proxy = proxy(registry, way, place).await;
    ask_by(&proxy, registry, expected, no_proxy).await;
    proxy.seen().iter().filter(|seen| seen.headers["host"] != *registry).count()
}

async fn ask_by(proxy: &Server, registry: &str, expected: &str, no_proxy: &str) {
    let variables = [
        ("TEST_REGISTRY", registry.to_owned()),
        ("TEST_EXPECTED", expected.to_owned()),
        ("HTTP_PROXY", format!("http://localhost:{}", proxy.address.port())),
        ("NO_PROXY", no_proxy.to_owned()),
    ];
    run("children::asks_by_the_environment", &variables).await;
}

#[tokio::test]
async fn a_registry_elsewhere_does_not_lead_to_loopback() {
    for way in [Way::Manifest, Way::Blob, Way::Realm] {
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
            let local = Server::start(at_the_place()).await;
            let place = format!("http://{host}:{}", local.address.port());
            // Without a proxy on the way.
            let no_proxy = "127.0.0.1,localhost,::ffff:127.0.0.1";
            ask("insecure.test", way, &place, REFUSED, no_proxy).await;
            assert_eq!(local.take(), [""; 0], "{way:?} {place}");
        }
    }
}

#[tokio::test]
async fn a_proxy_is_not_asked_for_addresses_inside() {
    for place in [
        "http://169.254.169.254",
        "http://10.96.0.1",
        "http://[fd00::1]:8001",
        "http://kubernetes.default.svc",
    ] {
        for way in [Way::Manifest, Way::Realm] {
            assert_eq!(ask("insecure.test", way, place, REFUSED, "").await, 0, "{way:?} {place}");
        }
    }
}

#[tokio::test]
async fn a_proxy_on_loopback_leads_to_public_places() {
    for (way, requests) in [(Way::Manifest, 2), (Way::Blob, 1), (Way::Realm, 1)] {
        let seen = ask("insecure.test", way, "http://elsewhere.test", "found", "").await;
        assert_eq!(seen, requests, "{way:?}");
    }
}

#[tokio::test]
async fn a_registry_inside_leads_to_places_of_its_kind() {
    for (registry, place, expected) in [
        ("127.0.0.1", "http://127.0.0.2", "found"),
        ("127.0.0.1", "http://10.0.0.1", REFUSED),
        ("127.0.0.1", "http://elsewhere.test", "found"),
    ] {
        for way in [Way::Manifest, Way::Blob, Way::Realm] {
            ask(registry, way, place, expected, "").await;
        }
    }
}

#[tokio::test]
async fn a_place_outside_does_not_lead_back_inside() {
    let answer = at_the_place();
    let proxy = Server::start(move |seen| match seen.headers["host"].to_str().unwrap() {
        "127.0.0.1" => redirect("http://elsewhere.test", seen),
        "elsewhere.test" => redirect("http://127.0.0.2", seen),
        _ => answer(seen),
    })
    .await;
    ask_by(&proxy, "127.0.0.1", REFUSED, "").await;
    assert!(proxy.seen().iter().all(|seen| seen.headers["host"] != "127.0.0.2"));
}
