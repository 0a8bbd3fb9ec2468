//! Measures the memory and time that a router needs for 1,000 runners and 100,000 images, and for
//! idle callers. One server in this test listens on a thousand addresses and stands for all runners.

use porch_fn_lifecycle::drain;
use porch_fn_tests::client::Client;
use porch_fn_tests::echo::serve_echo;
use porch_fn_tests::load::{Latencies, Load, Plan, Routers};
use porch_fn_tests::process::{Sandbox, Server, eventually, figure, get, is_healthy};
use tokio::time::{Duration, Instant};

const RUNNERS: usize = 1_000;
const IMAGES: usize = 100_000;
const CALLERS: usize = 64;
/// Limit in KiB: four times the memory that a router needed when this test was written.
const MEMORY: u64 = 512 * 1024;
/// The median of calls may grow by this while two programs share the processors.
const LATE: Duration = Duration::from_millis(5);

/// The number of runners on the router's `/shards` page for which `matches` returns true.
async fn runners_with(router: &Server, matches: impl Fn(&serde_json::Value) -> bool) -> usize {
    let page = router.json("/shards").await;
    page["shards"].as_array().unwrap().iter().filter(|shard| matches(shard)).count()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute and 3,000 open files; tests/run nightly runs it"]
async fn a_router_with_a_thousand_runners_and_a_hundred_thousand_images() {
    let (_signal, drain) = drain::channel();
    let port = serve_echo(0, drain).await;
    let sandbox = Sandbox::new();
    let alone = sandbox.server("porch-fn-router", ["--runners=static:///127.0.0.1:1"]).await;
    let idle = alone.usage().resident;

    let addresses: Vec<_> =
        (0..RUNNERS).map(|n| format!("127.1.{}.{}:{port}", n / 250, n % 250 + 1)).collect();
    let began = Instant::now();
    let router =
        sandbox.server("porch-fn-router", [format!("--runners=static:///{}", addresses.join(","))]).await;
    eventually("all runners are healthy", async || {
        (runners_with(&router, is_healthy).await == RUNNERS).then_some(())
    })
    .await;
    figure(&format!(
        "{RUNNERS} runners known, connected and healthy {:.1?} after the start",
        began.elapsed()
    ));
    let connected = router.usage().resident;
    figure(&format!("router's memory: alone {idle} KiB, with {RUNNERS} runners {connected} KiB"));

    let images: Vec<_> = (0..IMAGES)
        .map(|image| format!("ghcr.io/kptdev/krm-functions-catalog/function-{image}:v0.4.1"))
        .collect();
    let plan = Plan { max_duration: Duration::from_mins(30), ..Plan::callers(CALLERS, &images) };
    let began = Instant::now();
    let load = Load::through(&Routers::new([router.address()]), plan);
    while load.answered() < IMAGES {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let took = began.elapsed();
    load.stop().await.assert_all_succeeded();
    let after = router.usage().resident;
    figure(&format!("{IMAGES} images called in {took:.1?}; router's memory {after} KiB"));
    assert!(after <= MEMORY, "{after} KiB");
    let called = runners_with(&router, |shard| shard["calls"] != 0).await;
    figure(&format!("{called} of {RUNNERS} runners were called"));
    assert_eq!(called, RUNNERS);

    // A reader of a large page uses a thread of its own.
    let (calm, _) = calls_beside(&router, &images, None).await;
    for path in ["/status.json?own", "/shards", "/config?image=a:v1", "/metrics"] {
        let (beside, pages) = calls_beside(&router, &images, Some(path)).await;
        let figures = [0.5, 0.99].map(|part| [calm.percentile(part), beside.percentile(part)]);
        figure(&format!("{pages} times {path}: p50 and p99 of calls before and beside it {figures:?}"));
        assert!(beside.percentile(0.5) <= 3 * calm.percentile(0.5) + LATE, "{path}: {figures:?}");
    }
}

/// The latencies of calls in five seconds while somebody requests a page in a loop, and how often.
async fn calls_beside(router: &Server, images: &[String], path: Option<&'static str>) -> (Latencies, usize) {
    let (admin, until) = (router.admin(), Instant::now() + Duration::from_secs(5));
    let reader = tokio::spawn(async move {
        let mut pages = 0;
        while let Some(path) = path.filter(|_| Instant::now() < until) {
            get(admin, path).await;
            pages += 1;
        }
        pages
    });
    let load = Load::start(router.address(), 4, &images[..1_000]);
    tokio::time::sleep_until(until).await;
    let report = load.stop().await;
    report.assert_all_succeeded();
    (report.latencies(|_| true), reader.await.unwrap())
}

/// Each caller has a connection of its own, and has asked once for the router's health.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "2,000 open files; tests/run nightly runs it"]
async fn a_thousand_idle_callers() {
    const CALLERS: u64 = 1_000;
    /// Limit in KiB for each caller: twice what a router needed when this test was written.
    const MEMORY: u64 = 48;
    let sandbox = Sandbox::new();
    let router = sandbox.server("porch-fn-router", ["--runners=static:///127.0.0.1:1"]).await;
    let before = router.usage().resident;
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        let caller = Client::new(router.address());
        caller.health("").await.unwrap();
        callers.push(caller);
    }
    let each = (router.usage().resident - before) / CALLERS;
    figure(&format!("router's memory: alone {before} KiB, {each} KiB for each of {CALLERS} idle callers"));
    assert!(each <= MEMORY, "{each} KiB");
}
