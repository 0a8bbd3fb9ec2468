//! Measures a router and a runner while ten thousand callers wait: memory, CPU time, and the duration
//! of calls to other images.

use porch_fn_lifecycle::drain;
use porch_fn_tests::echo::{HELD, serve_echo_with};
use porch_fn_tests::load::{Load, Plan, Routers};
use porch_fn_tests::process::{Sandbox, Server, eventually, figure};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep};

use super::api::Api;
use super::objects::image;
use super::{CALLS_PER_SECOND, PORT, Runner};

/// Images with one pod each. Callers wait for some of them, and the others are called meanwhile.
const IMAGES: usize = 1_000;
const AWAITED: usize = 100;
/// A pod gets 16 calls at once, so most of the callers wait in the runner.
const CALLERS: usize = 10_000;
const LASTS: Duration = Duration::from_secs(10);
/// Longest duration of 99 % of the other calls.
const MAX_P99: Duration = Duration::from_millis(50);

/// Calls the images without waiting callers, and reports what this needs.
async fn measure(what: &str, router: &Server, runner: &Server) {
    let images: Vec<_> = (AWAITED..IMAGES).map(image).collect();
    let before = [router, runner].map(Server::usage);
    let load = Load::through(&Routers::new([router.address()]), Plan::per_second(CALLS_PER_SECOND, &images));
    sleep(LASTS).await;
    let report = load.stop().await;
    let [of_router, of_runner] = [(router, &before[0]), (runner, &before[1])].map(|(server, before)| {
        let usage = server.usage();
        let cores = usage.cores_since(before) * 100.0;
        format!("{cores:.1} % of a core, {} MiB", usage.resident / 1024)
    });
    figure(&format!("{what}: {report}; router {of_router}; runner {of_runner}"));
    report.assert_all_succeeded();
    let p99 = report.latencies(|_| true).percentile(0.99);
    assert!(p99 <= MAX_P99, "{p99:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute, 15,000 open files and port 9446; tests/run nightly runs it"]
async fn ten_thousand_callers_wait() {
    let (_signal, drain) = drain::channel();
    let (gate, is_open) = watch::channel(false);
    serve_echo_with(PORT, drain, is_open).await;
    let api = Api::start().await;
    api.add((0..IMAGES).map(|image| (image, 0)));
    let runner = Runner::start(&api).await;
    runner.wait_all_serve(IMAGES).await;
    let sandbox = Sandbox::new();
    let router =
        sandbox.server("porch-fn-router", [format!("--runners=static:///{}", runner.server.address())]).await;
    router.wait_runners_healthy().await;
    measure("without waiting callers", &router, &runner.server).await;

    let images: Vec<_> = (0..AWAITED).map(image).collect();
    let input = format!("{HELD}\nkind: ResourceList\n");
    let plan = Plan { input, ..Plan::callers(CALLERS, &images) };
    let load = Load::through(&Routers::new([router.address()]), plan);
    let calls = async |stage: &str| {
        runner.server.metric(&format!("porch_fn_runner_calls_{stage}{{runtime=\"Pod\"}}")).await
    };
    eventually("all callers wait", async || {
        (calls("waiting").await? + calls("running").await? == CALLERS as u64).then_some(())
    })
    .await;
    figure(&format!("{} of {CALLERS} calls are in pods", calls("running").await.unwrap()));
    measure(&format!("while {CALLERS} callers wait for {AWAITED} images"), &router, &runner.server).await;

    let opened = Instant::now();
    gate.send_replace(true);
    load.wait_answers(CALLERS).await;
    figure(&format!("{CALLERS} answers {:.1?} after the pods' first", opened.elapsed()));
    load.stop().await.assert_all_succeeded();
}
