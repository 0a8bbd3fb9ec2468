//! Reads the image and tag of a request, and the position of its package, without decoding the
//! package.
//!
//! Go writes fields in order of their numbers, so the image follows the package. The parser
//! uses the package's length to skip it.

use std::ops::Range;

use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::chunks::{Chunks, Reader};

pub(crate) const RESOURCE_LIST_FIELD: u32 = 1;
pub(crate) const IMAGE_FIELD: u32 = 2;
/// `Tag` in `evaluator.proto`. Field 4, `exec_path`, is not read: that file explains why.
pub(crate) const TAG_FIELD: u32 = 3;

/// Longest accepted image or tag, in bytes. It is far above the limits of registries (255 bytes of
/// name, 128 of tag), and small enough for a map key and an error text.
const MAX_NAME_BYTES: usize = 4096;

/// The parts of an `EvaluateFunctionRequest` that a hop needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peek {
    /// The function image as sent; empty if the field is missing.
    pub image: String,
    /// The tag constraint as sent; empty if the field is missing.
    pub tag: String,
    /// The position of the package bytes in the message.
    pub resource_list: Range<usize>,
}

/// Why a message is not a readable `EvaluateFunctionRequest`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PeekError(String);

impl From<prost::DecodeError> for PeekError {
    fn from(_: prost::DecodeError) -> Self {
        // A malformed varint, field number zero, an unknown wire type or a malformed group.
        Self("the request is not a protobuf message".to_owned())
    }
}

/// Reads a request in one pass over its field headers. If a field is repeated, the last one counts.
/// A known field with the wrong wire type is skipped like an unknown one, as in Go's protobuf.
///
/// # Errors
/// A [`PeekError`]. The same bytes give the same error, however they are cut into slices.
pub fn peek(message: &Chunks) -> Result<Peek, PeekError> {
    let cut_off =
        || PeekError("the request is cut off: a field continues after the end of the message".to_owned());
    let mut found = Peek::default();
    let mut rest = message.reader();
    while rest.has_remaining() {
        let (field, wire_type) = decode_key(&mut rest)?;
        if wire_type != WireType::LengthDelimited {
            skip_field(wire_type, field, &mut rest, DecodeContext::default())?;
            continue;
        }
        let len = usize::try_from(decode_varint(&mut rest)?).map_err(|_| cut_off())?;
        let start = message.len() - rest.remaining();
        if len > rest.remaining() {
            return Err(cut_off());
        }
        match field {
            IMAGE_FIELD => found.image = text(&mut rest, len, field)?,
            TAG_FIELD => found.tag = text(&mut rest, len, field)?,
            _ => rest.advance(len),
        }
        if field == RESOURCE_LIST_FIELD {
            found.resource_list = start..start + len;
        }
    }
    Ok(found)
}

fn text(rest: &mut Reader<'_>, len: usize, field: u32) -> Result<String, PeekError> {
    if len > MAX_NAME_BYTES {
        return Err(PeekError(format!("field {field} of the request is longer than {MAX_NAME_BYTES} bytes")));
    }
    let mut bytes = vec![0; len];
    rest.copy_to_slice(&mut bytes);
    String::from_utf8(bytes).map_err(|_| PeekError(format!("field {field} of the request is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    use crate::evaluator::EvaluateFunctionRequest;
    use proptest::prelude::*;
    use prost::Message;

    const MALFORMED: &str = "the request is not a protobuf message";
    const CUT_OFF: &str = "the request is cut off: a field continues after the end of the message";

    fn cut(message: &[u8], size: usize) -> Chunks {
        message.chunks(size.max(1)).map(Bytes::copy_from_slice).collect()
    }

    proptest! {
        #[test]
        fn finds_the_fields_that_prost_wrote_in_any_slices(
            list in prop::collection::vec(any::<u8>(), 0..400), image in ".{0,40}", tag in ".{0,10}",
            size in 1usize..500,
        ) {
            let resource_list = list.clone().into();
            let request = EvaluateFunctionRequest { resource_list, image, tag, ..Default::default() };
            let message = cut(&request.encode_to_vec(), size);
            let found = peek(&message).unwrap();
            prop_assert_eq!((found.image, found.tag), (request.image, request.tag));
            prop_assert_eq!(&message.slice(found.resource_list).contiguous()[..], &list[..]);
        }

        #[test]
        fn agrees_with_prost_on_random_bytes(message in prop::collection::vec(any::<u8>(), 0..60), size in 1usize..9) {
            let peeked = peek(&cut(&message, size));
            if let (Ok(peeked), Ok(decoded)) = (peeked, EvaluateFunctionRequest::decode(&message[..])) {
                prop_assert_eq!((peeked.image, peeked.tag), (decoded.image, decoded.tag));
            }
        }
    }

    /// A known field with the wrong wire type counts as unknown, as in Go's protobuf.
    #[test]
    fn unknown_fields_are_skipped_and_the_last_image_counts() {
        let group = [0x1b, 0x12, 1, b'x', 0x23, 0x08, 1, 0x24, 0x1c];
        for (name, field) in [
            ("tag, varint", &[0x18, 0x96, 1][..]),
            ("field 5, bytes", &[0x2a, 1, 9]),
            ("tag, group with a field 2 and a group inside", &group),
            ("exec_path, varint", &[0x20, 1]),
            ("exec_path, fixed64", &[0x21, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("resource_list, fixed32", &[0x0d, 1, 2, 3, 4]),
        ] {
            let message = [&[0x0a, 1, b'l', 0x12, 1, b'e', 0x12, 1, b'f', 0x1a, 1, b't'], field].concat();
            let found = peek(&cut(&message, 2)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((&*found.image, &*found.tag, found.resource_list), ("f", "t", 2..3), "{name}");
        }
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let long = [&[0x12, 0x81, 0x20][..], &[b'a'; 4097]].concat();
        let deep = [0x1b; 200];
        let cases: [(&[u8], &str); 11] = [
            (&[0x12], MALFORMED),
            (&[0x12, 5, b'a'], CUT_OFF),
            (&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], CUT_OFF),
            (&[0xff; 11], MALFORMED),
            (&[0x02, 0], MALFORMED),
            // Groups: cut off, without a start, ended by another field, nested too deep. Then an
            // unknown wire type, and a text that is not UTF-8.
            (&[0x23], MALFORMED),
            (&[0x24], MALFORMED),
            (&[0x23, 0x1c], MALFORMED),
            (&deep, MALFORMED),
            (&[0x26], MALFORMED),
            (&[0x12, 2, 0xc3, 0x28], "field 2 of the request is not UTF-8"),
        ];
        for (message, error) in cases {
            assert_eq!(peek(&cut(message, 100)).unwrap_err().to_string(), error, "{message:x?}");
        }
        let too_long = "field 2 of the request is longer than 4096 bytes";
        assert_eq!(peek(&cut(&long, 100)).unwrap_err().to_string(), too_long);
    }
}
