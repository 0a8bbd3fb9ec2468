//! Inflates a gzip-compressed message, within the limit of a plain message.

use std::io::Read;

use bytes::{Buf, Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use porch_fn_proto::Chunks;
use tokio::task::spawn_blocking;

use crate::inflight::Charge;
use crate::receive::ReceiveError;

/// Like [`inflate`], in a thread that may block. The thread owns the charge (the call's share of
/// the bytes in flight), because the thread continues when the caller disconnects.
pub(super) async fn inflate_apart(
    message: Chunks,
    limit: usize,
    mut charge: Charge,
) -> Result<(Chunks, Charge), ReceiveError> {
    let inflated = spawn_blocking(move || Ok((inflate(&message, limit, &mut charge)?.into(), charge)));
    inflated.await.map_err(|error| ReceiveError::Corrupt(error.into()))?
}

/// Inflates `message` to at most `limit` bytes. Each byte is charged before it is kept. A large
/// message takes milliseconds, so async code calls [`inflate_apart`].
fn inflate(message: &Chunks, limit: usize, charge: &mut Charge) -> Result<Bytes, ReceiveError> {
    // One byte past the limit distinguishes a message that just fits from a larger one.
    let mut plain = MultiGzDecoder::new(message.reader().reader()).take((limit as u64).saturating_add(1));
    let mut out = BytesMut::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match plain.read(&mut buffer).map_err(ReceiveError::Corrupt)? {
            0 if out.len() > limit => return Err(ReceiveError::Inflated(limit)),
            0 => return Ok(out.freeze()),
            n => {
                charge.grow(n)?;
                out.extend_from_slice(&buffer[..n]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;
    use crate::inflight::{CALL_OVERHEAD, Hop, Inflight};

    #[test]
    fn gzip_is_inflated_up_to_the_limit_and_the_bytes_in_flight() {
        const LEN: usize = 200_000;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let plain = vec![b'x'; LEN];
        encoder.write_all(&plain).unwrap();
        let message = encoder.finish().unwrap().chunks(7).map(Bytes::copy_from_slice).collect();
        let mut free = Charge::default();
        assert_eq!(inflate(&message, LEN, &mut free).unwrap(), plain);
        assert!(matches!(inflate(&message, LEN - 1, &mut free), Err(ReceiveError::Inflated(_))));
        for (limit, fits) in [(LEN, true), (LEN - 1, false)] {
            let mut charge = Inflight::new(limit + CALL_OVERHEAD, Hop::Runner).enter(0).unwrap();
            charge.received().unwrap();
            let inflated = inflate(&message, 1_000_000, &mut charge);
            assert_eq!(inflated.is_ok(), fits);
            assert!(fits || matches!(inflated, Err(ReceiveError::Refused(_))), "{inflated:?}");
        }
        let noise: Chunks = Bytes::from_static(b"not gzip at all").into();
        assert!(matches!(inflate(&noise, 100, &mut free), Err(ReceiveError::Corrupt(_))));
    }
}
