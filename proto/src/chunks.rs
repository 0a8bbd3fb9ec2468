//! A message as the slices it arrived in.
//!
//! HTTP/2 delivers a 5 MiB package in about 300 DATA frames. To join them would copy the package once
//! per hop and double its memory, so they stay separate and are addressed by offset.

use std::ops::Range;

use bytes::{Buf, Bytes};

/// An immutable sequence of bytes in one or more reference-counted slices.
///
/// Cloning and slicing copy no payload. Offsets are found by binary search, so a read near the end of
/// a large message costs the same as a read near its start.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    parts: Vec<Bytes>,
    /// `ends[i]` is the offset after `parts[i]`.
    ends: Vec<usize>,
}

impl Chunks {
    /// Appends a slice; an empty one is left out.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.ends.push(self.len() + part.len());
            self.parts.push(part);
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The slices in order.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// The bytes of `range`, cut off at the end of the message. Shares the payload.
    pub fn slice(&self, range: Range<usize>) -> Chunks {
        let mut out = Chunks::default();
        let mut at = range.start;
        while at < range.end.min(self.len()) {
            let (index, within) = self.locate(at);
            let part = &self.parts[index];
            let part = part.slice(within..part.len().min(within + (range.end - at)));
            at += part.len();
            out.push(part);
        }
        out
    }

    /// Reads from the first byte on.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { chunks: self, offset: 0 }
    }

    /// All bytes as one slice. Copies only if there is more than one part.
    pub fn contiguous(&self) -> Bytes {
        match &self.parts[..] {
            [one] => one.clone(),
            parts => parts.concat().into(),
        }
    }

    /// The part with the byte at `offset`, and the byte's index in it. There must be such a byte.
    fn locate(&self, offset: usize) -> (usize, usize) {
        let index = match self.ends[..] {
            // The common cases: a small message or the start of a large one, and the fields after a package.
            [first, ..] if offset < first => 0,
            [.., before, _] if offset >= before => self.ends.len() - 1,
            _ => self.ends.partition_point(|&end| end <= offset),
        };
        (index, offset + self.parts[index].len() - self.ends[index])
    }
}

/// A message from an offset on. To skip bytes costs a binary search at most.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    chunks: &'a Chunks,
    /// At most the message's length.
    offset: usize,
}

impl Buf for Reader<'_> {
    fn remaining(&self) -> usize {
        self.chunks.len() - self.offset
    }

    fn chunk(&self) -> &[u8] {
        if self.remaining() == 0 {
            return &[];
        }
        let (index, within) = self.chunks.locate(self.offset);
        &self.chunks.parts[index][within..]
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "past the end of a message");
        self.offset += count;
    }
}

impl From<Bytes> for Chunks {
    fn from(bytes: Bytes) -> Self {
        let mut chunks = Chunks::default();
        chunks.push(bytes);
        chunks
    }
}

impl FromIterator<Bytes> for Chunks {
    fn from_iter<I: IntoIterator<Item = Bytes>>(parts: I) -> Self {
        let mut chunks = Chunks::default();
        for part in parts {
            chunks.push(part);
        }
        chunks
    }
}

impl IntoIterator for Chunks {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.parts.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_as_the_joined_bytes(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..8),
            start in 0usize..50,
            len in 0usize..50,
        ) {
            let joined: Vec<u8> = parts.concat();
            let chunks: Chunks = parts.into_iter().map(Bytes::from).collect();
            prop_assert_eq!(chunks.len(), joined.len());
            prop_assert_eq!(&chunks.contiguous()[..], &joined[..]);
            let end = (start + len).min(joined.len());
            let start = start.min(end);
            let slice = chunks.slice(start..start + len);
            prop_assert_eq!(&slice.contiguous()[..], &joined[start..end]);
            let mut reader = chunks.reader();
            reader.advance(start);
            prop_assert_eq!(reader.remaining(), joined.len() - start);
            prop_assert_eq!(&reader.copy_to_bytes(end - start)[..], &joined[start..end]);
            // It shares the payload.
            if let [first, ..] = slice.parts() {
                let pointers = |part: &Bytes| part.as_ptr_range();
                prop_assert!(chunks.parts().iter().map(pointers).any(|part| part.contains(&first.as_ptr())));
            }
        }
    }
}
