//! What production does to pods, on local ones: processes that stay, pods that hang.

use std::fs;
use std::time::Duration;

use futures_util::future::join_all;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Descendant, Sandbox, Server, eventually, figure, flag};
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::pods::{IMAGE, INPUT, one_function, pods};

async fn one_pod(sandbox: &Sandbox) -> Descendant {
    eventually("a pod", async || pods(sandbox).pop()).await
}

/// The children of a process that have ended and are not reaped.
fn zombies(parent: i32) -> usize {
    let is_one = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, of) = (fields.next()?, fields.next()?);
        (state == "Z" && of == parent.to_string()).then_some(())
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| is_one(entry.ok()?)).count()
}

mod left_behind {
    use super::*;

    /// Each call leaves a process in a session of its own, and that one leaves a zombie.
    const LEAVES: &str = "setsid sh -c 'sleep 0 & exec sleep 60' </dev/null >/dev/null 2>&1 &\ncat";
    /// Marks the call that runs beside the others, and needs its daemon to the end.
    const BESIDE: &str = "kind: ResourceList\n# beside\n";

    /// So many calls, and one that runs beside them: nothing of them is left a second after.
    async fn calls_leave_nothing(server: &Server, sandbox: &Sandbox, parent: i32, count: usize) {
        let client = Client::new(server.address());
        let beside = tokio::spawn({
            let client = Client::new(server.address());
            async move { client.call(IMAGE, BESIDE).await.output().clone() }
        });
        sandbox.appears("begun").await;
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
            "{count} calls that leave a process and a zombie each, in {took:.1?}: {processes} processes and {zombies} \
             zombies are left after {:.0?}",
            over.elapsed()
        ));
        assert_eq!((processes, zombies), (0, 0));
        sandbox.write("go", "");
        assert_eq!(beside.await.unwrap(), BESIDE);
    }

    fn script() -> String {
        format!(
            "cat >$TMPDIR/$$.in\nif grep -q beside $TMPDIR/$$.in; then\n\
             (setsid sh -c 'echo $$ >$TMPDIR/daemon; exec sleep 61' >/dev/null 2>&1 &)\n\
             touch $TMPDIR/begun; until [ -e $TMPDIR/go ]; do sleep 0.01; done\n\
             kill -0 $(cat $TMPDIR/daemon) || exit 1\nexec cat $TMPDIR/$$.in\nfi\n\
             exec <$TMPDIR/$$.in; rm $TMPDIR/$$.in\n{LEAVES}"
        )
    }

    async fn in_a_pod(count: usize) {
        let sandbox = Sandbox::new();
        let runner = sandbox.server("porch-fn-runner", one_function(&sandbox, &script(), &[])).await;
        assert_eq!(Client::new(runner.address()).call(IMAGE, INPUT).await.output(), INPUT);
        calls_leave_nothing(&runner, &sandbox, one_pod(&sandbox).await.pid, count).await;
    }

    async fn in_the_exec_runtime(count: usize) {
        let sandbox = Sandbox::new();
        sandbox.script("functions/f", &script());
        let flags = [
            "--disable-runtimes=pod".into(),
            "--exec-env=TMPDIR".into(),
            flag(
                "config",
                sandbox.write("exec.yaml", format!("functions: [{{function: f, images: ['{IMAGE}']}}]")),
            ),
            flag("functions", sandbox.path("functions")),
        ];
        let runner = sandbox.server("porch-fn-runner", flags).await;
        calls_leave_nothing(&runner, &sandbox, runner.pid().unwrap(), count).await;
    }

    #[tokio::test]
    #[ignore = "needs the built binaries; tests/run runs it"]
    async fn by_calls_in_a_pod_is_nothing() {
        in_a_pod(40).await;
    }

    #[tokio::test]
    #[ignore = "needs the built binaries; tests/run runs it"]
    async fn by_calls_of_executables_is_nothing() {
        in_the_exec_runtime(40).await;
    }

    mod slow {
        #[tokio::test]
        #[ignore = "a thousand calls; tests/faults pods runs it"]
        async fn by_a_thousand_calls_in_a_pod_is_nothing() {
            super::in_a_pod(1000).await;
        }

        #[tokio::test]
        #[ignore = "a thousand calls; tests/faults pods runs it"]
        async fn by_a_thousand_calls_of_executables_is_nothing() {
            super::in_the_exec_runtime(1000).await;
        }
    }
}

mod hung {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};

    /// A wrapper-server that is stopped answers nothing and closes nothing. The calls that it holds
    /// run into their deadlines; the next one is served by another pod.
    #[tokio::test]
    #[ignore = "needs the built binaries; tests/run runs it"]
    async fn a_pod_that_hangs_is_replaced_after_the_first_deadline() {
        let sandbox = Sandbox::new();
        let runner = sandbox
            .server("porch-fn-runner", one_function(&sandbox, "exec cat", &["--pod-ready-timeout=5s"]))
            .await;
        let client = Client::new(runner.address());
        assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
        let hung = one_pod(&sandbox).await;
        kill_process(Pid::from_raw(hung.pid).unwrap(), Signal::STOP).unwrap();
        let begin = Instant::now();
        // Of eight callers one has a short deadline: it pays for the others.
        let first = async {
            let late = client.call_within(IMAGE, INPUT, Duration::from_secs(2)).await;
            (late, client.call(IMAGE, INPUT).await)
        };
        let others = join_all((0..7).map(|_| client.call_within(IMAGE, INPUT, Duration::from_secs(30))));
        let ((late, next), others) = tokio::join!(first, others);
        assert_eq!(late.code, Code::DeadlineExceeded, "it was on the pod that hangs: {}", late.message);
        for answer in [&next].into_iter().chain(&others) {
            assert_eq!(answer.output(), INPUT);
        }
        figure(&format!(
            "a hung pod under 8 callers: all but one are served, within {:.1?}",
            begin.elapsed()
        ));
        assert!(runner.log().contains("does not answer"), "{}", runner.log());
        assert_eq!(runner.metric("porch_fn_runner_pods_hung_total").await, Some(1));
        assert!(begin.elapsed() < Duration::from_secs(10), "long before their deadlines");
        // Not ready for so long, the pod that hangs is deleted.
        eventually("its end", async || {
            let pods = pods(&sandbox);
            (pods.len() == 1 && pods[0].pid != hung.pid).then_some(())
        })
        .await;
    }
}

mod crowded {
    use super::*;
    use porch_fn_tests::stack::Stack;

    /// A pod takes 64 calls at once, of all runners together, and each runner sends it 16 of its own. The
    /// others wait in line.
    #[tokio::test]
    #[ignore = "needs the built binaries; tests/run runs it"]
    async fn a_pod_of_six_runners_refuses_no_callers() {
        let stack = Stack::start(6, &[], &[("f:v1", "sleep 0.2; exec cat")]).await;
        assert_eq!(stack.client().call("f:v1", INPUT).await.output(), INPUT);
        let begin = Instant::now();
        let runners: Vec<_> =
            stack.status().await.shards.iter().map(|shard| shard.info.address.clone()).collect();
        assert_eq!(runners.len(), 6);
        let calls = runners.iter().map(async |runner| {
            let client = Client::new(runner.parse().unwrap());
            join_all((0..40).map(|_| client.call("f:v1", INPUT))).await
        });
        for answer in join_all(calls).await.into_iter().flatten() {
            assert_eq!(answer.output(), INPUT);
        }
        figure(&format!("6 runners x 40 calls on one pod: 0 refused, {:.1?}", begin.elapsed()));
    }
}

mod places {
    use super::*;
    use std::ffi::OsString;
    use std::fmt::Write as _;

    use porch_fn_tests::process::binary;
    use porch_fn_tests::stack::Stack;
    use tokio::time::interval;

    const DELETED: &str = "porch_fn_runner_pool_actions_total{action=\"delete evicted\"}";

    fn image(function: usize) -> String {
        format!("example.com/functions/f{function}:v1")
    }

    fn flags(sandbox: &Sandbox, functions: usize, places: usize) -> Vec<OsString> {
        let script = sandbox.script("f", "exec cat");
        let mut local = "functions:\n".to_owned();
        for function in 0..functions {
            writeln!(local, "- {{image: '{}', command: ['{}']}}", image(function), script.display()).unwrap();
        }
        vec![
            "--pod-backend=local".into(),
            flag("local-functions", sandbox.write("pods.yaml", local)),
            flag("wrapper-server", binary("wrapper-server")),
            format!("--max-pods={places}").into(),
            "--scan-interval=1s".into(),
        ]
    }

    /// The most pods that are there at once, until it is dropped.
    async fn most_pods(sandbox: &Sandbox, most: &mut usize) {
        let mut looks = interval(Duration::from_millis(50));
        loop {
            looks.tick().await;
            *most = (*most).max(pods(sandbox).len());
        }
    }

    async fn take_turns(functions: usize, places: usize, rounds: usize) {
        let sandbox = Sandbox::new();
        let runner = sandbox.server("porch-fn-runner", flags(&sandbox, functions, places)).await;
        let client = Client::new(runner.address());
        let begin = Instant::now();
        let (mut most, mut evicted) = (0, 0);
        let calls = async {
            for _ in 0..rounds {
                for function in 0..functions {
                    assert_eq!(client.call(&image(function), INPUT).await.output(), INPUT);
                    let now = runner.metric(DELETED).await.unwrap_or_default();
                    assert!(now <= evicted + 1, "one call makes one place");
                    evicted = now;
                }
            }
        };
        tokio::select! {
            () = calls => {}
            () = most_pods(&sandbox, &mut most) => {}
        }
        figure(&format!(
            "{functions} functions by turns in {places} places, {rounds} rounds: 0 failed, {evicted} pods made place, \
             at most {most} at once, {:.1?} in all",
            begin.elapsed()
        ));
        assert!(most <= places, "{most} pods");
        assert_eq!(evicted, (rounds * functions - places) as u64);
    }

    #[tokio::test]
    #[ignore = "needs the built binaries; tests/run runs it"]
    async fn are_taken_by_turns() {
        take_turns(5, 3, 1).await;
    }

    mod slow {
        use super::*;

        #[tokio::test]
        #[ignore = "minutes; tests/faults pods runs it"]
        async fn twenty_functions_take_turns_in_five_places() {
            take_turns(20, 5, 3).await;
        }

        /// Each function at its own pace, from callers that know nothing of each other.
        #[tokio::test]
        #[ignore = "a minute; tests/faults pods runs it"]
        async fn twenty_callers_share_five_places_of_three_runners() {
            let names: Vec<_> = (0..20).map(|function| format!("f{function}:v1")).collect();
            let functions: Vec<_> = names.iter().map(|name| (name.as_str(), "exec cat")).collect();
            let stack = Stack::start(3, &["--max-pods=5", "--scan-interval=1s"], &functions).await;
            let begin = Instant::now();
            let mut most = 0;
            let callers = names.iter().map(async |name| {
                for _ in 0..3 {
                    assert_eq!(stack.client().call(name, INPUT).await.output(), INPUT);
                }
            });
            tokio::select! {
                _ = join_all(callers) => {}
                () = most_pods(&stack.sandbox, &mut most) => {}
            }
            figure(&format!(
                "20 callers of a function each, 3 runners, 5 places: 60 calls, 0 failed, at most {most} pods at once, {:.1?}",
                begin.elapsed()
            ));
            // At the start, none of the three runners sees the pods that the others create.
            assert!((5..=15).contains(&most), "{most} pods");
            let within = async || (pods(&stack.sandbox).len() <= 5).then_some(());
            eventually("the pods are as many as there may be", within).await;
        }
    }
}
