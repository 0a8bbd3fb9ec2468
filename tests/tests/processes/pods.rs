//! The pod runtime on local pods: real pool, real wrapper-servers, real functions. What the pool decides in
//! every possible history is tested beside it; this shows that its decisions reach processes.

use std::ffi::OsString;
use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Descendant, Sandbox, Server, binary, eventually, figure, flag};
use tokio::time::Instant;
use tonic::Code;

pub(super) const IMAGE: &str = "example.com/functions/f:v1";
pub(super) const INPUT: &str = "kind: ResourceList\n";
const CREATED: &str = "porch_fn_runner_pool_actions_total{action=\"create\"}";

/// Flags for one pod function that is this shell script. `$TMPDIR` is the sandbox.
pub(super) fn one_function(sandbox: &Sandbox, script: &str, more: &[&str]) -> Vec<OsString> {
    let function = sandbox.script("f", script);
    let local = format!("functions: [{{image: '{IMAGE}', command: ['{}']}}]", function.display());
    let own = [
        "--pod-backend=local".into(),
        flag("local-functions", sandbox.write("pods.yaml", local)),
        flag("wrapper-server", binary("wrapper-server")),
    ];
    own.into_iter().chain(more.iter().map(Into::into)).collect()
}

/// The wrapper-servers of a sandbox: its pods, but not the runner that names them in a flag. Nor a child of a pod, which
/// looks like it until it has become a program of its own.
pub(super) fn pods(sandbox: &Sandbox) -> Vec<Descendant> {
    let mut found = sandbox.descendants_with("--exit-with-stdin");
    let pids: Vec<_> = found.iter().map(|pod| pod.pid).collect();
    found.retain(|pod| parent(pod.pid).is_some_and(|parent| !pids.contains(&parent)));
    found
}

/// The parent of a process, unless it is gone.
fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// A number of the function's entry on the `/pods` page; zero when it has none.
async fn count(runner: &Server, field: &str) -> u64 {
    let page = runner.json("/pods").await;
    let entry = page.as_array().unwrap().iter().find(|function| function["image"] == IMAGE);
    entry.map_or(0, |entry| entry[field].as_u64().unwrap())
}

async fn until_ready(runner: &Server, pods: u64) {
    eventually(&format!("{pods} ready"), async || (count(runner, "ready").await == pods).then_some(())).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn four_long_calls_with_a_waitlist_of_two_make_exactly_two_pods() {
    let sandbox = Sandbox::new();
    let flags = ["--max-waitlist-length=2", "--max-parallel-pods-per-function=10"];
    let runner = sandbox.server("porch-fn-runner", one_function(&sandbox, "sleep 1; exec cat", &flags)).await;
    let client = Client::new(runner.address());
    let mut calls = std::pin::pin!(join_all((0..4).map(|_| client.call(IMAGE, INPUT))));
    let mut most = 0;
    let answers = loop {
        tokio::select! {
            answers = &mut calls => break answers,
            () = tokio::time::sleep(Duration::from_millis(20)) => most = most.max(pods(&sandbox).len()),
        }
    };
    for answer in answers {
        assert_eq!(answer.output(), INPUT);
    }
    until_ready(&runner, 2).await;
    assert_eq!(most.max(pods(&sandbox).len()), 2);
    assert_eq!(runner.metric(CREATED).await, Some(2));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_trace_goes_from_the_router_to_the_function() {
    let sandbox = Sandbox::new();
    let script = "echo \"$TRACEPARENT $TRACESTATE $BAGGAGE\" >&2; exec cat";
    let runner = sandbox.server("porch-fn-runner", one_function(&sandbox, script, &[])).await;
    let target = flag("runners", format!("static:///{}", runner.address()));
    let router = sandbox.server("porch-fn-router", [target]).await;
    router.until_well().await;
    let client = Client::new(router.address());
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for (sent, seen) in [(parent, format!("{parent} a=1 user=x\n")), ("nonsense", "  \n".to_owned())] {
        let headers = [("traceparent", sent), ("tracestate", "a=1"), ("baggage", "user=x")];
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let answer = client.try_call_with(IMAGE, INPUT, None, headers.into_iter().collect()).await.unwrap();
        assert_eq!(answer.output(), INPUT);
        assert_eq!(answer.log(), seen);
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn two_calls_overlap_in_one_pod() {
    let sandbox = Sandbox::new();
    // Each ends only when both have begun.
    let script =
        "touch $TMPDIR/$$.began; until [ $(ls $TMPDIR | grep -c began) -ge 2 ]; do sleep 0.01; done; cat";
    let runner = sandbox.server("porch-fn-runner", one_function(&sandbox, script, &[])).await;
    let client = Client::new(runner.address());
    let (first, second) = tokio::join!(client.call(IMAGE, INPUT), client.call(IMAGE, INPUT));
    assert_eq!((first.output(), second.output()), (&INPUT.into(), &INPUT.into()));
    assert_eq!(pods(&sandbox).len(), 1);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn pods_are_warmed_up_from_either_form_of_the_cache_config() {
    for (config, warm_up, expected) in [
        (format!("- name: {IMAGE}\n  timeToLive: 1h\n  maxParallelPodsPerFunction: 3\n"), "true", 1),
        (format!("{IMAGE}: 10m\n"), "true", 1),
        (format!("{IMAGE}: 10m\n"), "false", 0),
    ] {
        let sandbox = Sandbox::new();
        let mut flags = one_function(&sandbox, "exec cat", &[]);
        flags.push(flag("pod-cache-config", sandbox.write("cache.yaml", config)));
        flags.push(flag("warm-up-pod-cache", warm_up));
        let runner = sandbox.server("porch-fn-runner", flags).await;
        until_ready(&runner, expected).await;
        assert_eq!(pods(&sandbox).len() as u64, expected);
        // The call finds the pod that there is.
        assert_eq!(Client::new(runner.address()).call(IMAGE, INPUT).await.output(), INPUT);
        assert_eq!(pods(&sandbox).len(), 1);
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_config_that_appears_later_warms_up_and_keeps_pods_past_their_time() {
    let sandbox = Sandbox::new();
    let cache = sandbox.write("cache.yaml", "");
    let change = |text: String| std::fs::rename(sandbox.write("cache.new", text), &cache).unwrap();
    // A second each, and the least lifetime of a local pod is 4 s.
    let mut flags = one_function(&sandbox, "exec cat", &["--pod-ttl=1s", "--scan-interval=1s"]);
    flags.push(flag("pod-cache-config", &cache));
    let runner = sandbox.server("porch-fn-runner", flags).await;
    assert_eq!(pods(&sandbox).len(), 0);
    change(format!("- {{name: '{IMAGE}', minReplicas: 1, maxReplicas: 2}}"));
    until_ready(&runner, 1).await;
    let kept = pods(&sandbox)[0].pid;
    // Pushed by its owner though nobody calls.
    let pushes = "porch_fn_runner_pool_actions_total{action=\"push\"}";
    eventually("3 pushes", async || (runner.metric(pushes).await >= Some(3)).then_some(())).await;
    assert_eq!(pods(&sandbox).iter().map(|pod| pod.pid).collect::<Vec<_>>(), [kept]);
    change(format!("- {{name: '{IMAGE}'}}"));
    until_ready(&runner, 0).await;
    assert_eq!(Client::new(runner.address()).call(IMAGE, INPUT).await.output(), INPUT);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_image_that_is_not_allowed_gets_no_pod() {
    let sandbox = Sandbox::new();
    let mut flags = one_function(&sandbox, "cat", &["--allowed-images=example.com/functions/g*"]);
    let g = "example.com/functions/g:v1";
    let command = sandbox.path("f");
    let local = format!(
        "functions: [{{image: '{IMAGE}', command: ['{command}']}}, {{image: '{g}', command: ['{command}']}}]",
        command = command.display()
    );
    flags.push(flag("local-functions", sandbox.write("two.yaml", local)));
    // The first is asked for first, if it is asked for at all.
    let cache = format!("- {{name: '{IMAGE}', minReplicas: 1}}\n- {{name: '{g}', minReplicas: 1}}\n");
    flags.push(flag("pod-cache-config", sandbox.write("cache.yaml", cache)));
    let runner = sandbox.server("porch-fn-runner", flags).await;
    let ready = async || {
        let page = runner.json("/pods").await;
        page.as_array()
            .unwrap()
            .iter()
            .any(|function| function["image"] == g && function["ready"] == 1)
            .then_some(())
    };
    eventually("a pod of the allowed image", ready).await;
    let client = Client::new(runner.address());
    assert_eq!(client.call(g, INPUT).await.output(), INPUT);
    let expected = format!(
        "image \"{IMAGE}\" is not allowed: no pattern of the function runner's --allowed-images fits it"
    );
    client.call(IMAGE, INPUT).await.fails(Code::PermissionDenied, &expected);
    let page = runner.json("/pods").await;
    assert!(page.as_array().unwrap().iter().all(|function| function["image"] == g), "{page}");
    assert_eq!(pods(&sandbox).len(), 1);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_warm_up_that_cannot_succeed_ends_nothing() {
    let sandbox = Sandbox::new();
    let mut flags = one_function(&sandbox, "exec cat", &[]);
    let config = format!("- name: example.com/functions/unknown:v1\n- name: {IMAGE}\n");
    flags.push(flag("pod-cache-config", sandbox.write("cache.yaml", config)));
    let runner = sandbox.server("porch-fn-runner", flags).await;
    until_ready(&runner, 1).await;
    let client = Client::new(runner.address());
    let unknown = client.call("example.com/functions/unknown:v1", INPUT).await;
    unknown.fails(Code::NotFound, "function \"example.com/functions/unknown:v1\" not found");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_unused_pod_is_collected_and_comes_back_on_demand() {
    let sandbox = Sandbox::new();
    // A pod is kept for as long as its last call might have taken: the longer that is, the slower it may start here.
    let times = ["--pod-ttl=1s", "--scan-interval=200ms", "--request-timeout=10s"];
    let flags = one_function(&sandbox, "exec cat", &times);
    let runner = sandbox.server("porch-fn-runner", flags).await;
    let client = Client::new(runner.address());
    for round in 1..=2 {
        assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
        assert_eq!(runner.metric(CREATED).await, Some(round));
        eventually("the pod is collected", async || pods(&sandbox).is_empty().then_some(())).await;
        until_ready(&runner, 0).await;
    }
    assert_eq!(runner.metric("porch_fn_runner_pool_actions_total{action=\"delete expired\"}").await, Some(2));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_pod_in_use_is_not_collected() {
    let sandbox = Sandbox::new();
    let script = "touch $TMPDIR/began; until [ -e $TMPDIR/go ]; do sleep 0.01; done; cat";
    let flags = one_function(&sandbox, script, &["--pod-ttl=1s", "--scan-interval=200ms"]);
    let runner = sandbox.server("porch-fn-runner", flags).await;
    let client = Client::new(runner.address());
    let longer_than_its_time_to_live = async {
        sandbox.appears("began").await;
        let pod = pods(&sandbox);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(6) {
            assert_eq!(pods(&sandbox), pod);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        sandbox.write("go", "");
    };
    let (answer, ()) = tokio::join!(client.call(IMAGE, INPUT), longer_than_its_time_to_live);
    assert_eq!(answer.output(), INPUT);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_killed_pod_is_replaced_and_its_call_runs_again() {
    let sandbox = Sandbox::new();
    let script =
        "[ -e $TMPDIR/first ] && { echo again >&2; exec cat; }; touch $TMPDIR/first; exec sleep 1000";
    let runner = sandbox.server("porch-fn-runner", one_function(&sandbox, script, &[])).await;
    let client = Client::new(runner.address());
    let kill = async {
        sandbox.appears("first").await;
        let pod = pods(&sandbox);
        pod[0].kill();
        pod
    };
    let (answer, killed) = tokio::join!(client.call(IMAGE, INPUT), kill);
    assert_eq!((&answer.output()[..], answer.log().as_str()), (INPUT.as_bytes(), "again\n"));
    until_ready(&runner, 1).await;
    let now = pods(&sandbox);
    assert!(now.len() == 1 && now != killed, "{now:?}");

    // An idle pod that dies costs the next caller nothing but its start.
    now[0].kill();
    assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_function_that_kills_its_pods_does_not_walk_through_them() {
    let sandbox = Sandbox::new();
    // The wrapper is the function's parent.
    let script = "echo >>$TMPDIR/runs; kill -KILL $PPID; sleep 1000";
    let runner = sandbox.server("porch-fn-runner", one_function(&sandbox, script, &[])).await;
    Client::new(runner.address()).call(IMAGE, INPUT).await.fails(
        Code::Unavailable,
        "unable to evaluate example.com/functions/f:v1 with pod evaluator: rpc error: code = Unavailable desc = \
         the function's pods broke off during this call and it is not run again: look for out-of-memory kills and \
         crashes of the function",
    );
    // --max-grpc-retries is 2.
    assert_eq!(sandbox.appears("runs").await.len(), 3);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_caller_that_gives_up_leaves_the_pod_starting() {
    let sandbox = Sandbox::new();
    let mut flags = one_function(&sandbox, "exec cat", &[]);
    let slow = format!(
        "touch $TMPDIR/starting; until [ -e $TMPDIR/go ]; do sleep 0.01; done; exec {} \"$@\"",
        binary("wrapper-server").display()
    );
    flags.push(flag("wrapper-server", sandbox.script("slow-wrapper", &slow)));
    let runner = sandbox.server("porch-fn-runner", flags).await;
    let client = Client::new(runner.address());

    let answer = client.call_within(IMAGE, INPUT, Duration::from_millis(300)).await;
    assert_eq!(answer.code, Code::DeadlineExceeded, "{answer:?}");
    {
        let call = client.call(IMAGE, INPUT);
        let waits =
            eventually("the call waits", async || (count(&runner, "waiting").await == 1).then_some(()));
        tokio::select! {
            answer = call => panic!("{answer:?}"),
            () = waits => {}
        }
    }
    eventually("nobody waits", async || (count(&runner, "waiting").await == 0).then_some(())).await;
    assert_eq!(count(&runner, "starting").await, 1);
    let pod = pods(&sandbox);
    sandbox.write("go", "");
    until_ready(&runner, 1).await;
    assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
    let pids = |pods: &[Descendant]| pods.iter().map(|pod| pod.pid).collect::<Vec<_>>();
    assert_eq!(pids(&pods(&sandbox)), pids(&pod), "the very pod that was starting");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_pod_that_crashes_at_its_start_fails_its_callers_at_once_with_the_reason() {
    let sandbox = Sandbox::new();
    let mut flags = one_function(&sandbox, "exec cat", &["--pod-ready-timeout=5m"]);
    flags.push(flag("wrapper-server", sandbox.script("broken-wrapper", "exit 3")));
    let runner = sandbox.server("porch-fn-runner", flags).await;
    let client = Client::new(runner.address());
    let began = Instant::now();
    let answers = join_all((0..3).map(|_| client.call(IMAGE, INPUT))).await;
    figure(&format!("calls of a function whose pod crashes at its start fail after {:.3?}", began.elapsed()));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    for answer in answers {
        assert_eq!(answer.code, Code::Unknown);
        let text = "unable to get the grpc client to the pod for example.com/functions/f:v1: ";
        assert!(
            answer.message.starts_with(text) && answer.message.contains("exit status 3"),
            "{}",
            answer.message
        );
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_pod_that_never_gets_ready_fails_its_callers_after_the_ready_timeout() {
    let sandbox = Sandbox::new();
    let mut flags = one_function(&sandbox, "exec cat", &["--pod-ready-timeout=500ms"]);
    flags.push(flag("wrapper-server", sandbox.script("silent-wrapper", "exec sleep 1000")));
    let runner = sandbox.server("porch-fn-runner", flags).await;
    let answer = Client::new(runner.address()).call(IMAGE, INPUT).await;
    assert_eq!(answer.code, Code::DeadlineExceeded);
    let text = "unable to get the grpc client to the pod for example.com/functions/f:v1: ";
    assert!(
        answer.message.starts_with(text) && answer.message.contains("--pod-ready-timeout"),
        "{}",
        answer.message
    );
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_functions_failure_keeps_its_code_and_is_wrapped_as_in_the_original() {
    let sandbox = Sandbox::new();
    let runner = sandbox.server("porch-fn-runner", one_function(&sandbox, "echo why >&2; exit 1", &[])).await;
    Client::new(runner.address()).call(IMAGE, INPUT).await.fails(
        Code::Internal,
        "unable to evaluate example.com/functions/f:v1 with pod evaluator: rpc error: code = Internal desc = \
         failed to parse the output of function \"example.com/functions/f:v1\" with stderr 'why\n': expected exactly \
         one object, got 0: the function must write a ResourceList to stdout",
    );
}
