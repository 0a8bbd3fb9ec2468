//! The wrapper-server by gRPC. runner/wrapper-server tests the codes and texts of a function that
//! fails or cannot be started, with real processes. These tests check what the server adds.

use porch_fn_tests::client::{Answer, Client};
use porch_fn_tests::process::Sandbox;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use wrapper_server::{App, Flags, start};

const IMAGE: &str = "example.com/functions/set-image:v1";
const INPUT: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n";

/// A wrapper-server in this process, whose functions carry the sandbox's mark.
struct Wrapper {
    sandbox: Sandbox,
    _app: App,
    client: Client,
}

impl Wrapper {
    async fn of(extra: &[&str], entrypoint: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let mark = format!("TMPDIR={}", sandbox.directory().display());
        let (app, client) = serve(&[extra, &["--", "env", &mark], entrypoint].concat()).await;
        Self { sandbox, _app: app, client }
    }

    async fn sh(extra: &[&str], script: &str) -> Self {
        Self::of(extra, &["sh", "-c", script]).await
    }
}

async fn serve(args: &[&str]) -> (App, Client) {
    let listen = ["wrapper-server", "--address=127.0.0.1", "--port=0"];
    let flags: Flags = porch_fn_flags::parse(listen.iter().chain(args).map(Into::into)).unwrap();
    let app = start(&flags).await.unwrap();
    let client = Client::new(app.address());
    (app, client)
}

/// Calls a function that runs this shell script.
async fn evaluate(script: &str) -> Answer {
    Wrapper::sh(&[], script).await.client.call(IMAGE, INPUT).await
}

#[tokio::test]
async fn exit_0_with_a_resource_list_is_ok_byte_for_byte() {
    let output = "# comment stays\r\nkind:   ResourceList\nitems: [ ]  \n...\n";
    let print = format!("cat >/dev/null; printf '{output}'; printf 'a\\377b' >&2");
    let failed = format!("{INPUT}results: [{{severity: error, message: bad}}]\n");
    for (script, output, log) in [
        (&*print, output, &b"a\xffb"[..]),
        // The function succeeds although its results contain an error.
        ("cat; echo 'results: [{severity: error, message: bad}]'; echo log >&2", &failed, b"log\n"),
        ("(sleep 0.3; echo late >&2) & cat", INPUT, b"late\n"),
    ] {
        let answer = evaluate(script).await;
        assert_eq!((&answer.output()[..], &answer.log[..]), (output.as_bytes(), log), "{script}");
    }
}

#[tokio::test]
async fn flatten_log_joins_the_lines_of_stderr() {
    let script = "cat; printf '\\none\\r\\n  two \\n\\n' >&2";
    let wrapper = Wrapper::sh(&["--flatten-log"], script).await;
    let answer = wrapper.client.call(IMAGE, INPUT).await;
    assert_eq!((&answer.output()[..], &*answer.log()), (INPUT.as_bytes(), "one |   two "));
}

#[tokio::test]
async fn messages_past_the_limit_are_refused() {
    let wrapper =
        Wrapper::sh(&["--max-request-body-size=100000"], "touch $TMPDIR/ran; yes; sleep 1000").await;
    let answer = wrapper.client.call(IMAGE, vec![b'#'; 100_001]).await;
    assert_eq!(answer.code, Code::ResourceExhausted);
    assert!(answer.message.starts_with("grpc: received message larger than max ("), "{}", answer.message);
    assert!(!wrapper.sandbox.path("ran").exists());
    let answer = wrapper.client.call(IMAGE, INPUT).await;
    assert_eq!(answer.code, Code::ResourceExhausted);
    assert!(answer.message.contains("message larger than max (100001 vs. 100000)"), "{}", answer.message);
    wrapper.sandbox.gone("").await;
}

#[tokio::test]
async fn calls_past_the_limit_are_refused_for_another_pod() {
    let script = "touch $TMPDIR/$$.started; until [ -e $TMPDIR/go ]; do sleep 0.01; done; cat";
    let wrapper = Wrapper::sh(&["--max-concurrent-calls=2"], script).await;
    let third = async {
        wrapper.sandbox.until_files("started", 2).await;
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
    let wrapper = Wrapper::sh(&[], "cat").await;
    assert_eq!(wrapper.client.health("").await.unwrap(), ServingStatus::Serving);
    assert_eq!(wrapper.client.health("nonsense").await.unwrap_err().code(), Code::NotFound);
}
