//! Error texts of all sizes, and invalid requests.

use bytes::Bytes;
use http::HeaderMap;
use porch_fn_proto::EVALUATE_FUNCTION_PATH as PATH;
use porch_fn_tests::caller::framed;
use porch_fn_tests::fake_runner::{Answer, Reply};
use porch_fn_tests::fleet::Fleet;
use tonic::Code;

const IMAGE: &str = "set-image:v1";

/// A line with percent signs and several languages, like the output of functions. gRPC encodes the
/// newline in three bytes.
const LINE: &str = "Fehler: 100 % der Größe von „name“ – 大きすぎる\n";

/// Two answers: one has only these headers, the other sends them as trailers after a message.
fn both_forms(headers: &HeaderMap) -> [Reply; 2] {
    let started = Reply::ok(Bytes::from_static(b"partial"), "");
    let mut trailers = headers.clone();
    trailers.remove("content-type");
    [Reply { headers: headers.clone(), ..Reply::default() }, Reply { trailers: Some(trailers), ..started }]
}

#[tokio::test]
async fn long_error_texts_arrive_whole_and_longer_ones_are_cut_in_the_middle() {
    let fleet = Fleet::of(1).await;
    let caller = fleet.caller().await;
    for (size, whole) in [(8 * 1024, true), (100 * 1024, true), (1024 * 1024, false)] {
        let text = format!("the beginning\n{}\nthe end", LINE.repeat(size / LINE.len()));
        // The status headers that our own servers create.
        for reply in both_forms(&porch_fn_grpc::Reply::failed(Code::Internal, &text).headers) {
            fleet.runners[0].otherwise(Answer::Reply(reply));
            let status = caller.evaluate(IMAGE, "package").await.unwrap_err();
            let message = status.message();
            assert_eq!(status.code(), Code::Internal, "{message:.200}");
            assert_eq!(message == text, whole, "{size}");
            assert!(message.starts_with("the beginning\nFehler") && message.ends_with("\nthe end"));
            assert_eq!(message.contains("bytes left out"), !whole);
            assert!(message.len() <= porch_fn_grpc::MAX_MESSAGE_BYTES);
        }
    }
    fleet.wait_all("healthy").await;
}

#[tokio::test]
async fn an_answer_with_too_much_metadata_is_refused() {
    let fleet = Fleet::of(1).await;
    let caller = fleet.caller().await;
    for (bytes, code) in [(60 * 1024, Code::Internal), (70 * 1024, Code::ResourceExhausted)] {
        let mut headers = porch_fn_grpc::Reply::failed(Code::Internal, "the function's own text").headers;
        headers.insert("x-large", "x".repeat(bytes).parse().unwrap());
        for reply in both_forms(&headers) {
            fleet.runners[0].otherwise(Answer::Reply(reply));
            let status = caller.evaluate(IMAGE, "package").await.unwrap_err();
            assert_eq!(status.code(), code, "{status:?}");
            if code == Code::ResourceExhausted {
                let text = status.message();
                assert!(text.starts_with("the answer's headers and trailers have 7"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn malformed_requests_are_refused_with_the_reason() {
    let fleet = Fleet::of(1).await;
    let raw = fleet.raw().await;
    let one = framed(IMAGE, "package");
    let two = Bytes::from([&one[..], &one[..]].concat());
    let frame = |message: &[u8]| Bytes::from([&[0, 0, 0, 0, message.len() as u8][..], message].concat());
    let cases: [(&str, Bytes, Code, &str); 9] = [
        ("no message", Bytes::new(), Code::Internal, "a unary call without a message"),
        ("two messages", two, Code::Internal, "more than one message in a unary call"),
        ("half a message", one.slice(..9), Code::Internal, "the body ended after 9 bytes of a message"),
        ("half a prefix", one.slice(..3), Code::Internal, "the body ended after 3 bytes of a message"),
        ("not a prefix", Bytes::from_static(b"hello"), Code::Internal, "unknown compression flag 104"),
        ("garbage", frame(&[0xff; 20]), Code::Internal, "the request is not a protobuf message"),
        ("a field past the end", frame(&[0x12, 9, b'a']), Code::Internal, "the request is cut off"),
        ("not UTF-8", frame(&[0x12, 1, 0xff]), Code::Internal, "field 2 of the request is not UTF-8"),
        ("no image", frame(&[0x0a, 1, b'a']), Code::InvalidArgument, "the request names no function image"),
    ];
    for (name, body, code, text) in cases {
        let answer = raw.call(&[], body).await;
        assert_eq!(answer.code(), code, "{name}");
        assert!(answer.message().starts_with(text), "{name}: {}", answer.message());
    }
    assert_eq!(raw.call(&[], one).await.code(), Code::Ok, "the connection is still usable");
    assert_eq!(fleet.taken(), [1]);
}

#[tokio::test]
async fn unknown_methods_and_content_types_are_refused_with_the_reason() {
    let fleet = Fleet::of(1).await;
    let raw = fleet.raw().await;
    let no_post = "received a request with method GET, which should be POST";
    let no_grpc = "invalid gRPC request content-type: application/grpc is expected";
    let unknown = "unknown method; this server has evaluator.FunctionEvaluator/EvaluateFunction";
    let cases: [(&str, &str, &str, Code, &str); 7] = [
        ("GET", PATH, "application/grpc", Code::Internal, no_post),
        ("POST", PATH, "application/json", Code::InvalidArgument, no_grpc),
        ("POST", PATH, "application/grpcx", Code::InvalidArgument, no_grpc),
        ("POST", PATH, "", Code::InvalidArgument, no_grpc),
        ("POST", "/evaluator.FunctionEvaluator/Other", "application/grpc", Code::Unimplemented, unknown),
        ("POST", "/", "application/grpc", Code::Unimplemented, unknown),
        ("POST", "/grpc.health.v1.Health/Other", "application/grpc", Code::Unimplemented, ""),
    ];
    let accepted = ["application/grpc+proto", "application/grpc;charset=utf-8"];
    let accepted = accepted.map(|content_type| ("POST", PATH, content_type, Code::Ok, ""));
    for (method, path, content_type, code, text) in cases.into_iter().chain(accepted) {
        let mut head = raw.head();
        *head.method_mut() = method.parse().unwrap();
        *head.uri_mut() = format!("http://{}{path}", fleet.router.address()).parse().unwrap();
        match content_type {
            "" => drop(head.headers_mut().remove("content-type")),
            content_type => drop(head.headers_mut().insert("content-type", content_type.parse().unwrap())),
        }
        let mut call = raw.begin(head).await;
        call.send(framed(IMAGE, "package"), true);
        let answer = call.answer().await;
        assert_eq!(answer.code(), code, "{method} {path} {content_type}");
        assert!(answer.message().starts_with(text), "{method} {path}: {}", answer.message());
    }
}
