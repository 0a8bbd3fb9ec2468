//! Calls whose pod the API server refuses: callers get the reason at once, in words that are the same each time.

use std::time::Duration;

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{ApiProxy, Asked};
use tokio::time::Instant;
use tonic::Code;

use crate::rig::{Bench, INPUT, RECLAIM_AFTER, failed, until_count};

/// On a quiet machine it is 0.1 s.
const AT_ONCE: Duration = Duration::from_secs(10);
const NO_QUOTA: &str = "a ResourceQuota of the function namespace is used up: raise it, or lower \
                        --max-parallel-pods-per-function or the functions' resource requests";
const NO_NAMESPACE: &str = "the function namespace (--pod-namespace) does not exist: create it";

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_refusal_is_reported_at_once_and_not_tried_again() {
    let bench = Bench::new().await;
    bench.quota("0").await;
    for (flags, code, reason) in [
        (&[][..], StatusCode::FORBIDDEN, NO_QUOTA),
        (&["--pod-namespace=test-no-such-namespace"], StatusCode::NOT_FOUND, NO_NAMESPACE),
    ] {
        let proxy = ApiProxy::start(&bench.cluster, 0).await;
        let kubeconfig = proxy.kubeconfig(&bench.sandbox);
        let runner = bench.namespace.runner_as(&bench.sandbox, kubeconfig, &[&bench.image], flags).await;
        let start = Instant::now();
        let answer = Client::new(runner.address()).call(&bench.image, INPUT).await;
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
        answer.fails(Code::Unknown, &failed(&bench.image, reason));
        for field in ["starting", "waiting", "in_flight"] {
            until_count(&runner, &bench.image, field, 0).await;
        }
        let create = |asked: &Asked| asked.verb == "create" && asked.resource == "pods";
        let passed = proxy.passed();
        let refused = passed.iter().filter(|passed| create(&passed.asked) && passed.status == Some(code));
        assert_eq!(refused.count(), 1, "{reason}");
    }
}

/// A machine that started before its clock was set: its pods must not lapse at once by the clocks of others.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_runner_goes_by_the_api_servers_clock() {
    let bench = Bench::new().await;
    let proxy = ApiProxy::start(&bench.cluster, 0).await;
    proxy.set_clock_ahead(3600);
    let kubeconfig = proxy.kubeconfig(&bench.sandbox);
    let runner = bench.namespace.runner_as(&bench.sandbox, kubeconfig, &[&bench.image], &[]).await;
    Client::new(runner.address()).call(&bench.image, INPUT).await.output();
    let reclaim_after =
        |pods: &[Pod]| pods.first()?.annotations().get(RECLAIM_AFTER)?.parse::<Timestamp>().ok();
    let lapse = bench.namespace.until("a pod", reclaim_after).await.duration_since(Timestamp::now());
    assert!((lapse - SignedDuration::from_mins(90)).abs() < SignedDuration::from_secs(30), "{lapse:?}");
    let metrics = runner.page("/metrics").await.1;
    let ahead = metrics.lines().find_map(|line| line.strip_prefix("porch_fn_runner_clock_ahead_seconds "));
    let ahead: f64 = ahead.and_then(|seconds| seconds.parse().ok()).expect("a figure");
    assert!((ahead - 3600.0).abs() < 10.0, "{ahead}");
    assert!(runner.log().contains("the API server's clock is ahead of this machine's"), "{}", runner.log());
}
