//! Third-party clients call through router, runner and local pods: grpc-go with the options of
//! Porch, and grpcio, which uses gRPC's C core. The runner also calls a wrapper that is a grpc-go
//! server, like Porch's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use porch_fn_tests::client::Client;
use porch_fn_tests::foreign::{self, Report};
use porch_fn_tests::process::{Sandbox, Server, figure};
use tonic::Code;

const INPUT: &str = "# žluťoučký kůň\nkind: ResourceList\nitems: []\n";

struct Stack {
    sandbox: Sandbox,
    router: Server,
    _runner: Server,
}

impl Stack {
    async fn start() -> Self {
        let sandbox = Sandbox::new();
        let functions = [
            ("cat", "exec cat"),
            ("log", "echo 'příliš' >&2; exec cat"),
            ("fail", "printf 'první řádka: 50 %%\\ndruhá \"řádka\"\\n' >&2; exit 1"),
            ("fail-8k", "echo first >&2; yes 'žluťoučký' | head -c 8162 >&2; echo last >&2; exit 1"),
            ("fail-100k", "echo first >&2; yes 'žluťoučký' | head -c 102298 >&2; echo last >&2; exit 1"),
            ("sleep", "sleep 30 & wait"),
            ("big", "printf 'kind: ResourceList\\n#'; head -c 7340032 /dev/zero | tr '\\0' '#'"),
        ];
        let images = functions.map(|(name, _)| format!("ex.io/{name}:v1"));
        let functions: Vec<_> =
            images.iter().zip(functions).map(|(image, (_, script))| (image.as_str(), script)).collect();
        let runner = sandbox.runner(sandbox.local_pods(&functions)).await;
        let router = sandbox.router(&[&runner], &[]).await;
        sandbox.write("in.yaml", INPUT);
        Self { sandbox, router, _runner: runner }
    }

    /// Calls the function, with additional flags of the client. Without `--n` it makes one call.
    async fn call(&self, client: &PathBuf, function: &str, more: &[&str]) -> Report {
        let address = self.router.address().to_string();
        let image = format!("ex.io/{function}:v1");
        let args = ["--addr", &address, "--image", &image, "--in", "in.yaml", "--out", "out.yaml"];
        Report::of(&self.sandbox, client, &[&args, more].concat()).await
    }

    fn output(&self) -> Vec<u8> {
        std::fs::read(self.sandbox.path("out.yaml")).unwrap()
    }

    /// The error text that our own client gets.
    async fn error_of_our_client(&self, function: &str) -> String {
        let answer = Client::new(self.router.address()).call(&format!("ex.io/{function}:v1"), INPUT).await;
        assert_eq!(answer.code, Code::Internal);
        answer.message
    }
}

/// The two clients. The second needs flags to accept long error texts.
fn clients() -> [(PathBuf, &'static [&'static str]); 2] {
    [(foreign::client("grpcgo"), &[]), (foreign::client("grpcpy"), &["--max-metadata", "1048576"])]
}

fn name(client: &Path) -> std::path::Display<'_> {
    Path::new(client.file_name().unwrap_or_default()).display()
}

#[tokio::test]
#[ignore = "needs the built binaries and tests/clients; tests/run runs it"]
async fn answers_logs_and_error_texts_arrive() {
    let stack = Stack::start().await;
    let expected = "unable to evaluate ex.io/fail:v1 with pod evaluator: rpc error: code = Internal desc = failed to \
                    parse the output of function \"ex.io/fail:v1\" with stderr 'první řádka: 50 %\ndruhá \"řádka\"\n': \
                    expected exactly one object, got 0: the function must write a ResourceList to stdout (exit status 1)";
    for (client, _) in clients() {
        for compression in [&[][..], &["--gzip"]] {
            let report = stack.call(&client, "log", compression).await;
            report.assert_succeeded(1);
            assert_eq!(report.log(), "příliš\n");
            assert_eq!(stack.output(), INPUT.as_bytes());
        }
        let report = stack.call(&client, "fail", &[]).await;
        assert_eq!((report.code(), report.message()), ("INTERNAL", expected));

        let report = stack.call(&client, "cat", &["--n", "200", "--c", "200"]).await;
        report.assert_succeeded(200);
        assert!(report.connections().is_none_or(|connections| connections == 1), "{report:?}");
        figure(&format!("{}: 200 calls at once take {:.3?}", name(&client), report.elapsed()));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries and tests/clients; tests/run runs it"]
async fn a_long_error_text_arrives_whole_or_cut_in_the_middle() {
    let stack = Stack::start().await;
    for (client, long_texts) in clients() {
        for (function, cut) in [("fail-8k", false), ("fail-100k", true)] {
            let report = stack.call(&client, function, long_texts).await;
            let text = report.message();
            figure(&format!("{}: {function} gives {} bytes of text", name(&client), text.len()));
            assert_eq!(report.code(), "INTERNAL", "{text}");
            assert_eq!(text, stack.error_of_our_client(function).await);
            assert!(text.contains("stderr 'first\nžluťoučký\n") && text.contains("\nlast\n': "), "{text}");
            assert_eq!(text.contains("bytes of stderr left out"), cut);
            assert!(!text.contains('\u{fffd}'), "a letter was cut in two");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries and tests/clients; tests/run runs it"]
async fn an_expired_deadline_ends_the_call_and_the_function() {
    let stack = Stack::start().await;
    for (client, _) in clients() {
        let report = stack.call(&client, "sleep", &["--timeout", "500ms"]).await;
        assert_eq!(report.code(), "DEADLINE_EXCEEDED", "{}", report.message());
        figure(&format!(
            "{}: a call with a deadline of 500 ms returns after {:.3?}",
            name(&client),
            report.elapsed()
        ));
        assert!(report.elapsed() < Duration::from_secs(15), "{:?}", report.elapsed());
        stack.sandbox.wait_no_process("sleep 30").await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries and tests/clients; tests/run runs it"]
async fn five_mib_are_accepted_and_seven_refused_with_the_flags_to_raise() {
    let stack = Stack::start().await;
    let list_of = |mib: usize| {
        let mut list = b"kind: ResourceList\n".to_vec();
        while list.len() < mib << 20 {
            list.extend_from_slice(b"# a line of a comment that is long enough to be one\n");
        }
        list
    };
    for (client, _) in clients() {
        for compression in [&[][..], &["--gzip"]] {
            let more = [compression, &["--max-message", "16777216"]].concat();
            stack.sandbox.write("in.yaml", list_of(5));
            stack.call(&client, "cat", &more).await.assert_succeeded(1);
            assert!(stack.output() == list_of(5));
            stack.sandbox.write("in.yaml", list_of(7));
            let report = stack.call(&client, "cat", &more).await;
            assert_eq!(report.code(), "RESOURCE_EXHAUSTED", "{}", report.message());
            let text = report.message();
            assert!(text.starts_with("grpc: received message larger than max ("), "{text}");
            assert!(text.contains("--max-request-body-size on router and runners"), "{text}");
            assert!(text.contains("--function-runner-grpc-max-message-size"), "{text}");
        }
        // An answer that is too large is refused as well.
        stack.sandbox.write("in.yaml", INPUT);
        let report = stack.call(&client, "big", &["--max-message", "16777216"]).await;
        let text = report.message();
        assert_eq!(report.code(), "RESOURCE_EXHAUSTED", "{text}");
        assert!(
            text.contains("grpc: trying to send message larger than max (")
                && text.contains("--max-request-body-size"),
            "{text}"
        );
    }
}

#[tokio::test]
#[ignore = "needs the built binaries and tests/clients; tests/run runs it"]
async fn the_runner_can_call_a_grpc_go_wrapper() {
    let sandbox = Sandbox::new();
    let images = [
        "echo:v1",
        "error:INTERNAL",
        "error:NOT_FOUND",
        "error:RESOURCE_EXHAUSTED",
        "sleep:30s",
        "big:7000000",
    ];
    let programs = images.map(|image| (image, "ignored".into()));
    let mut flags = sandbox.local_programs(&foreign::client("echoserver"), programs);
    flags.push("--drain-delay=0s".into());
    let mut runner = sandbox.runner(flags).await;
    let client = Client::new(runner.address());

    let answer = client.call("echo:v1", INPUT).await;
    assert_eq!(answer.output(), INPUT.as_bytes());
    assert_eq!(answer.log(), "image \"echo:v1\" tag \"\" exec_path \"\"\n");
    let five_mib = vec![b'#'; 5 << 20];
    assert!(client.call("echo:v1", five_mib.clone()).await.output()[..] == five_mib);

    let long = "žluťoučký\n".repeat(7000);
    for (code, go) in [
        (Code::Internal, "Internal"),
        // NOT_FOUND from a pod is the function's own answer, so no other runtime is tried.
        (Code::NotFound, "NotFound"),
        (Code::ResourceExhausted, "ResourceExhausted"),
    ] {
        let image = format!("error:{}", porch_fn_grpc::code_name(code));
        for text in ["two\nlines: ž", &long] {
            let expected = format!(
                "unable to evaluate {image} with pod evaluator: rpc error: code = {go} desc = {text}"
            );
            client.call(&image, text.to_owned()).await.assert_failed(code, &expected);
        }
    }

    let answer = client.call_within("sleep:30s", INPUT, Duration::from_millis(500)).await;
    assert_eq!(answer.code, Code::DeadlineExceeded, "{answer:?}");
    let answer = client.call("big:7000000", INPUT).await;
    assert_eq!(answer.code, Code::ResourceExhausted);
    assert!(
        answer.message.contains("grpc: trying to send message larger than max (7000"),
        "{}",
        answer.message
    );

    assert_eq!(runner.terminate().await.code(), Some(0));
    assert_eq!(sandbox.descendants_with("--exit-with-stdin"), []);
}
