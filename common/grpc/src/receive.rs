//! Reads the single message of a unary call, and its trailers, from an HTTP/2 body.

use std::io;
use std::time::Duration;

use http::HeaderMap;
use http_body_util::BodyExt;
use porch_fn_proto::{Chunks, FrameError, FrameReader};
use tokio::time::timeout;

use super::inflight::{Charge, Refused};
use crate::Incoming;

/// The content of a body.
#[derive(Debug)]
pub struct Received {
    /// The message with its prefix, as the slices it arrived in. Empty if the body had no bytes.
    pub framed: Chunks,
    /// Whether the message is compressed.
    pub compressed: bool,
    /// The trailers, if any were sent.
    pub trailers: Option<HeaderMap>,
}

/// [`receive`] records progress after each part of at least this size, in bytes.
const PART: usize = 16 * 1024;

/// Why a body was not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The body is not one whole message within the limit.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The message was refused for its announced size, or because it arrived too slowly.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No bytes arrived for this long.
    #[error(
        "no bytes of the message arrived for {0:?}: the caller, or a proxy before it, stopped sending; retry"
    )]
    Silent(Duration),
    /// The stream or its connection failed.
    #[error("the request was interrupted")]
    Body(#[source] h2::Error),
    /// The body has no bytes.
    #[error("a unary call without a message")]
    Empty,
    /// The message is compressed, and its headers do not say how.
    #[error("grpc: compressed flag set with identity or empty encoding")]
    NoEncoding,
    /// The message is compressed, and not by gzip.
    #[error(
        "grpc: the message is compressed in a way that this server does not know; it accepts gzip and identity"
    )]
    Encoding,
    /// The inflated message is larger than this limit in bytes.
    #[error("the inflated message is larger than {0} bytes")]
    Inflated(usize),
    /// The message cannot be inflated.
    #[error("the message is not valid gzip: {0}")]
    Corrupt(#[source] io::Error),
}

/// Reads `body` to its end. Holds at most `limit` bytes of message. Fails as soon as the prefix
/// announces more, or when no bytes arrive for `silence`. `charge` pays for the message, and may
/// refuse it.
///
/// # Errors
/// [`ReceiveError`].
pub async fn receive(
    mut body: Incoming,
    limit: usize,
    silence: Duration,
    charge: &mut Charge,
) -> Result<Received, ReceiveError> {
    // How many bytes `reader` held when `charge` was last told.
    let mut reported = None;
    let mut reader = FrameReader::new(limit);
    let mut trailers = None;
    while let Some(frame) = timeout(silence, body.frame()).await.map_err(|_| ReceiveError::Silent(silence))? {
        match frame.map_err(ReceiveError::Body)?.into_data() {
            Ok(data) => {
                reader.push(data)?;
                match (reader.announced(), reported) {
                    (Some(size), None) => charge.announced(size)?,
                    (Some(_), Some(reported)) if reader.held() >= reported + PART => charge.progressed()?,
                    _ => continue,
                }
                reported = Some(reader.held());
            }
            Err(other) => trailers = other.into_trailers().ok(),
        }
    }
    let (framed, compressed) = if reader.held() == 0 { Default::default() } else { reader.finish()? };
    Ok(Received { framed, compressed, trailers })
}
