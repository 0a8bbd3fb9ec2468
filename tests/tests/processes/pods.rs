//! The pod runtime with local pods: the real pool, real wrapper-servers and real functions. The
//! pool's own tests check its decisions in all possible orders of events. These tests check the
//! effects on processes.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{
    Descendant, Sandbox, Server, binary, count, eventually, figure, flag, wait_count,
};
use rustix::process::Signal;
use tokio::time::Instant;
use tonic::Code;

use super::INPUT;

pub(super) const IMAGE: &str = "example.com/functions/f:v1";
/// Starts a runner with one pod function, which is this shell script, and with additional flags.
pub(super) async fn runner(
    sandbox: &Sandbox,
    script: &str,
    more: impl IntoIterator<Item: Into<OsString>>,
) -> (Server, Client) {
    let flags = sandbox.local_pods(&[(IMAGE, script)]).into_iter();
    let runner = sandbox.runner(flags.chain(more.into_iter().map(Into::into))).await;
    let client = Client::new(runner.address());
    (runner, client)
}

/// The wrapper-server processes of a sandbox, which are its pods. A new child of a pod looks like
/// the pod until it executes another program, so children are excluded.
pub(super) fn pods(sandbox: &Sandbox) -> Vec<Descendant> {
    let mut found = sandbox.descendants_with("--exit-with-stdin");
    let pids: Vec<_> = found.iter().map(|pod| pod.pid).collect();
    found.retain(|pod| parent(pod.pid).is_some_and(|parent| !pids.contains(&parent)));
    found
}

/// The parent of a process, unless it has ended.
fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn pids(sandbox: &Sandbox) -> Vec<i32> {
    pods(sandbox).iter().map(|pod| pod.pid).collect()
}

/// A number from the function's entry on the `/pods` page; zero if it has no entry.
async fn actions(runner: &Server, action: &str) -> Option<u64> {
    runner.metric(&format!("porch_fn_runner_pool_actions_total{{action=\"{action}\"}}")).await
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn pods_are_warmed_up_from_either_form_of_the_cache_config() {
    let unknown = "example.com/functions/unknown:v1";
    for (config, warm_up, expected) in [
        (format!("- name: {IMAGE}\n  timeToLive: 1h\n  maxParallelPodsPerFunction: 3\n"), "true", 1),
        // An entry with an unknown function does not affect other entries.
        (format!("- name: {unknown}\n- name: {IMAGE}\n"), "true", 1),
        (format!("{IMAGE}: 10m\n"), "true", 1),
        (format!("{IMAGE}: 10m\n"), "false", 0),
    ] {
        let sandbox = Sandbox::new();
        let flags = [
            flag("pod-cache-config", sandbox.write("cache.yaml", config)),
            flag("warm-up-pod-cache", warm_up),
        ];
        let (runner, client) = runner(&sandbox, "exec cat", flags).await;
        wait_count(&runner, IMAGE, "ready", expected).await;
        assert_eq!(pods(&sandbox).len() as u64, expected);
        // The call uses the warm pod. Without a warm pod, it starts one.
        assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
        assert_eq!(pods(&sandbox).len(), 1);
        let not_found = format!("function \"{unknown}\" not found");
        client.call(unknown, INPUT).await.assert_failed(Code::NotFound, &not_found);
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_cache_config_that_is_written_later_warms_up_pods_and_keeps_them_past_their_ttl() {
    let sandbox = Sandbox::new();
    // The TTL and the scan interval are one second each. A local pod lives at least 4 s.
    let cache = flag("pod-cache-config", sandbox.write("cache.yaml", ""));
    let flags = ["--pod-ttl=1s".into(), "--scan-interval=1s".into(), cache];
    let (runner, client) = runner(&sandbox, "exec cat", flags).await;
    assert_eq!(pods(&sandbox), []);
    sandbox.write("cache.yaml", format!("- {{name: '{IMAGE}', minReplicas: 1, maxReplicas: 2}}"));
    wait_count(&runner, IMAGE, "ready", 1).await;
    let kept = pids(&sandbox);
    // Although there are no calls, the owner pushes the pod: it writes a later reclaim-after, the
    // time after which a pod may be deleted.
    eventually("3 pushes", async || (actions(&runner, "push").await >= Some(3)).then_some(())).await;
    assert_eq!(pids(&sandbox), kept);
    sandbox.write("cache.yaml", format!("- {{name: '{IMAGE}'}}"));
    wait_count(&runner, IMAGE, "ready", 0).await;
    assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_unused_pod_is_deleted_and_a_call_creates_a_new_one() {
    let sandbox = Sandbox::new();
    // The runner keeps a pod for the longest possible duration of its last call. The long request
    // timeout gives the pod time to start on a busy machine.
    let times = ["--pod-ttl=1s", "--scan-interval=200ms", "--request-timeout=10s"];
    let (runner, client) = runner(&sandbox, "exec cat", times).await;
    for round in 1..=2 {
        assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
        assert_eq!(actions(&runner, "create").await, Some(round));
        eventually("the pod is deleted", async || pods(&sandbox).is_empty().then_some(())).await;
        wait_count(&runner, IMAGE, "ready", 0).await;
    }
    assert_eq!(actions(&runner, "delete expired").await, Some(2));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_killed_pod_is_replaced_and_its_call_runs_again() {
    let sandbox = Sandbox::new();
    let script =
        "[ -e $TMPDIR/first ] && { echo again >&2; exec cat; }; touch $TMPDIR/first; exec sleep 1000";
    let (runner, client) = runner(&sandbox, script, [""; 0]).await;
    let kill = async {
        sandbox.wait_file("first").await;
        let pod = pods(&sandbox);
        pod[0].signal(Signal::KILL);
        pod
    };
    let (answer, killed) = tokio::join!(client.call(IMAGE, INPUT), kill);
    assert_eq!((&answer.output()[..], answer.log().as_str()), (INPUT.as_bytes(), "again\n"));
    wait_count(&runner, IMAGE, "ready", 1).await;
    let now = pods(&sandbox);
    assert!(now.len() == 1 && now != killed, "{now:?}");

    // After an idle pod is killed, the next call waits until a new pod has started.
    now[0].signal(Signal::KILL);
    assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_pod_keeps_starting_when_its_caller_cancels() {
    let sandbox = Sandbox::new();
    let slow = format!(
        "touch $TMPDIR/starting; until [ -e $TMPDIR/go ]; do sleep 0.01; done; exec {} \"$@\"",
        binary("wrapper-server").display()
    );
    let slow = flag("wrapper-server", sandbox.script("slow-wrapper", &slow));
    let (runner, client) = runner(&sandbox, "exec cat", [slow]).await;

    let answer = client.call_within(IMAGE, INPUT, Duration::from_millis(300)).await;
    assert_eq!(answer.code, Code::DeadlineExceeded, "{answer:?}");
    tokio::select! {
        answer = client.call(IMAGE, INPUT) => panic!("{answer:?}"),
        () = wait_count(&runner, IMAGE, "waiting", 1) => {}
    }
    wait_count(&runner, IMAGE, "waiting", 0).await;
    assert_eq!(count(&runner, IMAGE, "starting").await, 1);
    let pod = pids(&sandbox);
    sandbox.write("go", "");
    wait_count(&runner, IMAGE, "ready", 1).await;
    assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
    assert_eq!(pids(&sandbox), pod, "the pod that was starting");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn calls_fail_with_the_reason_why_their_pod_does_not_start() {
    for (wrapper, timeout, code, reason) in [
        ("exit 3", "--pod-ready-timeout=5m", Code::Unknown, "exit status 3"),
        ("exec sleep 1000", "--pod-ready-timeout=500ms", Code::DeadlineExceeded, "--pod-ready-timeout"),
    ] {
        let sandbox = Sandbox::new();
        let wrapper = flag("wrapper-server", sandbox.script("broken-wrapper", wrapper));
        let (_runner, client) = runner(&sandbox, "exec cat", [wrapper, timeout.into()]).await;
        let began = Instant::now();
        let answers = join_all((0..3).map(|_| client.call(IMAGE, INPUT))).await;
        figure(&format!("calls of a function whose pod does not start fail after {:.3?}", began.elapsed()));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        for answer in answers {
            let text = "unable to get the grpc client to the pod for example.com/functions/f:v1: ";
            assert_eq!(answer.code, code);
            assert!(answer.message.starts_with(text) && answer.message.contains(reason), "{answer:?}");
        }
    }
}
