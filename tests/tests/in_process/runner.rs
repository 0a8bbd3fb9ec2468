//! The runner's exec runtime, called by gRPC, and the runner's flags.

use std::iter::once;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use porch_fn_proto::evaluator::EvaluateFunctionRequest;
use porch_fn_runner::{Flags, start};
use porch_fn_tests::caller::{Caller, request};
use porch_fn_tests::process::eventually;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;

use super::Runner;

const IMAGE: &str = "example.com/functions/set-image:v1";
const INPUT: &str = "kind: ResourceList\n";
/// Creates a file when it starts, and answers once `go` exists.
const GATED: &str = "touch $TMPDIR/$$.started; until [ -e $TMPDIR/go ]; do sleep 0.01; done; cat";

/// A runner with one executable: this script, for the images [`IMAGE`] and `short:v2`.
async fn runner(flags: &[&str], script: &str) -> Runner {
    Runner::start(&[(&format!("{IMAGE},short:v2"), script)], flags).await
}

#[tokio::test]
async fn a_short_name_and_the_full_name_are_the_same_function() {
    let catalog = "ghcr.io/kptdev/krm-functions-catalog/short:v2";
    let mine = "example.com/mine/short:v2";
    for (flags, image) in
        [(&[][..], "short:v2"), (&[], catalog), (&["--default-image-prefix=example.com/mine/"], mine)]
    {
        assert_eq!(runner(flags, "cat").await.client.call(image, INPUT).await.output(), INPUT, "{image}");
    }
}

#[tokio::test]
async fn an_image_without_a_function_is_not_found() {
    let not_found = |image: &str| format!("function \"{image}\" not found");
    let some = runner(&[], "cat").await;
    for image in ["other:v1", "set-image:v1", "Not An Image", "short"] {
        some.client.call(image, INPUT).await.assert_failed(Code::NotFound, &not_found(image));
    }
    let text = "the request names no function image";
    some.client.call("", INPUT).await.assert_failed(Code::InvalidArgument, text);
    for disabled in ["exec", "exec,pod"] {
        let none = runner(&[&format!("--disable-runtimes={disabled}")], "cat").await;
        none.client.call(IMAGE, INPUT).await.assert_failed(Code::NotFound, &not_found(IMAGE));
        assert_eq!(none.client.health("").await.unwrap(), ServingStatus::Serving);
    }
}

#[tokio::test]
async fn the_tag_field_overrides_the_images_tag_and_exec_path_is_ignored() {
    let runner = runner(&[], "cat").await;
    let caller = Caller::connect(runner.app.address()).await;
    for (image, tag, expected) in [
        (IMAGE, "", Code::Ok),
        (IMAGE, "~1.0", Code::Ok),
        (IMAGE, "v1", Code::Ok),
        ("example.com/functions/set-image:v0.9", "v1", Code::Ok),
        (IMAGE, "~2.0", Code::NotFound),
        (IMAGE, "v2", Code::NotFound),
        ("example.com/functions/set-image:v2", "", Code::NotFound),
    ] {
        // This executable exists and would answer if the runner used it.
        let exec_path = "/bin/cat".to_owned();
        let call = EvaluateFunctionRequest { tag: tag.to_owned(), exec_path, ..request(image, INPUT) };
        let answer = caller.send(call).await;
        let code = answer.map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(code, expected, "{image} {tag}");
    }
}

#[tokio::test]
async fn a_forbidden_image_does_not_run() {
    let flags = ["--allowed-images=example.com/**:v1, other:v2", "--allowed-images=quay.io/*"];
    let runner = runner(&flags, "touch $TMPDIR/$$.started; cat").await;
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT);
    runner
        .client
        .call("quay.io/f", INPUT)
        .await
        .assert_failed(Code::NotFound, "function \"quay.io/f\" not found");
    let full = "ghcr.io/kptdev/krm-functions-catalog/short:v2";
    for image in ["short:v2", full, "Not An Image"] {
        let answer = runner.client.call(image, INPUT).await;
        assert_eq!(answer.code, Code::PermissionDenied, "{answer:?}");
    }
    assert_eq!(runner.sandbox.files_with(".started"), 1);
}

#[tokio::test]
async fn an_answer_is_never_longer_than_the_limit() {
    let limit = ["--max-request-body-size=100000"];
    // The output of the second script is within the limit, but the message that contains it is not.
    for script in ["yes; sleep 1000", "yes | head -c 99998"] {
        let answer = runner(&limit, script).await.client.call(IMAGE, INPUT).await;
        assert_eq!(answer.code, Code::ResourceExhausted, "{script}: {answer:?}");
        let text = "grpc: trying to send message larger than max (100001 vs. 100000)";
        assert!(script.contains("head") || answer.message.starts_with(text), "{answer:?}");
        assert!(answer.message.contains("--max-request-body-size"), "{answer:?}");
    }
    let answer = runner(&limit, "yes | head -c 99990; echo log >&2").await.client.call(IMAGE, INPUT).await;
    assert_eq!((answer.output().len(), answer.log().len()), (99_990, 0));
}

#[tokio::test]
async fn a_deadline_ends_the_function() {
    let runner = runner(&[], "echo $$ >$TMPDIR/pid; exec sleep 1000").await;
    // The deadline is longer than a function needs to start on a busy machine.
    let answer = runner.client.call_within(IMAGE, INPUT, Duration::from_secs(4)).await;
    answer.assert_failed(Code::DeadlineExceeded, "context deadline exceeded");
    let process = format!("/proc/{}", runner.sandbox.wait_file("pid").await.trim());
    eventually("the function has ended", async || (!Path::new(&process).exists()).then_some(())).await;
}

#[tokio::test]
async fn queued_calls_keep_their_deadlines() {
    let runner = runner(&["--max-parallel-executions=2"], GATED).await;
    let third = async {
        runner.sandbox.wait_files(".started", 2).await;
        let third = runner.client.call_within(IMAGE, INPUT, Duration::from_millis(300)).await;
        assert_eq!(runner.sandbox.files_with(".started"), 2, "the third call did not start");
        runner.sandbox.write("go", "");
        third
    };
    let (first, second, third) =
        tokio::join!(runner.client.call(IMAGE, INPUT), runner.client.call(IMAGE, INPUT), third);
    assert_eq!((&first.output()[..], &second.output()[..]), (INPUT.as_bytes(), INPUT.as_bytes()));
    third.assert_failed(Code::DeadlineExceeded, "context deadline exceeded");
    // The failed call's place in the queue is free again.
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT);
}

#[tokio::test]
async fn a_call_is_shed_when_the_queue_is_full() {
    let runner = runner(&["--max-parallel-executions=1", "--max-queue-per-function=100"], GATED).await;
    // One call runs, a hundred wait, and the runner refuses one. Only the refused call is answered.
    let mut calls: FuturesUnordered<_> = (0..102).map(|_| runner.client.call(IMAGE, INPUT)).collect();
    let refused = calls.next().await.unwrap();
    assert_eq!(refused.trailers.get("porch-fn-retry").unwrap(), "shed");
    refused.assert_failed(
        Code::ResourceExhausted,
        "100 calls of this function already wait for the exec runtime, which runs 1 at once: retry later, or raise \
         --max-queue-per-function or --max-parallel-executions",
    );
}

/// The flags in the documentation of Porch's own runner: name, default, another value.
const DOCUMENTED: [(&str, &str, &str); 24] = [
    ("port", "9445", "1"),
    ("disable-runtimes", "", "exec,pod"),
    ("log-level", "2", "5"),
    ("functions", "./functions", "/f"),
    ("config", "./config.yaml", "/c"),
    ("pod-cache-config", "/pod-cache-config/pod-cache-config.yaml", "/p"),
    ("warm-up-pod-cache", "true", "false"),
    ("pod-namespace", "porch-fn-system", "n"),
    ("pod-ttl", "30m0s", "1h30m0s"),
    ("scan-interval", "1m0s", "500ms"),
    ("function-pod-template", "", "t"),
    ("max-request-body-size", "6291456", "7"),
    ("max-waitlist-length", "2", "7"),
    // The following flags are newer than the documentation.
    ("max-grpc-retries", "2", "7"),
    ("base-pod-template-name", "base-pod-template", "t"),
    ("base-service-template-name", "base-service-template", "t"),
    ("skip-template-creation", "false", "true"),
    ("template-wait-timeout", "0s", "1m30s"),
    ("max-parallel-pods-per-function", "1", "7"),
    ("enable-private-registries", "false", "true"),
    ("registry-auth-secret-path", "/var/tmp/config-secret/.dockerconfigjson", "/s"),
    ("registry-auth-secret-name", "auth-secret", "s"),
    ("enable-private-registries-tls", "false", "true"),
    ("tls-secret-path", "/var/tmp/tls-secret/", "/t"),
];

#[test]
fn every_documented_flag_has_its_default_and_accepts_gos_spellings() {
    let parsed = |args: &[&str]| {
        let args = once(&"porch-fn-runner").chain(args).map(Into::into);
        format!("{:?}", porch_fn_flags::parse::<Flags>(args).unwrap())
    };
    let defaults = parsed(&[]);
    for (name, default, other) in DOCUMENTED {
        let is_default = |args: &[&str]| parsed(args) == defaults;
        assert!(is_default(&[&format!("--{name}={default}")]), "the default of --{name}");
        let changed = parsed(&[&format!("--{name}={other}")]);
        assert_ne!(changed, defaults, "--{name}={other}");
        assert_eq!(parsed(&[&format!("-{name}={other}")]), changed, "-{name}={other}");
        for bare in [format!("--{name}"), format!("-{name}")] {
            match default {
                "true" => assert!(is_default(&[&bare]), "{bare}"),
                "false" => assert_eq!(parsed(&[&bare]), changed, "{bare}"),
                _ => assert_eq!(parsed(&[&bare, other]), changed, "{bare} {other}"),
            }
        }
    }
}

#[tokio::test]
async fn invalid_combinations_of_flags_are_refused() {
    let own = ["porch-fn-runner", "--address=127.0.0.1", "--port=0", "--admin-port=0"];
    let kubernetes = ["--pod-backend=kubernetes", "--wrapper-server-image=w:v1"];
    let empty = "--allowed-images: an empty pattern: leave the flag out to allow every image";
    let little = "--max-inflight-bytes 12000000 has no room for two messages of --max-request-body-size 6291456: set at \
                  least 12615680";
    for (in_kubernetes, flags, expected) in [
        (false, &["--pod-backend=kubernetes"][..], "WRAPPER_SERVER_IMAGE"),
        (false, &["--pod-backend=kubernetes"], "--function-pod-template"),
        (true, &["--kubeconfig=/no/such/file"], ": --kubeconfig /no/such/file: "),
        (true, &["--cluster-domain=not a name"], "--cluster-domain \"not a name\""),
        (true, &["--peers=runners:9445", "--shard-address="], "--peers needs --shard-address"),
        (true, &["--peers=nats://x", "--shard-address=10.0.0.1"], "--peers: "),
        (true, &["--peers=nats://x", "--shard-address=10.0.0.1"], "nats"),
        (true, &["--image-metadata=/no/such/file"], "--image-metadata /no/such/file: "),
        (
            false,
            &["--peers=kubernetes:///porch-system/runners:9445", "--shard-address=10.0.0.1"],
            "kubernetes:///porch-system/runners:9445",
        ),
        (false, &["--allowed-images="], empty),
        (false, &["--allowed-images=f,"], empty),
        (false, &["--allowed-images=,"], empty),
        (
            false,
            &["--allowed-images=f", "--allowed-images=http://ghcr.io/f"],
            "--allowed-images: \"http://ghcr.io/f\" is not a pattern",
        ),
        (false, &["--max-inflight-bytes=12000000"], little),
    ] {
        let kubernetes = kubernetes.iter().filter(|_| in_kubernetes);
        let args = own.iter().chain(kubernetes).chain(flags).map(Into::into);
        let (flags, set) = porch_fn_flags::parse_with_set::<Flags>(args).unwrap();
        let error = start(flags, &set, None).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}: {expected}");
    }
}
