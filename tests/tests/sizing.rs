//! What a call costs a router and a runner: memory by message size and calls at once, and time of a core. The README's
//! sizing table is made of these figures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::time::Duration;

use porch_fn_tests::load::{Load, Plan, Routers};
use porch_fn_tests::process::{Sandbox, Server, binary, eventually, figure, flag};
use tokio::time::{Instant, sleep_until};

const IMAGE: &str = "example.com/functions/cat:v1";
const SIZES: [(&str, usize); 4] =
    [("4 KiB", 4 << 10), ("100 KiB", 100 << 10), ("1 MiB", 1 << 20), ("5 MiB", 5 << 20)];
const AT_ONCE: [usize; 3] = [1, 16, 64];
/// Bytes: what no load here fills, of which one function gets half.
const ENOUGH: &str = "2147483648";
/// How long each load lasts.
const LASTS: Duration = Duration::from_secs(5);
/// Of the kernel's clock, by which it counts a process's time, in each second.
const TICKS: f64 = 100.0;

/// What a process has used.
struct Usage {
    /// Of one core.
    seconds: f64,
    /// At most, in MiB.
    memory: f64,
}

/// What the kernel counts of a process.
fn usage(server: &Server) -> Usage {
    let pid = server.pid().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Behind the name, which may hold anything: state is the third field, user time the 14th, system time the 15th.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: f64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    Usage { seconds: ticks / TICKS, memory: kib / 1024.0 }
}

/// A package of about so many bytes.
fn package(size: usize) -> String {
    let mut list = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n".to_owned();
    for number in 0.. {
        if list.len() >= size {
            break;
        }
        let _ = writeln!(
            list,
            "- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: config-{number}\n    namespace: default\n  data:\n    \
             key: value of some length, as there is in the packages that people have"
        );
    }
    list
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes; tests/sizing runs it"]
async fn what_calls_cost() {
    for (name, size) in SIZES {
        for callers in AT_ONCE {
            cost(name, size, callers).await;
        }
    }
}

async fn cost(name: &str, size: usize, callers: usize) {
    let sandbox = Sandbox::new();
    let local = format!("functions: [{{image: '{IMAGE}', command: [cat]}}]");
    let runner = [
        "--pod-backend=local".into(),
        "--max-parallel-pods-per-function=4".into(),
        flag("max-inflight-bytes", ENOUGH),
        flag("local-functions", sandbox.write("pods.yaml", local)),
        flag("wrapper-server", binary("wrapper-server")),
    ];
    let runner = sandbox.server("porch-fn-runner", runner).await;
    let target = flag("runners", format!("static:///{}", runner.address()));
    let router = sandbox.server("porch-fn-router", [target, flag("max-inflight-bytes", ENOUGH)]).await;
    let routers = Routers::new([router.address()]);
    let images = [IMAGE.to_owned()];
    // The pods are there, and each process has been at work.
    let warm = Load::through(&routers, Plan::callers(callers, &images));
    eventually("pods are warm", async || (warm.answered() >= 100).then_some(())).await;
    warm.stop().await.all_succeeded();

    let before = [usage(&router), usage(&runner)];
    let start = Instant::now();
    let load = Load::through(&routers, Plan::callers(callers, &images).input(package(size)));
    sleep_until(start + LASTS).await;
    let report = load.stop().await;
    report.all_succeeded();
    let after = [usage(&router), usage(&runner)];

    let calls = report.succeeded as f64;
    let cpu = |n: usize| (after[n].seconds - before[n].seconds) * 1000.0 / calls;
    figure(&format!(
        "{name} x {callers}: {calls} calls; router {:.0} MiB (idle {:.0}), {:.2} ms of a core per call; runner {:.0} MiB \
         (idle {:.0}), {:.2} ms",
        after[0].memory,
        before[0].memory,
        cpu(0),
        after[1].memory,
        before[1].memory,
        cpu(1),
    ));
}
