//! Inflates a gzip-compressed message, within the same limit as a plain one.

use std::io::{self, Read};

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use porch_fn_proto::Chunks;

use super::inflight::{Charge, Refused};

/// Why a compressed message cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum InflateError {
    #[error("the inflated message is larger than {0} bytes")]
    TooLarge(usize),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the message is not valid gzip: {0}")]
    Corrupt(#[source] io::Error),
}

/// Inflates `message` to at most `limit` bytes, each of which is charged before it is kept. Runs for milliseconds on a large one: not for a thread
/// that other calls wait on.
pub(super) fn inflate(message: &Chunks, limit: usize, charge: &mut Charge) -> Result<Bytes, InflateError> {
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
            n => {
                charge.grow(n)?;
                out.extend_from_slice(&buffer[..n]);
            }
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
    use super::super::inflight::{CALL_OVERHEAD, Hop, Inflight};
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
        let mut free = Charge::default();
        assert_eq!(inflate(&deflate(&plain), 200_000, &mut free).unwrap(), plain);
        assert!(matches!(
            inflate(&deflate(&plain), 199_999, &mut free),
            Err(InflateError::TooLarge(199_999))
        ));
    }

    #[test]
    fn inflates_no_more_than_may_be_in_flight() {
        let message = deflate(&vec![b'x'; 200_000]);
        for (limit, fits) in [(200_000, true), (199_999, false)] {
            let mut charge = Inflight::new(limit + CALL_OVERHEAD, Hop::Runner).enter(0).unwrap();
            charge.received().unwrap();
            let inflated = inflate(&message, 1_000_000, &mut charge);
            assert_eq!(inflated.is_ok(), fits);
            assert!(fits || matches!(inflated, Err(InflateError::Refused(_))), "{inflated:?}");
        }
    }

    #[test]
    fn refuses_noise() {
        let noise: Chunks = Bytes::from_static(b"not gzip at all").into();
        assert!(matches!(inflate(&noise, 100, &mut Charge::default()), Err(InflateError::Corrupt(_))));
    }
}
