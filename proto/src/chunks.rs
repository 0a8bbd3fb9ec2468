//! A message as the slices it arrived in.
//!
//! HTTP/2 delivers a 5 MiB package in about 300 DATA frames. Joining them would copy the package
//! once per hop and double its memory. So the frames stay separate. An
//! offset counts bytes as if they were joined.

use std::ops::Range;

use bytes::{Buf, Bytes};

/// An immutable sequence of bytes in one or more reference-counted slices. Cloning and slicing copy
/// no payload.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    /// No part is empty.
    parts: Vec<Bytes>,
    len: usize,
}

/// Reads a message from its beginning.
#[derive(Debug)]
pub struct Reader<'a> {
    parts: &'a [Bytes],
    /// Number of bytes already read from the first part.
    read: usize,
    remaining: usize,
}

impl Chunks {
    /// Appends a slice. Ignores an empty slice.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The slices in order.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Returns the bytes of `range`, cut at the end of the message. Does not copy them.
    pub fn slice(&self, range: Range<usize>) -> Chunks {
        let mut out = Chunks::default();
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.len();
            let (from, to) = (range.start.clamp(start, end), range.end.clamp(start, end));
            if from < to {
                out.push(part.slice(from - start..to - start));
            }
            start = end;
        }
        out
    }

    /// Returns a reader at the first byte.
    pub fn reader(&self) -> Reader<'_> {
        Reader { parts: &self.parts, read: 0, remaining: self.len }
    }

    /// Returns all bytes as one slice. Copies only if there are several parts.
    pub fn contiguous(&self) -> Bytes {
        match &self.parts[..] {
            [one] => one.clone(),
            parts => parts.concat().into(),
        }
    }
}

impl Buf for Reader<'_> {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.parts.first().map_or(&[], |part| &part[self.read..])
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining, "past the end of a message");
        self.remaining -= count;
        self.read += count;
        while let [first, rest @ ..] = self.parts
            && self.read >= first.len()
        {
            self.read -= first.len();
            self.parts = rest;
        }
    }
}

impl From<Bytes> for Chunks {
    fn from(bytes: Bytes) -> Self {
        std::iter::once(bytes).collect()
    }
}

impl FromIterator<Bytes> for Chunks {
    fn from_iter<I: IntoIterator<Item = Bytes>>(parts: I) -> Self {
        let mut chunks = Chunks::default();
        parts.into_iter().for_each(|part| chunks.push(part));
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
            // The slice shares the payload.
            if let [first, ..] = slice.parts() {
                let pointers = |part: &Bytes| part.as_ptr_range();
                prop_assert!(chunks.parts().iter().map(pointers).any(|part| part.contains(&first.as_ptr())));
            }
        }
    }
}
