//! Cases that are not about one call: frames that HTTP/2 forbids, and peers that do not speak it.

use porch_fn_tests::raw::hpack::encode;
use porch_fn_tests::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, call_of, data, frame, go_away, headers, message, ping, settings, window_update,
};

use super::case::{Case, STREAM, Step, Want};
use super::target::Method;

pub(super) fn cases(method: &Method) -> Vec<Case> {
    let block = encode(&call_of(&method.path));
    let head = headers(STREAM, &block, false);
    let body = data(STREAM, &message(&method.message), true);
    let call = [&head[..], &body].concat();
    let after = |bytes: &[u8]| [&head[..], bytes].concat();
    let before = |bytes: &[u8]| [bytes, &call[..]].concat();
    let many = |setting: (u16, u32)| settings(&vec![setting; 100]);
    [
        ("DATA on stream 0", frame(DATA, 0, 0, b"x"), Want::End),
        ("HEADERS on stream 0", frame(HEADERS, END_HEADERS, 0, &block), Want::End),
        ("HEADERS on an even stream", frame(HEADERS, END_HEADERS, 2, &block), Want::End),
        ("DATA on an idle stream", frame(DATA, 0, 51, b"x"), Want::End),
        ("WINDOW_UPDATE on an idle stream", window_update(51, 1), Want::End),
        ("RST_STREAM on an idle stream", frame(RST_STREAM, 0, 51, &[0; 4]), Want::End),
        ("RST_STREAM on stream 0", frame(RST_STREAM, 0, 0, &[0; 4]), Want::End),
        ("RST_STREAM of 3 bytes", after(&frame(RST_STREAM, 0, STREAM, &[0; 3])), Want::End),
        ("WINDOW_UPDATE of 0", frame(WINDOW_UPDATE, 0, 0, &[0; 4]), Want::End),
        ("WINDOW_UPDATE of 0 on a stream", after(&window_update(STREAM, 0)), Want::RefusalOrEnd),
        ("WINDOW_UPDATE of 3 bytes", frame(WINDOW_UPDATE, 0, 0, &[0; 3]), Want::End),
        ("WINDOW_UPDATE overflow", window_update(0, 0x7fff_ffff), Want::End),
        (
            "WINDOW_UPDATE overflow on a stream",
            after(&window_update(STREAM, 0x7fff_ffff)),
            Want::RefusalOrEnd,
        ),
        ("SETTINGS of 5 bytes", frame(SETTINGS, 0, 0, &[0; 5]), Want::End),
        ("SETTINGS on a stream", frame(SETTINGS, 0, STREAM, &[]), Want::End),
        ("SETTINGS acknowledgement with content", frame(SETTINGS, 1, 0, &[0; 6]), Want::End),
        ("SETTINGS with a window above 2^31", settings(&[(4, 1 << 31)]), Want::End),
        ("SETTINGS with frames of 1 byte", settings(&[(5, 1)]), Want::End),
        ("SETTINGS with push of 2", settings(&[(2, 2)]), Want::End),
        ("SETTINGS that are unknown", before(&many((0xff, 1))), Want::Same),
        ("SETTINGS with a hundred windows", before(&many((4, 65_535))), Want::Same),
        ("SETTINGS without a table of headers", before(&settings(&[(1, 0)])), Want::Same),
        ("SETTINGS with a large table of headers", before(&settings(&[(1, u32::MAX)])), Want::Same),
        ("SETTINGS with small lists of headers", before(&settings(&[(6, 1)])), Want::Anything),
        ("PING of 7 bytes", frame(PING, 0, 0, &[0; 7]), Want::End),
        ("PING on a stream", frame(PING, 0, STREAM, &[0; 8]), Want::End),
        ("100 PINGs", before(&ping().repeat(100)), Want::Same),
        ("100 acknowledgements of no PING", before(&frame(PING, 1, 0, &[0; 8]).repeat(100)), Want::Same),
        ("PRIORITY of 4 bytes", after(&frame(PRIORITY, 0, STREAM, &[0; 4])), Want::RefusalOrEnd),
        ("PRIORITY on an idle stream", before(&frame(PRIORITY, 0, 77, &[0, 0, 0, 0, 1])), Want::Same),
        ("PRIORITY on itself", after(&frame(PRIORITY, 0, STREAM, &[0, 0, 0, 1, 1])), Want::RefusalOrEnd),
        ("PUSH_PROMISE", after(&frame(PUSH_PROMISE, END_HEADERS, STREAM, &[0, 0, 0, 2])), Want::End),
        ("CONTINUATION without HEADERS", frame(CONTINUATION, END_HEADERS, STREAM, &block), Want::End),
        ("DATA between HEADERS", [frame(HEADERS, 0, STREAM, &block), body.clone()].concat(), Want::End),
        ("a PING between HEADERS", [frame(HEADERS, 0, STREAM, &block), ping()].concat(), Want::End),
        ("an unknown type of frame", before(&frame(200, 0xff, STREAM, b"anything")), Want::Same),
        (
            "an unknown type in HEADERS",
            [frame(HEADERS, 0, STREAM, &block), frame(200, 0, 0, &[])].concat(),
            Want::End,
        ),
        ("a frame above the limit", after(&frame(DATA, 0, STREAM, &vec![0; 1_100_000])), Want::End),
        ("HPACK: index 0", frame(HEADERS, END_HEADERS, STREAM, &[0x80]), Want::End),
        (
            "HPACK: an index above the table",
            frame(HEADERS, END_HEADERS, STREAM, &[0xff, 0xff, 0xff, 0x7f]),
            Want::End,
        ),
        ("HPACK: an endless integer", frame(HEADERS, END_HEADERS, STREAM, &[0xff; 40]), Want::End),
        (
            "HPACK: a text longer than the block",
            frame(HEADERS, END_HEADERS, STREAM, &[0x10, 0x7f, 0xff, 0x01]),
            Want::End,
        ),
        (
            "HPACK: no Huffman code",
            frame(HEADERS, END_HEADERS, STREAM, &[0x10, 0x84, 0xff, 0xff, 0xff, 0xff, 0]),
            Want::End,
        ),
        (
            "an empty list of headers",
            frame(HEADERS, END_HEADERS | END_STREAM, STREAM, &[]),
            Want::RefusalOrEnd,
        ),
        ("padding above the frame", after(&frame(DATA, 8, STREAM, &[9, 0, 0])), Want::End),
        ("DATA after the end", [&call[..], &data(STREAM, b"x", true)].concat(), Want::AnythingOrEnd),
        ("HEADERS twice", [&call[..], &head].concat(), Want::Anything),
        (
            "trailers without an end",
            [&head[..], &data(STREAM, &message(&method.message), false), &head].concat(),
            Want::RefusalOrEnd,
        ),
        (
            "streams that count down",
            [headers(9, &block, false), headers(3, &block, false)].concat(),
            Want::End,
        ),
        ("GOAWAY of the client", before(&go_away(0, 0)), Want::Anything),
        ("another preface", porch_fn_tests::raw::PREFACE.to_vec(), Want::End),
    ]
    .into_iter()
    .map(|(name, bytes, want)| Case::new("connections", name, vec![Step::Send(bytes)], want))
    .collect()
}
