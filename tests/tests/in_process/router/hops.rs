//! Router and runner in front of a wrapper that records requests. Neither may change a request.

use bytes::Bytes;
use porch_fn_flags::LogFormat;
use porch_fn_proto::{Chunks, frame};
use porch_fn_runner::pods::ImageCommands;
use porch_fn_runner::pods::local::{LocalCluster, LocalOptions};
use porch_fn_tests::caller::{RawCaller, request};
use porch_fn_tests::fake_runner::FakeRunner;
use porch_fn_tests::fleet::start_router;
use porch_fn_tests::stack::start_runner;
use prost::Message;
use tonic::Code;

const IMAGE: &str = "example.com/f:v1";

/// Fields 3 and 4 with wire types that differ from the proto file, and the unknown field 15.
const OTHER_FIELDS: &[u8] = &[0x18, 7, 0x25, 1, 2, 3, 4, 0x7a, 2, 0xff, 0];

#[tokio::test]
async fn a_request_reaches_the_wrapper_byte_for_byte() {
    let wrapper = FakeRunner::start("wrapper").await;
    let mut functions = ImageCommands::default();
    functions.add(IMAGE, vec!["unused".to_owned()], "example.com").unwrap();
    // This script replaces a wrapper-server process: it prints the address of the fake wrapper, and
    // ends when its standard input is closed.
    let script = format!("echo listening on {}; cat", wrapper.address());
    let pods = LocalCluster::new(LocalOptions {
        wrapper: ["sh", "-c", &script].map(Into::into).to_vec(),
        max_message: 1 << 20,
        log_level: 0,
        log_format: LogFormat::Text,
        functions,
        sandboxes: None,
    });
    let runner = start_runner([""; 0], Some(pods)).await;
    let router = start_router([runner.address()], &[]).await;
    let caller = RawCaller::connect(router.address()).await;

    let mut call = request(IMAGE, "package");
    (call.tag, call.exec_path) = ("v1".to_owned(), "/bin/false".to_owned());
    let known = call.encode_to_vec();
    for message in [known.clone(), [OTHER_FIELDS, &known].concat(), [&known, OTHER_FIELDS].concat()] {
        let sent = frame(Chunks::from(Bytes::from(message))).contiguous();
        let answer = caller.call(&[], sent.clone()).await;
        assert_eq!((answer.code(), answer.message().as_str()), (Code::Ok, ""));
        assert_eq!(wrapper.log().calls.last().unwrap().framed, sent);
    }
    assert_eq!(wrapper.taken(), 3);
}
