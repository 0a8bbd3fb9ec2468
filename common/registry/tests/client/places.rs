//! Hosts to which a registry may redirect the client. A proxy answers for all hosts. The client
//! runs in its own process, because environment variables set its proxy.

use porch_fn_image::Image;
use porch_fn_registry::{Client, Options, Registry as _, RegistryError};
use serde_json::json;

use crate::children::run;
use crate::server::{Reply, Seen, Server};
use crate::store::Store;
use crate::{options, plain};

/// How the registry sends the client to the other host: by a redirect or by a token realm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Manifest,
    Blob,
    Realm,
    /// The manifest is redirected, and the other host redirects to 127.0.0.2.
    Back,
}

/// The registry, its way to the other host, that host, and whether the client may go there.
type Case = (&'static str, Way, &'static str, bool);

fn cases() -> Vec<Case> {
    let mut cases = vec![("127.0.0.1", Way::Back, "elsewhere.test", false)];
    for way in [Way::Manifest, Way::Blob, Way::Realm] {
        for inside in [
            "127.0.0.1",
            "localhost",
            "[::ffff:127.0.0.1]",
            "169.254.169.254",
            "10.96.0.1",
            "[fd00::1]:8001",
            "kubernetes.default.svc",
        ] {
            cases.push(("insecure.test", way, inside, false));
        }
        cases.push(("insecure.test", way, "elsewhere.test", true));
        cases.push(("127.0.0.1", way, "127.0.0.2", true));
        cases.push(("127.0.0.1", way, "10.0.0.1", false));
        cases.push(("127.0.0.1", way, "elsewhere.test", true));
    }
    cases
}

/// Finds the case by its number, with which the repository's path begins.
fn case_of(seen: &Seen) -> (Case, String) {
    let path = seen.path.replace("%3A", "/").replace("%2F", "/").replace("/token?scope=repository/", "/v2/");
    let (number, rest) = path.strip_prefix("/v2/").unwrap().split_once('/').unwrap();
    (cases()[number.parse::<usize>().unwrap()], format!("/v2/{rest}"))
}

fn answer(store: &Store, seen: &Seen) -> Reply {
    let ((registry, way, place, _), path) = case_of(seen);
    let redirect = |place: &str| Reply::redirect(format!("http://{place}{}", seen.path));
    let is_registry = seen.headers["host"] == registry;
    match way {
        _ if seen.path.starts_with("/token") => Reply::json(&json!({"token": "t"})),
        Way::Manifest | Way::Back if is_registry => redirect(place),
        Way::Back if seen.headers["host"] == place => redirect("127.0.0.2"),
        Way::Blob if is_registry && path.contains("/blobs/") => redirect(place),
        Way::Realm if seen.authorization() != Some("Bearer t") => {
            Reply::new(401, "").with("www-authenticate", format!("Bearer realm=\"http://{place}/token\""))
        }
        _ => store.answer(&Seen { path, ..seen.clone() }),
    }
}

#[tokio::test]
async fn a_registry_may_redirect_only_to_public_addresses_and_its_own_class() {
    let store = Store::of_images();
    let proxy = Server::start(move |seen| answer(&store, seen)).await;
    // The proxy itself may be on loopback.
    let address = format!("http://localhost:{}", proxy.address.port());
    run("places::all_cases", &[("HTTP_PROXY", address)]).await;
    let seen = proxy.seen();
    assert!(seen.len() > cases().len());
    for seen in &seen {
        let ((registry, _, _, is_allowed), _) = case_of(seen);
        let host = seen.headers["host"].to_str().unwrap();
        assert!(is_allowed || host == registry || host == "elsewhere.test", "{seen:?}");
    }
}

#[tokio::test]
#[ignore = "run by another test in a process of its own"]
async fn all_cases() {
    let options = Options { roots: plain(&["insecure.test", "127.0.0.1:80"]), ..options() };
    for (number, case @ (registry, .., is_allowed)) in cases().into_iter().enumerate() {
        let image = Image::parse(&format!("{registry}/{number}/a:v1"), "").unwrap();
        let found = Client::new(options.clone()).metadata(&image).await.map(|found| found.command.len());
        assert_eq!(found, if is_allowed { Ok(2) } else { Err(RegistryError::InternalAddress) }, "{case:?}");
    }
}
