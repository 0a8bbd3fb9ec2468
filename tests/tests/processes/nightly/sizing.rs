//! The costs of a call for a router and a runner: memory by message size and parallel calls, and
//! CPU time. The table "Size it" of docs/operate.md is made of these figures.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::time::Duration;

use porch_fn_tests::load::{Load, Plan, Routers};
use porch_fn_tests::process::{Sandbox, Usage, eventually, figure};
use tokio::time::{Instant, sleep_until};

const IMAGE: &str = "example.com/functions/cat:v1";
const SIZES: [(&str, usize); 4] =
    [("4 KiB", 4 << 10), ("100 KiB", 100 << 10), ("1 MiB", 1 << 20), ("5 MiB", 5 << 20)];
const AT_ONCE: [usize; 3] = [1, 16, 64];
/// A limit in bytes that these loads do not reach, although one function gets only half of it.
const LARGE: &str = "2147483648";
const LOAD_DURATION: Duration = Duration::from_secs(5);
/// A package of about `size` bytes.
fn package(size: usize) -> String {
    let mut list = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n".to_owned();
    for number in 0.. {
        if list.len() >= size {
            break;
        }
        let _ = writeln!(
            list,
            "- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: config-{number}\n    namespace: default\n  data:\n    \
             key: a value whose length is like that of values in real packages"
        );
    }
    list
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes; tests/run nightly runs it"]
async fn cost_of_calls() {
    for (name, size) in SIZES {
        for callers in AT_ONCE {
            measure(name, size, callers).await;
        }
    }
}

async fn measure(name: &str, size: usize, callers: usize) {
    let sandbox = Sandbox::new();
    let mut flags = sandbox.local_pods(&[(IMAGE, "exec cat")]);
    let large = format!("--max-inflight-bytes={LARGE}");
    flags.extend(["--max-parallel-pods-per-function=4".into(), OsString::from(&large)]);
    let runner = sandbox.runner(flags).await;
    let router = sandbox.router(&[&runner], &[&large]).await;
    let routers = Routers::new([router.address()]);
    let images = [IMAGE.to_owned()];
    // The measurement starts with warm pods and warm processes.
    let warm = Load::through(&routers, Plan::callers(callers, &images));
    eventually("pods are warm", async || (warm.answered() >= 100).then_some(())).await;
    warm.stop().await.assert_all_succeeded();

    let before = [router.usage(), runner.usage()];
    let start = Instant::now();
    let plan = Plan { input: package(size), ..Plan::callers(callers, &images) };
    let load = Load::through(&routers, plan);
    sleep_until(start + LOAD_DURATION).await;
    let report = load.stop().await;
    report.assert_all_succeeded();
    let after = [router.usage(), runner.usage()];

    let calls = report.succeeded as f64;
    let mib = |usage: &Usage| usage.peak / 1024;
    let cpu = |n: usize| (after[n].seconds - before[n].seconds) * 1000.0 / calls;
    figure(&format!(
        "{name} x {callers}: {calls} calls; router {} MiB (idle {}), {:.2} ms of a core per call; runner {} MiB \
         (idle {}), {:.2} ms",
        mib(&after[0]),
        mib(&before[0]),
        cpu(0),
        mib(&after[1]),
        mib(&before[1]),
        cpu(1),
    ));
}

/// How long after a burst the memory must be back.
const BACK: Duration = Duration::from_mins(1);

/// A burst of 8 x 5 MiB. `PORCH_FN_STATIC_WRAPPER` is the program of the released image.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes; tests/run nightly runs it"]
async fn memory_goes_back_to_the_system_after_a_burst() {
    let sandbox = Sandbox::new();
    let runner = sandbox.runner(sandbox.local_pods(&[(IMAGE, "exec cat")])).await;
    let router = sandbox.router(&[&runner], &[]).await;
    let program = std::env::var("PORCH_FN_STATIC_WRAPPER").expect("a path; tests/run sets it");
    let wrapper = sandbox.server(&program, ["--", "cat"]).await;
    let idle = [router.usage(), runner.usage(), wrapper.usage()];
    for address in [router.address(), wrapper.address()] {
        let plan = Plan { input: package(5 << 20), ..Plan::callers(8, &[IMAGE.to_owned()]) };
        let load = Load::through(&Routers::new([address]), plan);
        eventually("bursts", async || (load.answered() >= 32).then_some(())).await;
        load.stop().await.assert_all_succeeded();
    }
    sleep_until(Instant::now() + BACK).await;
    let after = [router.usage(), runner.usage(), wrapper.usage()];
    for (name, before, after) in
        [("router", &idle[0], &after[0]), ("runner", &idle[1], &after[1]), ("wrapper", &idle[2], &after[2])]
    {
        figure(&format!(
            "{name}: idle {} KiB, peak {} KiB, a minute after the burst {} KiB",
            before.resident, after.peak, after.resident
        ));
    }
    for at in [0, 1] {
        assert!(after[at].resident * 2 <= idle[at].resident * 3, "more than 1.5 times what it was");
    }
    assert!(after[2].resident <= 8 * 1024 && after[2].peak <= 80 * 1024);
}
