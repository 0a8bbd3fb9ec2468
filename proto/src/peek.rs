//! Reads the image and tag of a request, and where its package lies, without decoding the package.
//!
//! Go writes fields in order of their numbers, so the image stands behind the package bytes: the
//! package is stepped over by its length.

use std::ops::{Deref, Range};

use bytes::Bytes;

use crate::chunks::{Chunks, Cursor};

pub(crate) const RESOURCE_LIST_FIELD: u32 = 1;
pub(crate) const IMAGE_FIELD: u32 = 2;
/// `Tag` in `evaluator.proto`. Field 4, `exec_path`, is not read: see there why.
pub(crate) const TAG_FIELD: u32 = 3;

/// How deep groups may nest, as in prost. Nobody sends any: they were never part of proto3.
const MAX_GROUPS: usize = 100;

/// Longest image or tag that is accepted, in bytes: far above what any registry allows (255 bytes of
/// name, 128 of tag), low enough to be a map key and part of an error text.
pub const MAX_NAME_BYTES: usize = 4096;

/// What a hop needs to know of an `EvaluateFunctionRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peek {
    /// The function image as sent; empty when the field is missing.
    pub image: Text,
    /// The tag constraint as sent; empty when the field is missing.
    pub tag: Text,
    /// Where the package bytes lie in the message.
    pub resource_list: Range<usize>,
}

/// Why a message is not a readable `EvaluateFunctionRequest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeekError {
    /// A field runs past the end of the message.
    #[error("the request is cut off: a field runs past its end")]
    Truncated,
    /// A varint of more than ten bytes, field number zero, an unknown wire type or a wrong group.
    #[error("the request is not a protobuf message")]
    Malformed,
    /// The image or tag is too long.
    #[error("field {field} of the request is longer than {MAX_NAME_BYTES} bytes")]
    TooLong {
        /// The field's number.
        field: u32,
    },
    /// The image or tag is not UTF-8.
    #[error("field {field} of the request is not UTF-8")]
    NotUtf8 {
        /// The field's number.
        field: u32,
    },
}

/// UTF-8 text that shares the buffer it was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Bytes);

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        // Checked when the text was made; checking again costs nanoseconds and needs no unsafe code.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Reads a request in one pass over its field headers. When a field is repeated the last one
/// counts. A known field of another wire type is skipped like an unknown one, as Go's protobuf
/// does.
pub fn peek(message: &Chunks) -> Result<Peek, PeekError> {
    let mut found = Peek { image: Text::default(), tag: Text::default(), resource_list: 0..0 };
    let mut cursor = message.cursor();
    let end = message.len();
    while cursor.offset() < end {
        let (field, wire_type) = key(&mut cursor)?;
        if wire_type != LENGTH_DELIMITED {
            skip(&mut cursor, field, wire_type)?;
            continue;
        }
        let len = length(&mut cursor)?;
        let start = cursor.offset();
        let value = cursor.clone();
        cursor.skip(len).ok_or(PeekError::Truncated)?;
        match field {
            RESOURCE_LIST_FIELD => found.resource_list = start..start + len,
            IMAGE_FIELD => found.image = text(&value, len, field)?,
            TAG_FIELD => found.tag = text(&value, len, field)?,
            _ => {}
        }
    }
    Ok(found)
}

const LENGTH_DELIMITED: u64 = 2;

/// A field's number and wire type.
fn key(cursor: &mut Cursor<'_>) -> Result<(u32, u64), PeekError> {
    let key = varint(cursor)?;
    let field = u32::try_from(key >> 3).ok().filter(|&field| field > 0);
    Ok((field.ok_or(PeekError::Malformed)?, key & 7))
}

fn length(cursor: &mut Cursor<'_>) -> Result<usize, PeekError> {
    usize::try_from(varint(cursor)?).map_err(|_| PeekError::Truncated)
}

/// Steps over the value of a field; over all fields of a group.
fn skip(cursor: &mut Cursor<'_>, field: u32, wire_type: u64) -> Result<(), PeekError> {
    let mut groups = Vec::new();
    let (mut field, mut wire_type) = (field, wire_type);
    loop {
        let len = match wire_type {
            0 => varint(cursor).map(|_| 0)?,
            1 => 8,
            LENGTH_DELIMITED => length(cursor)?,
            3 if groups.len() < MAX_GROUPS => {
                groups.push(field);
                0
            }
            4 if groups.pop() == Some(field) => 0,
            5 => 4,
            _ => return Err(PeekError::Malformed),
        };
        cursor.skip(len).ok_or(PeekError::Truncated)?;
        if groups.is_empty() {
            return Ok(());
        }
        (field, wire_type) = key(cursor)?;
    }
}

fn text(value: &Cursor<'_>, len: usize, field: u32) -> Result<Text, PeekError> {
    if len > MAX_NAME_BYTES {
        return Err(PeekError::TooLong { field });
    }
    let bytes = value.peek(len);
    match std::str::from_utf8(&bytes) {
        Ok(_) => Ok(Text(bytes)),
        Err(_) => Err(PeekError::NotUtf8 { field }),
    }
}

fn varint(cursor: &mut Cursor<'_>) -> Result<u64, PeekError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = cursor.byte().ok_or(PeekError::Truncated)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(PeekError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluator::EvaluateFunctionRequest;
    use proptest::prelude::*;
    use prost::Message;

    fn cut(message: &[u8], size: usize) -> Chunks {
        message.chunks(size.max(1)).map(Bytes::copy_from_slice).collect()
    }

    proptest! {
        #[test]
        fn finds_what_prost_wrote_however_it_is_cut(
            list in prop::collection::vec(any::<u8>(), 0..400), image in ".{0,40}", tag in ".{0,10}",
            size in 1usize..500,
        ) {
            let resource_list = list.clone().into();
            let request = EvaluateFunctionRequest { resource_list, image, tag, ..Default::default() };
            let message = cut(&request.encode_to_vec(), size);
            let found = peek(&message).unwrap();
            prop_assert_eq!(&*found.image, request.image.as_str());
            prop_assert_eq!(&*found.tag, request.tag.as_str());
            prop_assert_eq!(&message.slice(found.resource_list).contiguous()[..], &list[..]);
        }

        #[test]
        fn agrees_with_prost_on_noise(message in prop::collection::vec(any::<u8>(), 0..60), size in 1usize..9) {
            let peeked = peek(&cut(&message, size));
            if let (Ok(peeked), Ok(decoded)) = (peeked, EvaluateFunctionRequest::decode(&message[..])) {
                prop_assert_eq!(&*peeked.image, decoded.image.as_str());
                prop_assert_eq!(&*peeked.tag, decoded.tag.as_str());
            }
        }
    }

    #[test]
    fn unknown_fields_are_stepped_over_and_the_last_image_counts() {
        let message = [
            &[0x22, 1, 9][..],               // field 4, bytes
            &[0x28, 0x96, 1],                // field 5, varint
            &[0x31, 0, 0, 0, 0, 0, 0, 0, 0], // field 6, fixed64
            &[0x3d, 0, 0, 0, 0],             // field 7, fixed32
            &[0x12, 1, b'a', 0x12, 1, b'b'],
        ]
        .concat();
        assert_eq!(&*peek(&cut(&message, 2)).unwrap().image, "b");
    }

    /// Like Go's protobuf, which keeps such a field as an unknown one.
    #[test]
    fn a_known_field_of_another_wire_type_is_skipped() {
        let group = [0x1b, 0x12, 1, b'x', 0x23, 0x08, 1, 0x24, 0x1c];
        for (name, field) in [
            ("tag, varint", &[0x18, 0x96, 1][..]),
            ("tag, fixed64", &[0x19, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("tag, fixed32", &[0x1d, 0, 0, 0, 0]),
            ("tag, group with a field 2 and a group inside", &group),
            ("exec_path, varint", &[0x20, 1]),
            ("exec_path, fixed64", &[0x21, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("exec_path, fixed32", &[0x25, 0, 0, 0, 0]),
            ("exec_path, group", &[0x23, 0x24]),
            ("image, varint", &[0x10, 1]),
            ("resource_list, fixed32", &[0x0d, 1, 2, 3, 4]),
        ] {
            let message = [&[0x0a, 1, b'l', 0x12, 1, b'f', 0x1a, 1, b't'], field].concat();
            let found = peek(&cut(&message, 2)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((&*found.image, &*found.tag, found.resource_list), ("f", "t", 2..3), "{name}");
        }
    }

    #[test]
    fn broken_messages_are_refused() {
        let long = [&[0x12, 0x81, 0x20][..], &[b'a'; 4097]].concat();
        let deep = [0x1b; 200];
        let cases: [(&[u8], PeekError); 11] = [
            (&[0x12], PeekError::Truncated),
            (&[0x12, 5, b'a'], PeekError::Truncated),
            (&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], PeekError::Truncated),
            (&[0xff; 11], PeekError::Malformed),
            (&[0x02, 0], PeekError::Malformed),
            // Groups: cut off, ended twice, ended by another field, nested too deep; a wire type of
            // none.
            (&[0x23], PeekError::Truncated),
            (&[0x24], PeekError::Malformed),
            (&[0x23, 0x1c], PeekError::Malformed),
            (&deep, PeekError::Malformed),
            (&[0x26], PeekError::Malformed),
            (&[0x12, 2, 0xc3, 0x28], PeekError::NotUtf8 { field: 2 }),
        ];
        for (message, error) in cases {
            assert_eq!(peek(&cut(message, 100)), Err(error), "{message:x?}");
        }
        assert_eq!(peek(&cut(&long, 100)), Err(PeekError::TooLong { field: 2 }));
    }
}
