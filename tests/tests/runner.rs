//! The runner's exec runtime through its front door, and its flags.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use porch_fn_proto::evaluator::EvaluateFunctionRequest;
use porch_fn_runner::{App, Flags, Pods, start};
use porch_fn_tests::caller::{Caller, request};
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, eventually};
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;

const IMAGE: &str = "example.com/functions/set-image:v1";
const INPUT: &str = "kind: ResourceList\n";

/// A runner in this process with one exec function, which is this shell script and runs as [`IMAGE`] and as
/// `short:v2`. `$DIR` is the sandbox.
struct Runner {
    sandbox: Sandbox,
    app: App,
    client: Client,
}

impl Runner {
    async fn start(flags: &[&str], script: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.script("functions/f", &format!("DIR={}\n{script}", sandbox.directory().display()));
        let config = format!(
            "functions:\n- function: f\n  images: [{IMAGE}, 'short:v2']\n- function: gone\n  images: [gone:v1]\n"
        );
        let config = format!("--config={}", sandbox.write("config.yaml", config).display());
        let functions = format!("--functions={}", sandbox.path("functions").display());
        let own =
            ["porch-fn-runner", "--address=127.0.0.1", "--port=0", "--admin-port=0", &config, &functions];
        let (flags, set) =
            porch_fn_flags::parse_with_set::<Flags>([&own[..], flags].concat().iter().map(Into::into))
                .unwrap();
        let app = start(flags, &set, Pods::Flags).await.unwrap();
        let client = Client::new(app.address());
        Self { sandbox, app, client }
    }

    fn files_with(&self, part: &str) -> usize {
        let files = std::fs::read_dir(self.sandbox.directory()).unwrap();
        files.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().contains(part)).count()
    }
}

/// Leaves a file that says it runs, and answers once `go` is there.
const GATED: &str = "touch $DIR/$$.started; until [ -e $DIR/go ]; do sleep 0.01; done; cat";

#[tokio::test]
async fn an_answer_is_the_functions_output_whatever_it_is() {
    // As in the original, the exec runtime does not look at the output.
    let runner = Runner::start(&[], "cat; echo not a list; echo log >&2").await;
    let answer = runner.client.call(IMAGE, INPUT).await;
    assert_eq!(answer.output(), "kind: ResourceList\nnot a list\n");
    assert_eq!(answer.log(), "log\n");
}

#[tokio::test]
async fn a_short_name_and_its_full_form_are_one_function() {
    let runner = Runner::start(&[], "cat").await;
    for image in ["short:v2", "ghcr.io/kptdev/krm-functions-catalog/short:v2"] {
        assert_eq!(runner.client.call(image, INPUT).await.output(), INPUT);
    }
    let runner = Runner::start(&["--default-image-prefix=example.com/mine/"], "cat").await;
    assert_eq!(runner.client.call("example.com/mine/short:v2", INPUT).await.output(), INPUT);
}

#[tokio::test]
async fn failures_read_as_in_the_original() {
    for (script, exit) in [
        ("echo 'boom: ž' >&2; exit 3", "exit status 3 (boom: ž\n)"),
        ("cat; echo half >&2; exit 1", "exit status 1 (half\n)"),
        ("kill -KILL $$", "signal: killed ()"),
        (
            "cat; echo 'results: [{message: bad, severity: error}]'; exit 1",
            "exit status 1 () with structured results: [error]: bad",
        ),
        ("exit 0", "it wrote nothing to standard output ()"),
    ] {
        let runner = Runner::start(&[], script).await;
        let expected = format!("Failed to execute function \"{IMAGE}\": {exit}");
        runner.client.call(IMAGE, INPUT).await.fails(Code::Internal, &expected);
    }
}

#[tokio::test]
async fn a_missing_executable_fails_its_own_calls_only() {
    let runner = Runner::start(&[], "cat").await;
    let path = runner.sandbox.path("functions/gone");
    let path = path.display();
    let expected = format!(
        "Failed to execute function \"gone:v1\": exec: \"{path}\": stat {path}: no such file or directory ()"
    );
    runner.client.call("gone:v1", INPUT).await.fails(Code::Internal, &expected);
    runner.client.call(IMAGE, INPUT).await.output();
}

#[tokio::test]
async fn what_no_runtime_has_is_not_found() {
    let runner = Runner::start(&[], "cat").await;
    for image in ["other:v1", "set-image:v1", "Not An Image", "short"] {
        let expected = format!("function \"{image}\" not found");
        runner.client.call(image, INPUT).await.fails(Code::NotFound, &expected);
    }
    let text = "the request names no function image";
    runner.client.call("", INPUT).await.fails(Code::InvalidArgument, text);
}

#[tokio::test]
async fn the_tag_field_decides_beside_a_tag_and_no_path_is_followed() {
    let runner = Runner::start(&[], "cat").await;
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
        // An executable that is there and would answer.
        let exec_path = "/bin/cat".to_owned();
        let call = EvaluateFunctionRequest { tag: tag.to_owned(), exec_path, ..request(image, INPUT) };
        let answer = caller.send(tonic::Request::new(call)).await;
        let code = answer.map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(code, expected, "{image} {tag}");
    }
}

#[tokio::test]
async fn disabled_runtimes_have_no_functions() {
    for disabled in ["exec", "exec,pod"] {
        let runner = Runner::start(&[&format!("--disable-runtimes={disabled}")], "cat").await;
        let expected = format!("function \"{IMAGE}\" not found");
        runner.client.call(IMAGE, INPUT).await.fails(Code::NotFound, &expected);
        assert_eq!(runner.client.health("").await.unwrap(), ServingStatus::Serving);
    }
}

#[tokio::test]
async fn what_is_not_allowed_is_not_run() {
    let flags = ["--allowed-images=example.com/**:v1, other:v2", "--allowed-images=quay.io/*"];
    let runner = Runner::start(&flags, "touch $DIR/$$.started; cat").await;
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT);
    runner.client.call("quay.io/f", INPUT).await.fails(Code::NotFound, "function \"quay.io/f\" not found");
    let full = "ghcr.io/kptdev/krm-functions-catalog/short:v2";
    for image in ["short:v2", full] {
        let expected = format!(
            "image \"{full}\" is not allowed: no pattern of the function runner's --allowed-images fits it"
        );
        runner.client.call(image, INPUT).await.fails(Code::PermissionDenied, &expected);
    }
    let answer = runner.client.call("Not An Image", INPUT).await;
    assert_eq!(answer.code, Code::PermissionDenied, "{answer:?}");
    assert_eq!(runner.files_with(".started"), 1);
}

#[tokio::test]
async fn an_output_past_the_limit_ends_the_function_at_once() {
    let runner = Runner::start(&["--max-request-body-size=100000"], "yes; sleep 1000").await;
    let answer = runner.client.call(IMAGE, INPUT).await;
    assert_eq!(answer.code, Code::ResourceExhausted);
    let text = "grpc: trying to send message larger than max (100001 vs. 100000)";
    assert!(
        answer.message.starts_with(text) && answer.message.contains("--max-request-body-size"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn an_answer_is_never_longer_than_the_limit() {
    let runner = Runner::start(&["--max-request-body-size=100000"], "yes | head -c 99998").await;
    // These bytes would fit alone, but not in a message.
    let answer = runner.client.call(IMAGE, INPUT).await;
    assert_eq!(answer.code, Code::ResourceExhausted, "{answer:?}");
    let runner =
        Runner::start(&["--max-request-body-size=100000"], "yes | head -c 99990; echo log >&2").await;
    let answer = runner.client.call(IMAGE, INPUT).await;
    assert_eq!((answer.output().len(), answer.log().len()), (99_990, 0));
}

#[tokio::test]
async fn a_deadline_ends_the_function() {
    let runner = Runner::start(&[], "echo $$ >$DIR/pid; exec sleep 1000").await;
    let pid = || std::fs::read_to_string(runner.sandbox.path("pid")).unwrap_or_default();
    // On a busy machine, the first may end before the function has begun.
    for millis in [300, 1000, 3000, 10_000] {
        let answer = runner.client.call_within(IMAGE, INPUT, Duration::from_millis(millis)).await;
        answer.fails(Code::DeadlineExceeded, "context deadline exceeded");
        if !pid().is_empty() {
            break;
        }
    }
    assert_ne!(pid(), "");
    let process = format!("/proc/{}", pid().trim());
    eventually("the function is gone", async || (!std::path::Path::new(&process).exists()).then_some(()))
        .await;
}

#[tokio::test]
async fn no_more_run_at_once_than_allowed_and_those_that_wait_keep_their_deadlines() {
    let runner = Runner::start(&["--max-parallel-executions=2"], GATED).await;
    let third = async {
        eventually("two run", async || (runner.files_with(".started") == 2).then_some(())).await;
        let third = runner.client.call_within(IMAGE, INPUT, Duration::from_millis(300)).await;
        assert_eq!(runner.files_with(".started"), 2, "the third never began");
        runner.sandbox.write("go", "");
        third
    };
    let (first, second, third) =
        tokio::join!(runner.client.call(IMAGE, INPUT), runner.client.call(IMAGE, INPUT), third);
    assert_eq!((&first.output()[..], &second.output()[..]), (INPUT.as_bytes(), INPUT.as_bytes()));
    third.fails(Code::DeadlineExceeded, "context deadline exceeded");
    // Its place in the queue is given back.
    assert_eq!(runner.client.call(IMAGE, INPUT).await.output(), INPUT);
}

#[tokio::test]
async fn a_full_queue_refuses_for_another_to_take() {
    let flags = ["--max-parallel-executions=1", "--max-queue-per-function=100"];
    let runner = Runner::start(&flags, GATED).await;
    // One runs, a hundred wait, one is too many: the only one to be answered.
    let mut calls: FuturesUnordered<_> = (0..102).map(|_| runner.client.call(IMAGE, INPUT)).collect();
    let refused = calls.next().await.unwrap();
    assert_eq!(refused.trailers.get("porch-fn-retry").unwrap(), "shed");
    refused.fails(
        Code::ResourceExhausted,
        "100 calls of this function already wait for the exec runtime, which runs 1 at once: retry later, or raise \
         --max-queue-per-function or --max-parallel-executions",
    );
}

/// A flag of the original's documentation: name, default, another value, how it reads.
type Documented = (&'static str, &'static str, &'static str, fn(&Flags) -> String);

const DOCUMENTED: [Documented; 24] = [
    ("port", "9445", "1", |flags| flags.port.to_string()),
    ("disable-runtimes", "", "exec,pod", |flags| flags.disable_runtimes.to_string()),
    ("log-level", "2", "5", |flags| flags.log_level.to_string()),
    ("functions", "./functions", "/f", |flags| flags.functions.display().to_string()),
    ("config", "./config.yaml", "/c", |flags| flags.config.display().to_string()),
    ("pod-cache-config", "/pod-cache-config/pod-cache-config.yaml", "/p", |flags| {
        flags.pod_cache_config.display().to_string()
    }),
    ("warm-up-pod-cache", "true", "false", |flags| flags.warm_up_pod_cache.to_string()),
    ("pod-namespace", "porch-fn-system", "n", |flags| flags.pod_namespace.clone()),
    ("pod-ttl", "30m0s", "1h30m0s", |flags| flags.pod_ttl.to_string()),
    ("scan-interval", "1m0s", "500ms", |flags| flags.scan_interval.to_string()),
    ("function-pod-template", "", "t", |flags| flags.function_pod_template.clone()),
    ("max-request-body-size", "6291456", "7", |flags| flags.max_request_body_size.to_string()),
    ("max-waitlist-length", "2", "7", |flags| flags.max_waitlist_length.to_string()),
    // Newer than the documentation.
    ("max-grpc-retries", "2", "7", |flags| flags.max_grpc_retries.to_string()),
    ("base-pod-template-name", "base-pod-template", "t", |flags| flags.base_pod_template_name.clone()),
    ("base-service-template-name", "base-service-template", "t", |flags| {
        flags.base_service_template_name.clone()
    }),
    ("skip-template-creation", "false", "true", |flags| flags.skip_template_creation.to_string()),
    ("template-wait-timeout", "0s", "1m30s", |flags| flags.template_wait_timeout.to_string()),
    ("max-parallel-pods-per-function", "1", "7", |flags| flags.max_parallel_pods_per_function.to_string()),
    ("enable-private-registries", "false", "true", |flags| flags.enable_private_registries.to_string()),
    ("registry-auth-secret-path", "/var/tmp/config-secret/.dockerconfigjson", "/s", |flags| {
        flags.registry_auth_secret_path.display().to_string()
    }),
    ("registry-auth-secret-name", "auth-secret", "s", |flags| flags.registry_auth_secret_name.clone()),
    ("enable-private-registries-tls", "false", "true", |flags| {
        flags.enable_private_registries_tls.to_string()
    }),
    ("tls-secret-path", "/var/tmp/tls-secret/", "/t", |flags| flags.tls_secret_path.display().to_string()),
];

fn parse(args: &[&str]) -> Result<Flags, porch_fn_flags::FlagError> {
    porch_fn_flags::parse(std::iter::once(&"porch-fn-runner").chain(args).map(Into::into))
}

#[test]
fn every_documented_flag_has_its_default_and_gos_spellings() {
    let defaults = parse(&[]).unwrap();
    for (name, default, other, read) in DOCUMENTED {
        assert_eq!(read(&defaults), default, "--{name}");
        for joined in [format!("--{name}={other}"), format!("-{name}={other}")] {
            assert_eq!(read(&parse(&[&joined]).unwrap()), other, "{joined}");
        }
        for bare in [format!("--{name}"), format!("-{name}")] {
            if ["true", "false"].contains(&default) {
                assert_eq!(read(&parse(&[&bare]).unwrap()), "true", "{bare}");
            } else {
                assert_eq!(read(&parse(&[&bare, other]).unwrap()), other, "{bare} {other}");
            }
        }
    }
}

#[test]
fn unknown_and_malformed_flags_are_one_line() {
    for (args, expected) in [
        (
            &["--pod-tll=1m"][..],
            "porch-fn-runner: unexpected argument '--pod-tll' found; tip: a similar argument exists: '--pod-ttl'",
        ),
        (&["--nonsense"], "porch-fn-runner: unexpected argument '--nonsense' found"),
        (
            &["--pod-backend=docker"],
            "porch-fn-runner: invalid value 'docker' for '--pod-backend <BACKEND>' [possible values: auto, none, local, \
             kubernetes]",
        ),
    ] {
        let error = parse(args).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.exit_code()), (expected, 64));
    }
    let error = parse(&["--pod-ttl=soon"]).unwrap_err().to_string();
    assert!(
        error.starts_with("porch-fn-runner: invalid value 'soon' for '--pod-ttl ")
            && error.contains("30m")
            && !error.contains('\n'),
        "{error}"
    );
}

/// The error and exit code of a runner that cannot start with these flags.
async fn refused(args: &[&str]) -> String {
    let own = ["porch-fn-runner", "--address=127.0.0.1", "--port=0", "--admin-port=0"];
    let (flags, set) =
        porch_fn_flags::parse_with_set::<Flags>([&own[..], args].concat().iter().map(Into::into)).unwrap();
    start(flags, &set, Pods::Flags).await.unwrap_err().to_string()
}

#[tokio::test]
async fn flags_that_do_not_go_together_say_what_is_missing() {
    let kubernetes = ["--pod-backend=kubernetes", "--wrapper-server-image=w:v1"];
    let error = refused(&kubernetes[..1]).await;
    assert!(error.contains("WRAPPER_SERVER_IMAGE") && error.contains("--function-pod-template"), "{error}");
    let error = refused(&[&kubernetes[..], &["--kubeconfig=/no/such/file"]].concat()).await;
    assert!(error.contains(": --kubeconfig /no/such/file: "), "{error}");
    let error = refused(&[&kubernetes[..], &["--cluster-domain=not a name"]].concat()).await;
    assert!(error.starts_with("--cluster-domain \"not a name\""), "{error}");
    let error = refused(&[&kubernetes[..], &["--peers=runners:9445", "--shard-address="]].concat()).await;
    assert!(error.starts_with("--peers needs --shard-address"), "{error}");
    let error = refused(&[&kubernetes[..], &["--peers=nats://x", "--shard-address=10.0.0.1"]].concat()).await;
    assert!(error.starts_with("--peers: ") && error.contains("nats"), "{error}");
    for patterns in ["", "f,", ","] {
        let error = refused(&[&format!("--allowed-images={patterns}")]).await;
        assert_eq!(error, "--allowed-images: an empty pattern: leave the flag out to allow every image");
    }
    let error = refused(&["--allowed-images=f", "--allowed-images=http://ghcr.io/f"]).await;
    assert!(error.starts_with("--allowed-images: \"http://ghcr.io/f\" is no pattern"), "{error}");
    let error = refused(&["--max-inflight-bytes=12000000"]).await;
    let expected = "--max-inflight-bytes 12000000 has no room for two messages of --max-request-body-size 6291456: 12615680 \
                    is the least";
    assert_eq!(error, expected);
    let error = refused(&[&kubernetes[..], &["--image-metadata=/no/such/file"]].concat()).await;
    assert!(error.starts_with("--image-metadata /no/such/file: "), "{error}");
}
