//! A message as the slices it arrived in.
//!
//! HTTP/2 delivers a 5 MiB package in some 300 DATA frames. Joining them would copy the package once
//! per hop and double the memory it holds, so they stay apart and are addressed by offset.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// An immutable sequence of bytes in one or more reference-counted slices.
///
/// Cloning and slicing copy no payload. Offsets are found by binary search, so that reading near the
/// end of a large message costs the same as reading near its start.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    parts: Vec<Bytes>,
    /// `ends[i]` is the offset just past `parts[i]`.
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
        let end = range.end.min(self.len());
        let mut at = range.start;
        while at < end {
            let Some((index, within)) = self.locate(at) else { break };
            let part = &self.parts[index];
            let take = (end - at).min(part.len() - within);
            out.push(part.slice(within..within + take));
            at += take;
        }
        out
    }

    /// Reads from the first byte on.
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { chunks: self, index: 0, within: 0 }
    }

    /// All bytes as one slice. Copies only when there is more than one part.
    pub fn contiguous(&self) -> Bytes {
        match self.parts.as_slice() {
            [] => Bytes::new(),
            [one] => one.clone(),
            parts => {
                let mut joined = BytesMut::with_capacity(self.len());
                for part in parts {
                    joined.extend_from_slice(part);
                }
                joined.freeze()
            }
        }
    }

    /// The part that holds `offset`, and where in it.
    fn locate(&self, offset: usize) -> Option<(usize, usize)> {
        let index = match self.ends.first() {
            // The common cases: a small message, or the start of a large one.
            Some(&first) if offset < first => 0,
            _ => self.ends.partition_point(|&end| end <= offset),
        };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        (index < self.parts.len()).then(|| (index, offset - start))
    }
}

/// A place in a message. Reading on costs nothing, skipping a binary search at most.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    chunks: &'a Chunks,
    index: usize,
    /// Within `parts[index]`, and its length at most.
    within: usize,
}

impl Cursor<'_> {
    /// Offset of the next byte.
    pub(crate) fn offset(&self) -> usize {
        let start = match self.index {
            0 => 0,
            index => self.chunks.ends[index - 1],
        };
        start + self.within
    }

    /// The next byte; `None` at the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        // No part is empty, so one step over its end suffices.
        let part = self.chunks.parts.get(self.index)?;
        let (part, within) = match self.within {
            within if within < part.len() => (part, within),
            _ => {
                let next = self.chunks.parts.get(self.index + 1)?;
                self.index += 1;
                (next, 0)
            }
        };
        self.within = within + 1;
        part.get(within).copied()
    }

    /// Goes `len` bytes further; `None`, and nowhere, when that is past the end.
    pub(crate) fn skip(&mut self, len: usize) -> Option<()> {
        let part = self.chunks.parts.get(self.index).map_or(0, Bytes::len);
        if len <= part - self.within {
            self.within += len;
            return Some(());
        }
        let target = self.offset().checked_add(len)?;
        let ends = &self.chunks.ends;
        // What stands behind a large field is most often all in the last part.
        let index = match ends.as_slice() {
            [.., before, last] if *before < target && target <= *last => ends.len() - 1,
            ends => ends.partition_point(|&end| end < target),
        };
        let end = *ends.get(index)?;
        self.index = index;
        self.within = self.chunks.parts[index].len() - (end - target);
        Some(())
    }

    /// The next `len` bytes as one slice, without going there. Copies only when they lie in more than one part.
    pub(crate) fn peek(&self, len: usize) -> Bytes {
        match self.chunks.parts.get(self.index) {
            Some(part) if len <= part.len() - self.within => part.slice(self.within..self.within + len),
            _ => self.chunks.slice(self.offset()..self.offset() + len).contiguous(),
        }
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
            let mut cursor = chunks.cursor();
            for (offset, &byte) in joined.iter().enumerate() {
                prop_assert_eq!(cursor.offset(), offset);
                prop_assert_eq!(cursor.byte(), Some(byte));
            }
            prop_assert_eq!(cursor.byte(), None);
            let mut cursor = chunks.cursor();
            prop_assert_eq!(cursor.skip(start), (start <= joined.len()).then_some(()));
            let skipped = if start <= joined.len() { start } else { 0 };
            prop_assert_eq!(cursor.offset(), skipped);
            prop_assert_eq!(cursor.skip(len), (skipped + len <= joined.len()).then_some(()));
            let skipped = if skipped + len <= joined.len() { skipped + len } else { skipped };
            prop_assert_eq!(cursor.byte(), joined.get(skipped).copied());
            let end = (start + len).min(joined.len());
            let expected = joined.get(start.min(end)..end).unwrap_or_default();
            prop_assert_eq!(&chunks.slice(start..start + len).contiguous()[..], expected);
            let mut cursor = chunks.cursor();
            if cursor.skip(start).is_some() {
                prop_assert_eq!(&cursor.peek(expected.len())[..], expected);
            }
        }
    }

    #[test]
    fn slicing_shares_the_payload() {
        let chunks: Chunks = [Bytes::from_static(b"abc"), Bytes::from_static(b"def")].into_iter().collect();
        let slice = chunks.slice(1..5);
        assert_eq!(slice.parts()[0].as_ptr(), chunks.parts()[0][1..].as_ptr());
    }
}
