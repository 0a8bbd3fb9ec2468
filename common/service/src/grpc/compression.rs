//! Inflates a gzip-compressed message, within the same limit as a plain one.

use std::io::{self, Read};

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use porch_fn_proto::Chunks;

/// Why a compressed message cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum InflateError {
    #[error("the inflated message is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the message is not valid gzip: {0}")]
    Corrupt(#[source] io::Error),
}

/// Inflates `message` to at most `limit` bytes. Runs for milliseconds on a large one: not for a thread
/// that other calls wait on.
pub(super) fn inflate(message: &Chunks, limit: usize) -> Result<Bytes, InflateError> {
    let parts = message.parts().iter().map(|part| &part[..]);
    // One byte past the limit tells "too large" from "just fits".
    let mut plain =
        MultiGzDecoder::new(Concat { parts, current: &[] }).take((limit as u64).saturating_add(1));
    let mut out = BytesMut::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match plain.read(&mut buffer).map_err(InflateError::Corrupt)? {
            0 if out.len() > limit => return Err(InflateError::TooLarge(limit)),
            0 => return Ok(out.freeze()),
            n => out.extend_from_slice(&buffer[..n]),
        }
    }
}

/// Reads one slice after the other.
struct Concat<'a, I> {
    parts: I,
    current: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a [u8]>> Read for Concat<'a, I> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.parts.next() {
                Some(part) => self.current = part,
                None => return Ok(0),
            }
        }
        self.current.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn deflate(plain: &[u8]) -> Chunks {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap().chunks(7).map(Bytes::copy_from_slice).collect()
    }

    #[test]
    fn inflates_up_to_the_limit() {
        let plain = vec![b'x'; 200_000];
        assert_eq!(inflate(&deflate(&plain), 200_000).unwrap(), plain);
        assert!(matches!(inflate(&deflate(&plain), 199_999), Err(InflateError::TooLarge(199_999))));
    }

    #[test]
    fn refuses_noise() {
        let noise: Chunks = Bytes::from_static(b"not gzip at all").into();
        assert!(matches!(inflate(&noise, 100), Err(InflateError::Corrupt(_))));
    }
}
