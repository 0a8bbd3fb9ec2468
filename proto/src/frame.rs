//! The five bytes that gRPC puts before each message: a compression flag and a length.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::Chunks;

/// Bytes before a message: one flag byte, and the length in four bytes (big-endian).
pub const PREFIX_LEN: usize = 5;

/// The first slices of a body, up to this number, are stored as they arrive, whatever their size.
const FREE_PARTS: usize = 64;
/// Later slices are joined until they have this many bytes. The memory limits count only the bytes
/// of a slice, not its overhead. Without joining, a body that arrives byte by byte would take forty
/// times its size in memory.
const JOINED: usize = 4 * 1024;

/// Why a body is not one complete message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The announced length exceeds the limit. Returned before the message has arrived.
    #[error("message of {size} bytes is larger than the limit of {limit} bytes")]
    TooLarge {
        /// Announced size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The body ended before the message was complete.
    #[error("the body ended after {have} bytes of a message")]
    Incomplete {
        /// Bytes that arrived, prefix included.
        have: usize,
    },
    /// Bytes followed the message of a unary call.
    #[error("more than one message in a unary call")]
    Extra,
    /// The flag byte is neither 0 nor 1.
    #[error("unknown compression flag {0} in the message prefix")]
    Flag(u8),
}

/// Collects the single message of a unary call from the DATA frames of its body.
#[derive(Debug)]
pub struct FrameReader {
    limit: usize,
    body: Chunks,
    /// Small slices that follow `body`, joined.
    small: BytesMut,
    /// Compression flag and message length, once the prefix has arrived.
    prefix: Option<(bool, usize)>,
}

impl FrameReader {
    /// Creates a reader that rejects messages longer than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, body: Chunks::default(), small: BytesMut::new(), prefix: None }
    }

    /// Adds the next slice of the body.
    pub fn push(&mut self, data: Bytes) -> Result<(), FrameError> {
        self.keep(data);
        // The prefix is in `body`, because the first slices are never joined.
        if self.prefix.is_none() && self.body.len() >= PREFIX_LEN {
            let mut head = self.body.reader();
            let (flag, size) = (head.get_u8(), head.get_u32() as usize);
            if flag > 1 {
                return Err(FrameError::Flag(flag));
            }
            if size > self.limit {
                return Err(FrameError::TooLarge { size, limit: self.limit });
            }
            self.prefix = Some((flag == 1, size));
        }
        match self.prefix {
            Some((_, size)) if self.held() > PREFIX_LEN + size => Err(FrameError::Extra),
            _ => Ok(()),
        }
    }

    fn keep(&mut self, data: Bytes) {
        if self.body.parts().len() < FREE_PARTS {
            self.body.push(data);
        } else if data.len() < JOINED {
            self.small.extend_from_slice(&data);
            if self.small.len() >= JOINED {
                self.join();
            }
        } else {
            self.join();
            self.body.push(data);
        }
    }

    fn join(&mut self) {
        self.body.push(self.small.split().freeze());
    }

    /// The length of the message without its prefix. `None` until the prefix has arrived.
    pub fn announced(&self) -> Option<usize> {
        self.prefix.map(|(_, size)| size)
    }

    /// Number of bytes received so far, prefix included.
    pub fn held(&self) -> usize {
        self.body.len() + self.small.len()
    }

    /// Returns the whole body, with the prefix, and whether its message is compressed.
    pub fn finish(mut self) -> Result<(Chunks, bool), FrameError> {
        self.join();
        match self.prefix {
            Some((compressed, size)) if self.body.len() == PREFIX_LEN + size => Ok((self.body, compressed)),
            _ => Err(FrameError::Incomplete { have: self.body.len() }),
        }
    }
}

/// Adds the prefix of an uncompressed message. Does not copy the message.
///
/// gRPC cannot express a message above `u32::MAX` bytes; `--max-request-body-size` keeps messages
/// far below that.
pub fn frame(message: Chunks) -> Chunks {
    let mut prefix = BytesMut::with_capacity(PREFIX_LEN);
    prefix.put_u8(0);
    prefix.put_u32(message.len() as u32);
    std::iter::once(prefix.freeze()).chain(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &[u8], cut: usize, limit: usize) -> Result<(Vec<u8>, bool), FrameError> {
        let mut reader = FrameReader::new(limit);
        for part in body.chunks(cut.max(1)) {
            reader.push(Bytes::copy_from_slice(part))?;
        }
        reader.finish().map(|(body, compressed)| (body.contiguous().to_vec(), compressed))
    }

    proptest! {
        #[test]
        fn reads_a_framed_message_in_any_slices(
            message in prop::collection::vec(any::<u8>(), 0..40), cut in 1usize..50,
        ) {
            let body = frame(Bytes::from(message).into()).contiguous();
            prop_assert_eq!(read(&body, cut, 40), Ok((body.to_vec(), false)));
        }
    }

    #[test]
    fn tiny_slices_of_a_body_are_joined() {
        let message: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        let body = frame(Bytes::from(message).into()).contiguous();
        // `most` limits the number of parts of a body that arrives in slices of `cut` bytes.
        for (cut, most) in [(1, 64 + 25), (100, 64 + 25), (4096, 25), (16 * 1024, 7)] {
            let mut reader = FrameReader::new(body.len());
            for part in body.chunks(cut) {
                reader.push(body.slice_ref(part)).unwrap();
            }
            assert_eq!(reader.held(), body.len());
            let (held, _) = reader.finish().unwrap();
            assert!(held.parts().len() <= most, "{cut}: {}", held.parts().len());
            assert_eq!(held.contiguous(), body, "{cut}");
        }
        // Large slices between small slices keep their order.
        let parts: Vec<_> = (0..200).map(|n| vec![n; if n % 2 == 0 { 3 } else { 5000 }]).collect();
        let message = frame(parts.iter().cloned().map(Bytes::from).collect()).contiguous();
        let mut reader = FrameReader::new(message.len());
        reader.push(message.slice(..PREFIX_LEN)).unwrap();
        for part in &parts {
            reader.push(Bytes::copy_from_slice(part)).unwrap();
        }
        assert_eq!(reader.finish().unwrap().0.contiguous(), message);
    }

    #[test]
    fn anything_but_one_message_is_rejected() {
        let cases: [(&[u8], FrameError); 6] = [
            (b"", FrameError::Incomplete { have: 0 }),
            (&[0, 0, 0], FrameError::Incomplete { have: 3 }),
            (&[0, 0, 0, 0, 2, 9], FrameError::Incomplete { have: 6 }),
            (&[0, 0, 0, 0, 1, 9, 9], FrameError::Extra),
            (&[2, 0, 0, 0, 0], FrameError::Flag(2)),
            (&[0, 0, 0, 1, 0], FrameError::TooLarge { size: 256, limit: 10 }),
        ];
        for (body, error) in cases {
            assert_eq!(read(body, 50, 10), Err(error));
        }
        let mut reader = FrameReader::new(10);
        for (part, announced) in [(&[0, 0, 0][..], None), (&[0, 7], Some(7)), (&[1, 2], Some(7))] {
            reader.push(Bytes::from_static(part)).unwrap();
            assert_eq!(reader.announced(), announced);
        }
        assert_eq!(read(&[1, 0, 0, 0, 0], 1, 10), Ok((vec![1, 0, 0, 0, 0], true)));
    }
}
