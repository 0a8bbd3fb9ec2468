//! The wrapper-server, called by gRPC. runner/wrapper-server tests the codes and texts of functions
//! that fail or cannot be started.

use porch_fn_tests::client::Client;
use porch_fn_tests::process::Sandbox;
use tonic::Code;
use wrapper_server::{App, Flags, start};

const IMAGE: &str = "example.com/functions/set-image:v1";
const INPUT: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n";

/// A wrapper-server in this process. The sandbox kills the functions' processes.
struct Wrapper {
    sandbox: Sandbox,
    _app: App,
    client: Client,
}

impl Wrapper {
    async fn sh(flags: &[&str], script: &str) -> Self {
        let sandbox = Sandbox::new();
        let mark = format!("TMPDIR={}", sandbox.directory().display());
        let own = ["wrapper-server", "--address=127.0.0.1", "--port=0"];
        let args = [&own, flags, &["--", "env", &mark, "sh", "-c", script]].concat();
        let flags: Flags = porch_fn_flags::parse(args.into_iter().map(Into::into)).unwrap();
        let app = start(&flags).await.unwrap();
        let client = Client::new(app.address());
        Self { sandbox, _app: app, client }
    }
}

#[tokio::test]
async fn the_output_of_a_function_is_returned_byte_for_byte() {
    let output = "# comment stays\r\nkind:   ResourceList\nitems: [ ]  \n...\n";
    let print = format!("cat >/dev/null; printf '{output}'; printf 'a\\377b' >&2");
    let failed = format!("{INPUT}results: [{{severity: error, message: bad}}]\n");
    for (flags, script, output, log) in [
        (&[][..], &*print, output, &b"a\xffb"[..]),
        // The function succeeds although its results contain an error.
        (&[], "cat; echo 'results: [{severity: error, message: bad}]'; echo log >&2", &failed, b"log\n"),
        (&[], "(sleep 0.3; echo late >&2) & cat", INPUT, b"late\n"),
        (&["--flatten-log"], "cat; printf '\\none\\r\\n  two \\n\\n' >&2", INPUT, b"one |   two "),
    ] {
        let answer = Wrapper::sh(flags, script).await.client.call(IMAGE, INPUT).await;
        assert_eq!((&answer.output()[..], &answer.log[..]), (output.as_bytes(), log), "{script}");
    }
}

#[tokio::test]
async fn messages_over_the_limit_are_refused() {
    let wrapper =
        Wrapper::sh(&["--max-request-body-size=100000"], "touch $TMPDIR/ran; yes; sleep 1000").await;
    let answer = wrapper.client.call(IMAGE, vec![b'#'; 100_001]).await;
    assert_eq!(answer.code, Code::ResourceExhausted);
    assert!(answer.message.starts_with("grpc: received message larger than max ("), "{}", answer.message);
    assert!(!wrapper.sandbox.path("ran").exists());
    let answer = wrapper.client.call(IMAGE, INPUT).await;
    assert_eq!(answer.code, Code::ResourceExhausted);
    assert!(answer.message.contains("message larger than max (100001 vs. 100000)"), "{}", answer.message);
    wrapper.sandbox.wait_no_process("").await;
}

#[tokio::test]
async fn calls_over_the_limit_are_shed() {
    let script = "touch $TMPDIR/$$.started; until [ -e $TMPDIR/go ]; do sleep 0.01; done; cat";
    let wrapper = Wrapper::sh(&["--max-concurrent-calls=2"], script).await;
    let third = async {
        wrapper.sandbox.wait_files("started", 2).await;
        let third = wrapper.client.call(IMAGE, INPUT).await;
        wrapper.sandbox.write("go", "");
        third
    };
    let (first, second, third) =
        tokio::join!(wrapper.client.call(IMAGE, INPUT), wrapper.client.call(IMAGE, INPUT), third);
    assert_eq!((first.output(), second.output()), (&INPUT.into(), &INPUT.into()));
    assert_eq!(third.trailers.get("porch-fn-retry").unwrap(), "shed");
    third.assert_failed(
        Code::ResourceExhausted,
        "2 calls already run in this function's pod: retry later, raise --max-parallel-pods-per-function, or raise \
         the wrapper-server's --max-concurrent-calls",
    );
    assert!(first.trailers.get("porch-fn-retry").is_none());
}
