//! Names of pods and Services, of whatever image.

use std::collections::BTreeSet;

use kube::ResourceExt;
use tonic::Code;

use super::{Bench, INPUT};

/// As the API server asks of Services, whose rule is the stricter one.
fn is_dns_1035(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(inner)
        && !name.ends_with('-')
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn every_image_has_valid_names() {
    let bench = Bench::new().await;
    let long = format!("{}/{}:{}", "deep".repeat(10), "long-name.".repeat(9) + "end", "t".repeat(100));
    let mut images = Vec::new();
    for name in ["one/same:v1", "two/same:v1", "under_score.dot__name:V1.2_RC-3", "9lives", &long] {
        images.push(bench.cluster.function_named(name).await);
    }
    let untagged = bench.cluster.function_named("by/digest").await;
    let digest = bench.sandbox.run("crane", ["digest", "--insecure", &untagged], b"").await;
    assert!(digest.status.success(), "{digest:?}");
    images.push(format!("{untagged}@{}", String::from_utf8(digest.stdout).unwrap().trim()));

    let all: Vec<_> = images.iter().map(String::as_str).collect();
    let runner = bench.runner_of(&all, &[]).await;
    for image in &images {
        let answer = runner.client.call(image, INPUT).await;
        assert_eq!(answer.output(), INPUT, "{image}");
    }
    let names = |names: Vec<String>| names.into_iter().collect::<BTreeSet<_>>();
    let pods = names(bench.pods().await.iter().map(ResourceExt::name_any).collect());
    let services = names(bench.namespace.services().await.iter().map(ResourceExt::name_any).collect());
    assert_eq!(pods.len(), images.len(), "no two share a name");
    assert_eq!(pods, services);
    assert!(pods.iter().all(|name| is_dns_1035(name)), "{pods:?}");
    let begin = |text: &str| pods.iter().filter(|name| name.starts_with(text)).count();
    // Without a tag it is `latest`; dots are dropped from a tag.
    assert_eq!((begin("same-v1-0-"), begin("fn-9lives-latest-0-")), (2, 1), "{pods:?}");
    assert_eq!(begin("under-score-dot--name-v12-rc-3-0-"), 1, "{pods:?}");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_bad_reference_is_told() {
    let bench = Bench::new().await;
    let runner = bench.runner(&[]).await;
    for image in ["Not A Reference", "example.com/UPPER:v1", "example.com/fn:", "example.com/fn@sha256:12"] {
        let answer = runner.client.call(image, INPUT).await;
        assert_eq!(answer.code, Code::InvalidArgument, "{image}: {}", answer.message);
        let text = format!("unable to evaluate {image} with pod evaluator: ");
        assert!(answer.message.starts_with(&text), "{}", answer.message);
    }
    assert_eq!(bench.namespace.pods().await, []);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_namespace_that_is_not_there_is_told() {
    let bench = Bench::new().await;
    let runner = bench.runner(&["--pod-namespace=not-there"]).await;
    let text = format!(
        "unable to get the grpc client to the pod for {}: the function's pod failed to start: the function \
         namespace (--pod-namespace) does not exist: create it",
        bench.image
    );
    runner.call(INPUT).await.fails(Code::Unknown, &text);
}
