//! HTTP/2 by hand, for tests that send what no library sends. [`Wire`] is one connection, as a client
//! or as a server. The functions here build frames, and nothing checks them.
//! <https://www.rfc-editor.org/rfc/rfc9113#section-6>

pub mod hpack;
mod wire;

pub use wire::{Habits, Seen, Stream, Wire};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Flags of frames.
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const WITH_PRIORITY: u8 = 0x20;

/// Settings.
pub const INITIAL_WINDOW_SIZE: u16 = 4;

/// Error codes.
pub const PROTOCOL_ERROR: u32 = 1;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// The largest payload that each peer accepts, in bytes.
pub const MAX_PAYLOAD: usize = 16 * 1024;

/// The default of HTTP/2, in bytes.
pub const DEFAULT_WINDOW: u32 = 65_535;

/// A name and a value. Neither is checked.
pub type Field = (String, String);

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [.., first, second, third] = payload.len().to_be_bytes();
    let mut bytes = vec![first, second, third, kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let pair = |&(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &settings.iter().flat_map(pair).collect::<Vec<_>>())
}

pub fn ping() -> Vec<u8> {
    frame(PING, 0, 0, b"a test's")
}

pub fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub fn go_away(last: u32, code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

/// A header list in frames of at most [`MAX_PAYLOAD`], as grpc-go sends it.
pub fn headers(stream: u32, block: &[u8], is_last: bool) -> Vec<u8> {
    let mut parts = block.chunks(MAX_PAYLOAD);
    let first = parts.next().unwrap_or_default();
    let end_of = |is_end| if is_end { END_HEADERS } else { 0 };
    let flags = if is_last { END_STREAM } else { 0 };
    let mut bytes = frame(HEADERS, flags | end_of(parts.len() == 0), stream, first);
    while let Some(part) = parts.next() {
        bytes.extend(frame(CONTINUATION, end_of(parts.len() == 0), stream, part));
    }
    bytes
}

/// Data in frames of at most [`MAX_PAYLOAD`].
pub fn data(stream: u32, content: &[u8], is_last: bool) -> Vec<u8> {
    data_in(stream, content, MAX_PAYLOAD, is_last)
}

/// Data in frames of at most `size` bytes.
pub fn data_in(stream: u32, content: &[u8], size: usize, is_last: bool) -> Vec<u8> {
    let mut parts = content.chunks(size);
    let mut bytes = Vec::new();
    while let Some(part) = parts.next() {
        let flags = if is_last && parts.len() == 0 { END_STREAM } else { 0 };
        bytes.extend(frame(DATA, flags, stream, part));
    }
    if content.is_empty() {
        bytes.extend(frame(DATA, if is_last { END_STREAM } else { 0 }, stream, &[]));
    }
    bytes
}

/// A list of fields from texts.
pub fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Field> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The header list of a call.
pub fn call_of(path: &str) -> Vec<Field> {
    fields([
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// A message with gRPC's prefix.
pub fn message(content: &[u8]) -> Vec<u8> {
    prefixed(0, content.len(), content)
}

/// A message whose prefix may be wrong.
pub fn prefixed(flag: u8, announced: usize, content: &[u8]) -> Vec<u8> {
    let announced = u32::try_from(announced).expect("four bytes");
    [&[flag], &announced.to_be_bytes()[..], content].concat()
}
