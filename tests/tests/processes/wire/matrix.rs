//! The cases of one method, by axis.

mod heads;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use porch_fn_tests::raw::hpack::encode;
use porch_fn_tests::raw::{
    CANCEL, DATA, END_HEADERS, END_STREAM, Field, HEADERS, Habits, INITIAL_WINDOW_SIZE, PADDED,
    WITH_PRIORITY, call_of, data, data_in, fields, frame, headers, message, prefixed, reset, settings,
    window_update,
};

use super::case::{Case, STREAM, Step, Want};
use super::target::{Kind, Method, evaluation};

/// The largest message of a service beside the evaluator, in bytes.
const SMALL_LIMIT: usize = 64 * 1024;

/// The window of a stream that servers give at once, in bytes.
const STREAM_WINDOW: usize = 4 * 1024 * 1024;

const INTERNAL: &[u32] = &[13];
const INVALID: &[u32] = &[3];
const TOO_LARGE: &[u32] = &[8];
const UNIMPLEMENTED: &[u32] = &[12];
const DEADLINE: &[u32] = &[4];

/// All cases of a method at a server.
pub(super) fn cases(kind: Kind, limit: usize, method: &Method) -> Vec<Case> {
    let limit = if method.is_evaluation() { limit } else { SMALL_LIMIT };
    let mut cases = windows(method);
    cases.extend(sizes(limit, method));
    cases.extend(framings(method));
    cases.extend(compressions(method));
    cases.extend(heads::heads(method));
    cases.extend(heads::lists(kind, method));
    cases.extend(resets(method));
    cases.extend(deadlines(method));
    cases
}

fn head(method: &Method) -> Vec<u8> {
    headers(STREAM, &encode(&call_of(&method.path)), false)
}

/// A whole call with this content.
fn call(method: &Method, content: &[u8]) -> Vec<u8> {
    [head(method), data(STREAM, content, true)].concat()
}

/// A whole call with more fields.
fn with_fields(method: &Method, more: &[(&str, &str)]) -> Vec<u8> {
    let mut list = call_of(&method.path);
    for &(name, value) in more {
        list.retain(|field| field.0 != name);
        list.push((name.to_owned(), value.to_owned()));
    }
    with_list(method, &list)
}

fn with_list(method: &Method, list: &[Field]) -> Vec<u8> {
    [headers(STREAM, &encode(list), false), data(STREAM, &message(&method.message), true)].concat()
}

/// Windows of answers.
fn windows(method: &Method) -> Vec<Case> {
    // An echo's answer is as large as the request.
    let sizes: &[usize] = if method.is_evaluation() { &[0, 72, 5_000, 70_000, 500_000] } else { &[0] };
    let mut cases = Vec::new();
    for &size in sizes {
        let content = if size > 0 { package(size) } else { method.message.clone() };
        let call = call(method, &message(&content));
        for window in [1, 1024, 64 * 1024, 4 * 1024 * 1024] {
            if size / window as usize > 500 {
                continue;
            }
            let steps = vec![Step::Send(call.clone())];
            let name = format!("answer of {size} bytes, window of {window}");
            cases.push(Case::new("windows", name, steps, Want::Same).with_window(window));
        }
        for first in [1, 100, 65_535] {
            if size / first as usize > 500 {
                continue;
            }
            let changed = settings(&[(INITIAL_WINDOW_SIZE, first)]);
            for (by, more) in [("window update", window_update(STREAM, first)), ("settings", changed)] {
                let steps = vec![Step::Send(call.clone()), Step::Settle, Step::Send(more)];
                let name = format!("answer of {size} bytes, window of 0, then +{first} by {by}");
                cases.push(Case::new("windows", name, steps, Want::Same).with_window(0));
            }
        }
    }
    cases
}

/// A request with a package of this size.
fn package(size: usize) -> Vec<u8> {
    let mut package = b"kind: ResourceList\n".to_vec();
    package.resize(size.max(package.len()), b'#');
    evaluation(&package)
}

/// Sizes of requests.
fn sizes(limit: usize, method: &Method) -> Vec<Case> {
    let case = |name: String, bytes, want| Case::new("sizes", name, vec![Step::Send(bytes)], want);
    let mut cases = vec![case(
        "no message".into(),
        headers(STREAM, &encode(&call_of(&method.path)), true),
        Want::Refusal,
    )];
    for (size, want) in [
        (0, Want::CodeOrSame(&[0, 3, 5, 13])),
        (1, Want::CodeOrSame(&[0, 3, 5, 13])),
        (1000, Want::Same),
        (16 * 1024 + 1, Want::Same),
        (limit - 1, Want::Same),
        (limit, Want::Same),
        (limit + 1, Want::Code(TOO_LARGE)),
    ] {
        if size > STREAM_WINDOW {
            continue;
        }
        let content = method.message_of(size);
        cases.push(case(format!("message of {size} bytes"), call(method, &message(&content)), want));
    }
    for announced in [limit + 1, 64 << 20, u32::MAX as usize] {
        let bytes = [head(method), data(STREAM, &prefixed(0, announced, b"#"), false)].concat();
        cases.push(case(format!("{announced} bytes announced"), bytes, Want::Code(TOO_LARGE)));
    }
    cases
}

/// Frames of requests.
fn framings(method: &Method) -> Vec<Case> {
    let whole = message(&method.message);
    let head = head(method);
    let block = encode(&call_of(&method.path));
    let padded = |content: &[u8]| [&[255], content, &[0; 255]].concat();
    let trailers = headers(STREAM, &encode(&fields([("x-trailer", "1")])), true);
    let pieces = |size| [head.clone(), data_in(STREAM, &whole, size, true)].concat();
    let empty = frame(DATA, 0, STREAM, &[]).repeat(20);
    let twice = [&whole[..], &whole].concat();
    let prioritized = [&[0, 0, 0, 3, 200], &block[..]].concat();
    let split_block: Vec<_> = block.chunks(7).map(<[u8]>::to_vec).collect();
    let mut continued = frame(HEADERS, 0, STREAM, &split_block[0]);
    for (number, part) in split_block.iter().enumerate().skip(1).take(4) {
        let rest = if number == 4 { split_block[4..].concat() } else { part.clone() };
        let flags = if number == 4 { END_HEADERS } else { 0 };
        continued.extend(frame(porch_fn_tests::raw::CONTINUATION, flags, STREAM, &rest));
    }
    let body = data(STREAM, &whole, true);
    let cases = [
        ("frames of 1 byte", pieces(1), Want::Same),
        ("frames of 2 bytes", pieces(2), Want::Same),
        ("frames of 5 bytes", pieces(5), Want::Same),
        (
            "padding of 255 bytes",
            [head.clone(), frame(DATA, PADDED | END_STREAM, STREAM, &padded(&whole))].concat(),
            Want::Same,
        ),
        (
            "1-byte frames with padding of 255 bytes",
            [
                head.clone(),
                whole.iter().flat_map(|&byte| frame(DATA, PADDED, STREAM, &padded(&[byte]))).collect(),
                frame(DATA, END_STREAM, STREAM, &[]),
            ]
            .concat(),
            Want::Same,
        ),
        (
            "headers with padding",
            [frame(HEADERS, END_HEADERS | PADDED, STREAM, &padded(&block)), body.clone()].concat(),
            Want::Same,
        ),
        (
            "headers with a priority",
            [frame(HEADERS, END_HEADERS | WITH_PRIORITY, STREAM, &prioritized), body.clone()].concat(),
            Want::Same,
        ),
        ("headers in 5 frames", [continued, body].concat(), Want::Same),
        (
            "separate end of stream",
            [head.clone(), data(STREAM, &whole, false), data(STREAM, &[], true)].concat(),
            Want::Same,
        ),
        (
            "trailers of the client",
            [head.clone(), data(STREAM, &whole, false), trailers.clone()].concat(),
            Want::Same,
        ),
        ("trailers and no message", [head.clone(), trailers].concat(), Want::Refusal),
        (
            "20 empty frames before",
            [head.clone(), empty.clone(), data(STREAM, &whole, true)].concat(),
            Want::Same,
        ),
        (
            "20 empty frames after",
            [head.clone(), data(STREAM, &whole, false), empty, data(STREAM, &[], true)].concat(),
            Want::Same,
        ),
        ("two messages", call(method, &twice), Want::Code(INTERNAL)),
        ("a message and a byte", call(method, &[&whole[..], &[0]].concat()), Want::Code(INTERNAL)),
        ("4 bytes of a prefix", call(method, &whole[..4]), Want::Code(INTERNAL)),
        (
            "a message without its last byte",
            call(method, &prefixed(0, method.message.len() + 1, &method.message)),
            Want::Code(INTERNAL),
        ),
        (
            "a prefix with flag 2",
            call(method, &prefixed(2, method.message.len(), &method.message)),
            Want::Code(INTERNAL),
        ),
        (
            "a prefix with flag 255",
            call(method, &prefixed(255, method.message.len(), &method.message)),
            Want::Code(INTERNAL),
        ),
    ];
    cases
        .into_iter()
        .map(|(name, bytes, want)| Case::new("framings", name, vec![Step::Send(bytes)], want))
        .collect()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn compressions(method: &Method) -> Vec<Case> {
    let call = |encoding: Option<&str>, flag, content: &[u8]| {
        let mut list = call_of(&method.path);
        list.extend(encoding.map(|encoding| ("grpc-encoding".to_owned(), encoding.to_owned())));
        let body = data(STREAM, &prefixed(flag, content.len(), content), true);
        vec![Step::Send([headers(STREAM, &encode(&list), false), body].concat())]
    };
    let compressed = if method.is_evaluation() { Want::Same } else { Want::CodeOrSame(UNIMPLEMENTED) };
    let plain = &*method.message;
    let zipped = gzip(plain);
    let corrupt = [&zipped[..zipped.len() - 4], b"#!#!"].concat();
    // A hundred times the largest message.
    let bomb = gzip(&vec![0; 100 << 20]);
    [
        // Only the evaluator accepts compressed messages.
        ("gzip", call(Some("gzip"), 1, &zipped), compressed.clone()),
        ("gzip announced, and not used", call(Some("gzip"), 0, plain), compressed),
        ("identity", call(Some("identity"), 0, plain), Want::Same),
        ("identity, and the flag", call(Some("identity"), 1, plain), Want::Code(INTERNAL)),
        ("the flag without an encoding", call(None, 1, &zipped), Want::Code(INTERNAL)),
        ("an unknown encoding", call(Some("zstd"), 1, plain), Want::Code(UNIMPLEMENTED)),
        ("corrupt gzip", call(Some("gzip"), 1, &corrupt), Want::Code(INTERNAL)),
        ("no gzip", call(Some("gzip"), 1, b"kind: ResourceList"), Want::Code(INTERNAL)),
        ("truncated gzip", call(Some("gzip"), 1, &zipped[..zipped.len() / 2]), Want::Code(INTERNAL)),
        ("100 MiB of zeros in gzip", call(Some("gzip"), 1, &bomb), Want::Code(TOO_LARGE)),
    ]
    .into_iter()
    .map(|(name, steps, want)| Case::new("compressions", name, steps, want))
    .collect()
}

/// Resets at each stage.
fn resets(method: &Method) -> Vec<Case> {
    let (head, whole) = (head(method), message(&method.message));
    let half = &whole[..whole.len() - 1];
    let sent = |bytes: &[&[u8]]| Step::Send(bytes.concat());
    let mut cases = Vec::new();
    for code in [CANCEL, 0, 2, 0xdead] {
        let end = reset(STREAM, code);
        let stages = [
            ("with the headers", vec![sent(&[&head, &end])]),
            ("after the headers", vec![sent(&[&head]), Step::Settle, sent(&[&end])]),
            (
                "in the prefix",
                vec![sent(&[&head, &data(STREAM, &whole[..3], false)]), Step::Settle, sent(&[&end])],
            ),
            ("in the message", vec![sent(&[&head, &data(STREAM, half, false)]), Step::Settle, sent(&[&end])]),
            (
                "before the end of the stream",
                vec![sent(&[&head, &data(STREAM, &whole, false)]), Step::Settle, sent(&[&end])],
            ),
            ("with the whole message", vec![sent(&[&head, &data(STREAM, &whole, true), &end])]),
            (
                "after the whole message",
                vec![sent(&[&head, &data(STREAM, &whole, true)]), Step::Settle, sent(&[&end])],
            ),
            ("in the answer", vec![sent(&[&head, &data(STREAM, &whole, true)]), Step::Head, sent(&[&end])]),
            ("twice", vec![sent(&[&head, &end, &end])]),
        ];
        for (name, steps) in stages {
            let case = Case::new("resets", format!("error {code:#x} {name}"), steps, Want::Anything);
            cases.push(if name == "in the answer" { case.with_window(0) } else { case });
        }
    }
    cases
}

fn deadlines(method: &Method) -> Vec<Case> {
    let mut cases = Vec::new();
    for timeout in ["0n", "0S", "1n", "1u", "1m", "10m"] {
        let steps = vec![Step::Send(with_fields(method, &[("grpc-timeout", timeout)]))];
        cases.push(Case::new("deadlines", timeout, steps, Want::CodeOrSame(DEADLINE)));
    }
    for timeout in ["99999999n", "10S", "99999999S", "99999999H"] {
        let steps = vec![Step::Send(with_fields(method, &[("grpc-timeout", timeout)]))];
        cases.push(Case::new("deadlines", timeout, steps, Want::Same));
    }
    if method.is_evaluation() {
        for timeout in ["0n", "1n", "50m", "150m"] {
            let mut list = call_of(&method.path);
            list.push(("grpc-timeout".into(), timeout.into()));
            let bytes = [headers(STREAM, &encode(&list), false), data(STREAM, &[0, 0], false)].concat();
            let name = format!("{timeout} for half of a prefix");
            cases.push(Case::new("deadlines", name, vec![Step::Send(bytes)], Want::Code(DEADLINE)));
            // The caller takes nothing, and the call must be over.
            let steps = vec![Step::Send(with_fields(method, &[("grpc-timeout", timeout)]))];
            let mut case =
                Case::new("deadlines", format!("{timeout}, no window"), steps, Want::Anything).with_window(0);
            case.habits = Habits { grants: false, ..case.habits };
            cases.push(case);
        }
    }
    cases
}
