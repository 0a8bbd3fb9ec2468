//! The wrapper-server through its front door: each row of the outcome table is one gRPC call. Codes and texts
//! are what Porch shows its users and may commit to git, so they are compared whole.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use porch_fn_tests::client::{Answer, Client};
use porch_fn_tests::process::{Sandbox, eventually, figure};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use wrapper_server::{App, Flags, start};

const IMAGE: &str = "example.com/functions/set-image:v1";
const INPUT: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n";

/// A wrapper in this process, whose functions carry the sandbox's mark.
struct Wrapper {
    sandbox: Sandbox,
    _app: App,
    client: Client,
}

impl Wrapper {
    async fn of(extra: &[&str], entrypoint: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let mark = format!("TMPDIR={}", sandbox.directory().display());
        let listen = ["wrapper-server", "--address=127.0.0.1", "--port=0"];
        let args = [&listen[..], extra, &["--", "env", &mark], entrypoint].concat();
        let flags: Flags = porch_fn_flags::parse(args.iter().map(Into::into)).unwrap();
        let app = start(&flags).await.unwrap();
        let client = Client::new(app.address());
        Self { sandbox, _app: app, client }
    }

    async fn sh(script: &str) -> Self {
        Self::of(&[], &["sh", "-c", script]).await
    }
}

/// One call of a function that is this shell script.
async fn evaluate(script: &str) -> Answer {
    Wrapper::sh(script).await.client.call(IMAGE, INPUT).await
}

#[tokio::test]
async fn exit_0_with_a_resource_list_is_ok_byte_for_byte() {
    let output = "# comment stays\r\nkind:   ResourceList\nitems: [ ]  \n...\n";
    let answer = evaluate(&format!("cat >/dev/null; printf '{output}'; printf 'a\\377b' >&2")).await;
    assert_eq!(answer.output(), output.as_bytes());
    assert_eq!(&answer.log[..], b"a\xffb");
}

#[tokio::test]
async fn flatten_log_joins_the_lines_of_stderr_and_of_nothing_else() {
    let script = "cat; [ -z \"$FAIL\" ] || echo prose; printf '\\none\\r\\n  two \\n\\n' >&2";
    let wrapper = Wrapper::of(&["--flatten-log"], &["sh", "-c", script]).await;
    let answer = wrapper.client.call(IMAGE, INPUT).await;
    assert_eq!((&answer.output()[..], &*answer.log()), (INPUT.as_bytes(), "one |   two "));
    let wrapper = Wrapper::of(&["--flatten-log"], &["env", "FAIL=1", "sh", "-c", script]).await;
    let answer = wrapper.client.call(IMAGE, INPUT).await;
    assert_eq!(answer.code, Code::Internal);
    assert!(answer.message.contains(" with stderr 'one |   two ': "), "{}", answer.message);
}

#[tokio::test]
async fn exit_0_with_an_error_result_is_ok_and_unchanged() {
    let answer = evaluate("cat; echo 'results: [{severity: error, message: bad}]'; echo log >&2").await;
    let expected = format!("{INPUT}results: [{{severity: error, message: bad}}]\n");
    assert_eq!(answer.output(), expected.as_bytes());
    assert_eq!(answer.log(), "log\n");
}

#[tokio::test]
async fn exit_0_with_an_output_that_cannot_be_parsed_is_internal() {
    evaluate("echo prose; echo why >&2").await.fails(
        Code::Internal,
        "failed to parse the output of function \"example.com/functions/set-image:v1\" with stderr 'why\n': \
         the function's stdout must be a mapping, found a scalar at line 1, column 1",
    );
}

#[tokio::test]
async fn exit_0_with_an_empty_output_is_internal() {
    // Porch would take an empty answer for an empty package and remove every file.
    evaluate("echo why >&2").await.fails(
        Code::Internal,
        "failed to parse the output of function \"example.com/functions/set-image:v1\" with stderr 'why\n': \
         expected exactly one object, got 0: the function must write a ResourceList to stdout",
    );
}

#[tokio::test]
async fn another_exit_with_a_resource_list_is_internal_with_its_results() {
    let script = "cat; echo 'results: [{message: bad, severity: error, \
                  resourceRef: {apiVersion: v1, kind: Pod, namespace: ns, name: n}, field: {path: spec.x}}, \
                  {message: look, severity: info}]'; echo why >&2; exit 3";
    evaluate(script).await.fails(
        Code::Internal,
        "failed to evaluate function \"example.com/functions/set-image:v1\" with structured results: \
         [error] v1/Pod/ns/n spec.x: bad\n\n[info]: look and stderr: why\n",
    );
}

#[tokio::test]
async fn another_exit_or_a_signal_with_anything_else_is_the_parse_error() {
    for end in ["exit 1", "kill -KILL $$", "kill -SEGV $$"] {
        evaluate(&format!("echo why >&2; {end}")).await.fails(
            Code::Internal,
            "failed to parse the output of function \"example.com/functions/set-image:v1\" with stderr 'why\n': \
             expected exactly one object, got 0: the function must write a ResourceList to stdout",
        );
    }
}

#[tokio::test]
async fn a_function_that_cannot_be_started_is_internal() {
    let sandbox = Sandbox::new();
    let garbage = sandbox.script("garbage", "");
    // By a process that has ended: one that has a file open for writing, as a fork of this one may, keeps it from starting.
    let copied = sandbox.run("cp", [&sandbox.write("zeros", [0; 4]), &garbage], b"").await;
    assert!(copied.status.success());
    let garbage = garbage.to_str().unwrap();
    let not_a_program = format!("fork/exec {garbage}: exec format error");
    for (entrypoint, reason) in [
        ("no-such-function", "exec: \"no-such-function\": executable file not found in $PATH"),
        ("/nowhere/f", "exec: \"/nowhere/f\": stat /nowhere/f: no such file or directory"),
        (garbage, &*not_a_program),
    ] {
        let flags = ["wrapper-server", "--address=127.0.0.1", "--port=0", "--", entrypoint];
        let flags: Flags = porch_fn_flags::parse(flags.iter().map(Into::into)).unwrap();
        let app = wrapper_server::start(&flags).await.unwrap();
        Client::new(app.address()).call(IMAGE, INPUT).await.fails(
            Code::Internal,
            &format!("Failed to execute function \"example.com/functions/set-image:v1\": {reason} ()"),
        );
    }
}

#[tokio::test]
async fn an_output_past_the_limit_ends_the_function_at_once() {
    let wrapper = Wrapper::of(&["--max-request-body-size=100000"], &["sh", "-c", "yes; sleep 1000"]).await;
    wrapper.client.call(IMAGE, INPUT).await.fails(
        Code::ResourceExhausted,
        "grpc: trying to send message larger than max (100001 vs. 100000): the output of function \
         \"example.com/functions/set-image:v1\" is too long; raise --max-request-body-size of router, runner and \
         wrapper-server, and Porch's --max-request-body-size (--function-runner-grpc-max-message-size in v1.5), \
         to one value",
    );
    wrapper.sandbox.gone("").await;
}

#[tokio::test]
async fn a_request_past_the_limit_starts_nothing() {
    let wrapper =
        Wrapper::of(&["--max-request-body-size=1000"], &["sh", "-c", "touch $TMPDIR/ran; cat"]).await;
    let answer = wrapper.client.call(IMAGE, vec![b'#'; 1001]).await;
    assert_eq!(answer.code, Code::ResourceExhausted);
    assert!(answer.message.starts_with("grpc: received message larger than max ("), "{}", answer.message);
    assert!(!wrapper.sandbox.path("ran").exists());
}

#[tokio::test]
async fn a_deadline_ends_the_call_and_the_grandchild() {
    let wrapper = Wrapper::sh("sleep 4 & wait").await;
    let mut took = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        let answer = wrapper.client.call_within(IMAGE, INPUT, Duration::from_millis(500)).await;
        took.push(began.elapsed());
        answer.fails(Code::DeadlineExceeded, "context deadline exceeded");
        wrapper.sandbox.gone("").await;
    }
    took.sort();
    figure(&format!("a 0.5 s deadline with a `sleep 4` grandchild returns after {took:.3?}"));
    // Porch's own wrapper takes the 4 s of the grandchild.
    assert!(took[2] < Duration::from_millis(2500), "{took:?}");
}

#[tokio::test]
async fn a_background_child_that_holds_stdout_makes_the_answer_late() {
    let answer = evaluate("(sleep 0.3; echo late >&2) & cat").await;
    assert_eq!(answer.output(), INPUT.as_bytes());
    assert_eq!(answer.log(), "late\n");
}

#[tokio::test]
async fn a_background_child_that_does_not_is_killed_with_the_call() {
    let wrapper = Wrapper::sh("sleep 1000 >/dev/null 2>&1 & cat").await;
    assert_eq!(wrapper.client.call(IMAGE, INPUT).await.output(), INPUT.as_bytes());
    wrapper.sandbox.gone("").await;
}

#[tokio::test]
async fn ten_mib_of_stdin_may_be_ignored() {
    let script = format!("printf '{INPUT}'");
    let wrapper = Wrapper::of(&["--max-request-body-size=16777216"], &["sh", "-c", &script]).await;
    let answer = wrapper.client.call(IMAGE, vec![b'#'; 10 << 20]).await;
    assert_eq!(answer.output(), INPUT.as_bytes());
}

#[tokio::test]
async fn stderr_is_kept_at_both_ends() {
    let answer = evaluate("cat; echo first >&2; yes | head -c 1000000 >&2; echo last >&2").await;
    answer.output();
    let log = answer.log();
    assert!(
        log.starts_with("first\ny\n") && log.ends_with("y\nlast\n") && log.len() < 100_000,
        "{}",
        log.len()
    );
    assert!(log.contains("bytes of stderr left out"));
}

#[tokio::test]
async fn a_long_error_text_arrives_whole() {
    // Past the 16 KiB at which HTTP/2 libraries refuse headers by default, and in three bytes a character.
    let answer =
        evaluate("for i in $(seq 4000); do echo 'chybička: žluťoučký'; done | head -c 60000 >&2; exit 1")
            .await;
    assert_eq!(answer.code, Code::Internal);
    assert!(answer.message.contains("žluťoučký\nchybička"), "{}", answer.message);
    assert!(answer.message.len() > 60_000, "{}", answer.message.len());
}

#[tokio::test]
async fn a_cancelled_call_ends_its_process_group() {
    let wrapper = Wrapper::sh("sleep 1000 & touch $TMPDIR/started; wait").await;
    {
        let call = wrapper.client.call(IMAGE, INPUT);
        tokio::select! {
            answer = call => panic!("{answer:?}"),
            _ = wrapper.sandbox.appears("started") => {}
        }
    }
    wrapper.sandbox.gone("").await;
    // The same connection goes on.
    wrapper.client.call_within(IMAGE, INPUT, Duration::from_millis(50)).await;
}

#[tokio::test]
async fn calls_past_the_limit_are_refused_for_another_to_take() {
    let script = "touch $TMPDIR/$$.started; until [ -e $TMPDIR/go ]; do sleep 0.01; done; cat";
    let wrapper = Wrapper::of(&["--max-concurrent-calls=2"], &["sh", "-c", script]).await;
    let both_run = eventually("two calls run", async || {
        let files = std::fs::read_dir(wrapper.sandbox.directory()).unwrap();
        (files.count() == 2).then_some(())
    });
    let third = async {
        both_run.await;
        let third = wrapper.client.call(IMAGE, INPUT).await;
        wrapper.sandbox.write("go", "");
        third
    };
    let (first, second, third) =
        tokio::join!(wrapper.client.call(IMAGE, INPUT), wrapper.client.call(IMAGE, INPUT), third);
    assert_eq!((first.output(), second.output()), (&INPUT.into(), &INPUT.into()));
    assert_eq!(third.trailers.get("porch-fn-retry").unwrap(), "shed");
    third.fails(
        Code::ResourceExhausted,
        "2 calls already run in this function's pod: retry later, raise --max-parallel-pods-per-function, or raise \
         the wrapper-server's --max-concurrent-calls",
    );
    assert!(first.trailers.get("porch-fn-retry").is_none());
}

#[tokio::test]
async fn health_is_serving_and_knows_no_other_name() {
    let wrapper = Wrapper::sh("cat").await;
    assert_eq!(wrapper.client.health("").await.unwrap(), ServingStatus::Serving);
    assert_eq!(wrapper.client.health("nonsense").await.unwrap_err().code(), Code::NotFound);
}
