//! Reads the gRPC status in headers and trailers, limits its length, and replaces it without losing
//! details.

use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode;
use tonic::{Code, Status};

/// Longest status message that we send, in bytes. A longer message keeps its head and tail.
pub const MAX_MESSAGE_BYTES: usize = 128 * 1024;

/// The trailer by which a runner or wrapper-server reports that it did not start the call, so that
/// the call may be sent elsewhere.
pub const SHED_TRAILER: &str = "porch-fn-retry";
/// The only value of [`SHED_TRAILER`].
pub const SHED_VALUE: &str = "shed";

/// The trailer by which a runner reports how many other calls it has in flight.
pub const LOAD_TRAILER: &str = "porch-fn-load";

/// The trailer of an answer that waited for the start of its pod: how long each phase of the start
/// took, such as `create=0.011s, address=0.850s, serve=0.055s`.
pub const START_TRAILER: &str = "porch-fn-start";

/// The trailer of `NOT_FOUND` by which a runner without a cluster lists its functions, separated by
/// commas. Routers pass it on, unlike the other trailers here.
pub const FUNCTIONS_TRAILER: &str = "porch-fn-functions";

/// A code's name in the spelling that gRPC's own metrics and grpcurl use.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The status code in `headers`, if there is one.
pub fn code_of(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}

/// The status message in `headers`, decoded; empty when there is none.
pub fn message_of(headers: &HeaderMap) -> String {
    headers
        .get("grpc-message")
        .map(|value| percent_decode(value.as_bytes()).decode_utf8_lossy().into_owned())
        .unwrap_or_default()
}

/// Replaces code and message in `headers`. Everything else stays, including the status details.
pub fn set_message(headers: &mut HeaderMap, code: Code, message: &str) {
    headers.remove("grpc-message");
    // `add_header` fails only on metadata that is not a valid header, and this status has no
    // metadata.
    let _ = Status::new(code, cut_message(message)).add_header(headers);
}

/// Cuts the message in `headers` like [`cut_message`].
pub fn bound_message(headers: &mut HeaderMap) {
    // Decoding never makes the message longer.
    if headers.get("grpc-message").is_some_and(|value| value.len() > MAX_MESSAGE_BYTES) {
        let code = code_of(headers).unwrap_or(Code::Unknown);
        set_message(headers, code, &message_of(headers));
    }
}

/// Size of a header list in bytes as HTTP/2 counts it: names, values, and 32 bytes for each field.
/// <https://www.rfc-editor.org/rfc/rfc9113#section-6.5.2>
pub fn header_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// Whether the call was refused before it began, so that it may be sent elsewhere.
pub fn is_shed(headers: &HeaderMap) -> bool {
    headers.get(SHED_TRAILER) == Some(&HeaderValue::from_static(SHED_VALUE))
}

/// Reports in `headers` that `calls` other calls are in flight here.
pub fn set_load(headers: &mut HeaderMap, calls: usize) {
    headers.insert(LOAD_TRAILER, HeaderValue::from(calls));
}

/// The number that [`set_load`] reported, if there is a valid one.
pub fn load_of(headers: &HeaderMap) -> Option<usize> {
    headers.get(LOAD_TRAILER)?.to_str().ok()?.parse().ok()
}

/// Cuts the middle out of a message above [`MAX_MESSAGE_BYTES`], at character boundaries.
pub fn cut_message(message: &str) -> String {
    if message.len() <= MAX_MESSAGE_BYTES {
        return message.to_owned();
    }
    // Room for the note about the cut.
    let half = (MAX_MESSAGE_BYTES - 64) / 2;
    let head = &message[..message.floor_char_boundary(half)];
    let tail = &message[message.ceil_char_boundary(message.len() - half)..];
    let left_out = message.len() - head.len() - tail.len();
    format!("{head}\n[... {left_out} bytes left out ...]\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_survive_the_header(message in "\\PC{0,50}(\n\\PC{0,9})?") {
            let mut headers = HeaderMap::new();
            set_message(&mut headers, Code::Internal, &message);
            prop_assert_eq!(code_of(&headers), Some(Code::Internal));
            prop_assert_eq!(message_of(&headers), message);
        }
    }

    #[test]
    fn a_malformed_load_is_ignored() {
        let mut headers = HeaderMap::new();
        assert_eq!(load_of(&headers), None);
        set_load(&mut headers, usize::MAX);
        assert_eq!(load_of(&headers), Some(usize::MAX));
        for text in ["", "-1", "many", "1.5", "99999999999999999999999"] {
            headers.insert(LOAD_TRAILER, HeaderValue::from_static(text));
            assert_eq!(load_of(&headers), None, "{text}");
        }
    }

    #[test]
    fn details_stay_and_long_messages_keep_both_ends() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status-details-bin", HeaderValue::from_static("AAEC"));
        set_message(&mut headers, Code::Internal, &format!("head{}tail", "é".repeat(MAX_MESSAGE_BYTES)));
        let cut = message_of(&headers);
        assert!(cut.len() <= MAX_MESSAGE_BYTES);
        assert!(cut.starts_with("headé") && cut.ends_with("étail") && cut.contains("bytes left out"));
        set_message(&mut headers, Code::NotFound, "");
        assert_eq!(message_of(&headers), "");
        assert_eq!(headers["grpc-status-details-bin"], "AAEC");
    }
}
