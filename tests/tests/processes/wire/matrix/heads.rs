//! Cases of header lists: faults of single fields, and lists around the limit.

use porch_fn_tests::raw::hpack::{encode, encode_repeated};
use porch_fn_tests::raw::{Field, call_of, data, fields, headers, message};

use super::super::case::{Case, STREAM, Step, Want};
use super::super::target::{Kind, Method};
use super::{INTERNAL, INVALID, TOO_LARGE, UNIMPLEMENTED, with_fields, with_list};

/// Faults of single fields.
pub(super) fn heads(method: &Method) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add =
        |name: String, bytes, want| cases.push(Case::new("headers", name, vec![Step::Send(bytes)], want));
    let without =
        |name: &str| call_of(&method.path).into_iter().filter(|field| field.0 != name).collect::<Vec<_>>();
    add("no content-type".into(), with_list(method, &without("content-type")), Want::Code(INVALID));
    for kind in ["text/plain", "application/grpc-web", "application/json", "application/grpcx", ""] {
        add(
            format!("content-type {kind:?}"),
            with_fields(method, &[("content-type", kind)]),
            Want::Code(INVALID),
        );
    }
    for kind in ["application/grpc+proto", "application/grpc;charset=utf-8"] {
        add(format!("content-type {kind:?}"), with_fields(method, &[("content-type", kind)]), Want::Same);
    }
    for verb in ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"] {
        let list: Vec<_> = fields([(":method", verb)]).into_iter().chain(without(":method")).collect();
        add(format!("method {verb}"), with_list(method, &list), Want::Code(INTERNAL));
    }
    for timeout in ["", "1", "S", "1s", "-1S", "1.5S", "123456789S", "1 S", "½S"] {
        add(
            format!("grpc-timeout {timeout:?}"),
            with_fields(method, &[("grpc-timeout", timeout)]),
            Want::Code(INTERNAL),
        );
    }
    add("no te".into(), with_list(method, &without("te")), Want::Same);
    for (name, value) in [
        ("content-length", (message(&method.message).len()).to_string()),
        ("x-bin", "!!!".into()),
        ("grpc-accept-encoding", "zstd,,x".into()),
        ("user-agent", "a/1 b/2".into()),
        ("expect", "100-continue".into()),
        ("traceparent", "00-zz-1".into()),
        ("cookie", "a=b".into()),
        ("x-empty", String::new()),
        ("x-tab", "a\tb".into()),
        ("x-latin", "é".into()),
    ] {
        add(format!("{name}: {value:?}"), with_fields(method, &[(name, &value)]), Want::Same);
    }
    add("content-length 1".into(), with_fields(method, &[("content-length", "1")]), Want::RefusalOrEnd);
    // HTTP/2 calls these malformed.
    for (name, value) in [
        ("X-Upper", "a"),
        ("a b", "a"),
        ("", "a"),
        ("x-crlf", "a\r\nb: c"),
        ("x-null", "a\0b"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        (":status", "200"),
        (":unknown", "a"),
        (":path", "/again"),
    ] {
        let list = [call_of(&method.path), fields([(name, value)])].concat();
        add(format!("malformed: {name:?}: {value:?}"), with_list(method, &list), Want::RefusalOrEnd);
    }
    for name in [":method", ":path", ":scheme"] {
        add(format!("malformed: no {name}"), with_list(method, &without(name)), Want::RefusalOrEnd);
    }
    let (service, _) = method.path.rsplit_once('/').unwrap();
    for path in
        ["/", "/x/Y", &format!("{service}/Other"), &format!("{}/", method.path), &method.path.to_uppercase()]
    {
        let list: Vec<_> = fields([(":path", path)]).into_iter().chain(without(":path")).collect();
        add(format!("path {path}"), with_list(method, &list), Want::Code(UNIMPLEMENTED));
    }
    for path in ["*", "x", "//", "http://x/"] {
        let list: Vec<_> = fields([(":path", path)]).into_iter().chain(without(":path")).collect();
        add(format!("path {path}"), with_list(method, &list), Want::RefusalOrEnd);
    }
    cases
}

/// Header lists of a hop's limit, and larger ones.
pub(super) fn lists(kind: Kind, method: &Method) -> Vec<Case> {
    let is_first_hop = matches!(kind, Kind::Router | Kind::Up);
    // A router may add 4 KiB for the next hop.
    let limit = if is_first_hop { 64 * 1024 } else { 68 * 1024 };
    let list = call_of(&method.path);
    // HTTP/2 counts 32 bytes for each field. Of the pseudo-headers only the path counts here.
    let own: usize = list
        .iter()
        .filter(|field| !field.0.starts_with(':'))
        .map(|field| field.0.len() + field.1.len() + 32)
        .sum();
    let room = limit - own - method.path.len() - 33;
    let mut cases = Vec::new();
    let mut add = |name: String, block: &[u8], want| {
        let body = data(STREAM, &message(&method.message), true);
        let bytes = [headers(STREAM, block, false), body].concat();
        cases.push(Case::new("lists", name, vec![Step::Send(bytes)], want));
    };
    let with = |more: Vec<Field>| encode(&[list.clone(), more].concat());
    let value = |length: usize| fields([("x", &*"v".repeat(length))]);
    let (too_large, mut large) = (Want::Code(TOO_LARGE), vec![room + 1, 80_000]);
    // Between hops, HTTP/2's frames of 1 MiB are the unit of its own limit: N5.
    large.extend(is_first_hop.then_some([114_000, 130_000, 500_000, 900_000]).into_iter().flatten());
    add(format!("a list of {limit} bytes"), &with(value(room)), Want::Same);
    for length in large {
        add(format!("a value of {length} bytes"), &with(value(length)), too_large.clone());
    }
    let count = limit / 33;
    add(
        format!("{} fields of one letter", count - 10),
        &with(vec![("a".into(), String::new()); count - 10]),
        Want::Same,
    );
    add(
        format!("{count} fields of one letter"),
        &with(vec![("a".into(), String::new()); count]),
        too_large.clone(),
    );
    let indexed = [encode(&list), encode_repeated("a", "", 31_000)].concat();
    add("31,000 references to a field".into(), &indexed, too_large);
    cases
}
