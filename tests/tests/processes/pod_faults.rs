//! Faults of local pods: functions that leave processes behind, pods that hang, and more functions
//! than pods.

use std::fs;
use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, Server, eventually, figure};
use porch_fn_tests::stack::Stack;
use rustix::process::Signal;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tonic::Code;

use super::INPUT;
use super::pods::{IMAGE, pods, runner};

/// Each call leaves a process in its own session, and that process leaves a zombie.
const LEAVES_PROCESSES: &str = "setsid sh -c 'sleep 0 & exec sleep 60' </dev/null >/dev/null 2>&1 & cat";

/// The number of child processes that have ended but were not reaped.
fn zombies(parent: i32) -> usize {
    let is_one = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, of) = (fields.next()?, fields.next()?);
        (state == "Z" && of == parent.to_string()).then_some(())
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| is_one(entry.ok()?)).count()
}

/// Makes `count` calls, and asserts that none of their processes is left a second later.
async fn assert_no_process_left(server: &Server, sandbox: &Sandbox, parent: i32, count: usize) {
    let client = Client::new(server.address());
    let begin = Instant::now();
    let some = async || {
        for _ in 0..count / 4 {
            assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
        }
    };
    tokio::join!(some(), some(), some(), some());
    let took = begin.elapsed();
    let left = || (sandbox.descendants_with("sleep 60").len(), zombies(parent));
    let over = Instant::now();
    while left() != (0, 0) && over.elapsed() < Duration::from_secs(1) {
        sleep(Duration::from_millis(10)).await;
    }
    let (processes, zombies) = left();
    figure(&format!(
        "{count} calls, each leaves a process and a zombie, in {took:.1?}: {processes} processes and {zombies} \
         zombies are left after {:.0?}",
        over.elapsed()
    ));
    assert_eq!((processes, zombies), (0, 0));
}

pub(super) async fn calls_in_a_pod_leave_nothing(count: usize) {
    let sandbox = Sandbox::new();
    let (runner, client) = runner(&sandbox, LEAVES_PROCESSES, [""; 0]).await;
    assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
    assert_no_process_left(&runner, &sandbox, pods(&sandbox)[0].pid, count).await;
}

pub(super) async fn calls_of_executables_leave_nothing(count: usize) {
    let sandbox = Sandbox::new();
    let mut flags = sandbox.executables(&[(IMAGE, LEAVES_PROCESSES)]);
    flags.push("--exec-env=TMPDIR".into());
    let runner = sandbox.runner(flags).await;
    assert_no_process_left(&runner, &sandbox, runner.pid().unwrap(), count).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn calls_leave_no_processes() {
    calls_in_a_pod_leave_nothing(40).await;
    calls_of_executables_leave_nothing(40).await;
}

/// A wrapper-server that gets SIGSTOP answers nothing and closes no connection. The call with the
/// shortest deadline fails. Another pod serves all other calls.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_hung_pod_is_replaced_after_the_first_deadline() {
    let sandbox = Sandbox::new();
    let (runner, client) = runner(&sandbox, "exec cat", ["--pod-ready-timeout=5s"]).await;
    assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
    let hung = pods(&sandbox).remove(0);
    hung.signal(Signal::STOP);
    let begin = Instant::now();
    // One of eight callers has a short deadline. Only its call fails. After that failure, the
    // runner moves the other calls to another pod.
    let first = async {
        let late = client.call_within(IMAGE, INPUT, Duration::from_secs(2)).await;
        (late, client.call(IMAGE, INPUT).await)
    };
    let others = join_all((0..7).map(|_| client.call_within(IMAGE, INPUT, Duration::from_secs(30))));
    let ((late, next), others) = tokio::join!(first, others);
    assert_eq!(late.code, Code::DeadlineExceeded, "the call was on the hung pod: {}", late.message);
    for answer in [&next].into_iter().chain(&others) {
        assert_eq!(answer.output(), INPUT);
    }
    figure(&format!("a hung pod under 8 callers: 1 call failed, the others took {:.1?}", begin.elapsed()));
    assert!(begin.elapsed() < Duration::from_secs(10), "the calls must end long before their deadlines");
    assert!(runner.log().contains("no longer answers"), "{}", runner.log());
    assert_eq!(runner.metric("porch_fn_runner_pods_hung_total").await, Some(1));
    // The pod is deleted because it was not ready for longer than --pod-ready-timeout.
    eventually("the hung pod is deleted", async || {
        let pods = pods(&sandbox);
        (pods.len() == 1 && pods[0].pid != hung.pid).then_some(())
    })
    .await;
}

/// A pod accepts 64 parallel calls from all runners together. Each runner sends it at most 16.
/// Other calls wait in a queue.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_pod_that_six_runners_share_refuses_no_call() {
    let stack = Stack::start(6, &[], &[("f:v1", "sleep 0.2; exec cat")]).await;
    assert_eq!(stack.client().call("f:v1", INPUT).await.output(), INPUT);
    let begin = Instant::now();
    let calls = stack.runners.iter().map(async |runner| {
        let client = Client::new(runner.address());
        join_all((0..40).map(|_| client.call("f:v1", INPUT))).await
    });
    for answer in join_all(calls).await.into_iter().flatten() {
        assert_eq!(answer.output(), INPUT);
    }
    figure(&format!("6 runners x 40 calls on one pod: 0 refused, {:.1?}", begin.elapsed()));
}

/// The largest number of pods that existed at once until `work` ended.
pub(super) async fn most_pods(sandbox: &Sandbox, work: impl Future) -> usize {
    let mut most = 0;
    let mut ticks = interval(Duration::from_millis(50));
    // If reading /proc is slow, missed ticks are not made up for: `work` needs the time.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(work);
    loop {
        tokio::select! {
            _ = &mut work => return most,
            _ = ticks.tick() => most = most.max(pods(sandbox).len()),
        }
    }
}

/// Calls the functions one after the other. There are more functions than `max_pods`.
pub(super) async fn take_turns(functions: usize, max_pods: usize, rounds: usize) {
    let images: Vec<_> = (0..functions).map(|number| format!("example.com/functions/f{number}:v1")).collect();
    let sandbox = Sandbox::new();
    let mut flags =
        sandbox.local_pods(&images.iter().map(|image| (image.as_str(), "exec cat")).collect::<Vec<_>>());
    flags.extend([format!("--max-pods={max_pods}").into(), "--scan-interval=1s".into()]);
    let runner = sandbox.runner(flags).await;
    let client = Client::new(runner.address());
    let begin = Instant::now();
    let mut evicted = 0;
    let calls = async {
        for image in images.iter().cycle().take(rounds * functions) {
            assert_eq!(client.call(image, INPUT).await.output(), INPUT);
            let deleted = "porch_fn_runner_pool_actions_total{action=\"delete evicted\"}";
            let now = runner.metric(deleted).await.unwrap_or_default();
            assert!(now <= evicted + 1, "a call evicts at most one pod");
            evicted = now;
        }
    };
    let most = most_pods(&sandbox, calls).await;
    figure(&format!(
        "{functions} functions in turn with {max_pods} pods, {rounds} rounds: 0 calls failed, {evicted} pods evicted, \
         at most {most} at once, {:.1?} in all",
        begin.elapsed()
    ));
    assert!(most <= max_pods, "{most} pods");
    assert_eq!(evicted, (rounds * functions - max_pods) as u64);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn more_functions_than_pods_take_turns() {
    take_turns(5, 3, 1).await;
}
