//! Tags that a request leaves open.

use porch_fn_proto::evaluator::EvaluateFunctionRequest;
use porch_fn_tests::caller::{Caller, request};
use porch_fn_tests::registry::Kind;
use tonic::{Request, Status};

use super::*;

/// The arguments that the function of the highest tag was started with.
async fn constrained(caller: &Caller, image: &str, constraint: &str) -> Result<String, Status> {
    let request = EvaluateFunctionRequest { tag: constraint.to_owned(), ..request(image, ARGUMENTS) };
    let answer = caller.send(Request::new(request)).await?.into_inner();
    assert_eq!(answer.resource_list, ARGUMENTS);
    let log = String::from_utf8(answer.log.to_vec()).unwrap();
    Ok(log.strip_prefix(ENTRYPOINT).unwrap().trim().to_owned())
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_highest_tag_that_matches_answers_and_is_remembered() {
    let Some(stand) = Stand::start().await else { return };
    let place = stand.registry("open", Access::default()).await;
    let proxy = stand.proxy(&place, Auth::Open).await;
    node::instead(&stand.own, proxy.address(), &place.registry.address().to_string());
    for tag in ["v1.9.0", "v1.10.0", "v1.11.0-rc.1", "v2.0.0", "v3.0.0-alpha", "latest"] {
        place.push(&format!("team/versions:{tag}"), tag).await;
    }
    let image = proxy.image("team/versions");
    let flags = [insecure(proxy.address()), "--image-metadata-ttl=1h".to_owned()];
    let (runner, _client) = stand.runner(&flags).await;
    let caller = Caller::connect(runner.address()).await;
    let start = Instant::now();
    for (constraint, expected) in [
        (">=1.0.0 <2.0.0", "v1.10.0"),
        ("~1.9", "v1.9.0"),
        ("^1.11.0-0", "v1.11.0-rc.1"),
        (">=1.0.0", "v2.0.0"),
    ] {
        let got = constrained(&caller, &image, constraint).await;
        assert_eq!(got.unwrap(), expected, "{constraint}");
    }
    figure(&format!("four constraints, four cold pods: {:.1?}", start.elapsed()));
    assert_eq!(proxy.count(Kind::Tags), 1, "{:?}", proxy.asked());
    let tagged = format!(
        "{image}:v1.10.0@{}",
        place.crane.digest(&place.registry.image("team/versions:v1.10.0")).await
    );
    assert!(stand.namespace.pods().await.iter().any(|pod| function_of(pod) == tagged));

    let asked = proxy.asked().len();
    // A constraint that was not asked before, of the list that is known; and one that was.
    for constraint in [">=1.9.5 <2", ">=1.0.0 <2.0.0"] {
        assert_eq!(constrained(&caller, &image, constraint).await.unwrap(), "v1.10.0");
    }
    assert_eq!(proxy.asked().len(), asked, "{:?}", &proxy.asked()[asked..]);

    let status = constrained(&caller, &image, ">=4").await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    figure(&format!("no tag matches: {}", status.message()));
    assert!(status.message().contains("\">=4\"") && status.message().contains("matches"), "{status:?}");
    let status = constrained(&caller, &proxy.image("team/none"), ">=4").await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_tag_list_in_pages_is_read_whole() {
    const TAGS: usize = 250;
    let Some(stand) = Stand::start().await else { return };
    let place = stand.registry("open", Access::default()).await;
    let proxy = stand.proxy(&place, Auth::Open).await;
    node::instead(&stand.own, proxy.address(), &place.registry.address().to_string());
    place.push("team/many:v0.1.0", "low").await;
    place.registry.tag_all("team/many", "v0.1.0", (1..TAGS).map(|number| format!("v0.1.{number}")));
    // In the order of the list it is in the middle.
    place.push("team/many:v0.1.1000", "high").await;
    proxy.set_page(100);
    let (runner, _client) = stand.runner(&[insecure(proxy.address())]).await;
    let caller = Caller::connect(runner.address()).await;
    let image = proxy.image("team/many");
    assert_eq!(constrained(&caller, &image, "~0.1").await.unwrap(), "high");
    assert_eq!(proxy.count(Kind::Tags), 3, "{:?}", proxy.asked());
}
