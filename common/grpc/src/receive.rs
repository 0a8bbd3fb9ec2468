//! Takes the single message of a unary call, and its trailers, out of an HTTP/2 body.

use std::time::Duration;

use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use porch_fn_proto::{Chunks, FrameError, FrameReader};
use tokio::time::timeout;

use super::inflight::{Arrived, Refused};

/// What a body held.
#[derive(Debug)]
pub struct Received {
    /// The message with its prefix, as the slices it arrived in. Empty when the body had no bytes.
    pub framed: Chunks,
    /// Whether the message is compressed.
    pub compressed: bool,
    /// The trailers, if any were sent.
    pub trailers: Option<HeaderMap>,
}

/// A good part of a message, in bytes.
const PART: usize = 256 * 1024;

/// Why a body could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// It is not one whole message within the limit.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It is not taken, as large as it is announced to be.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Nothing of it came for this long.
    #[error("nothing of the message came for {0:?}")]
    Silent(Duration),
    /// The stream or its connection broke.
    #[error("the body broke off")]
    Body(#[source] hyper::Error),
}

/// Reads `body` to its end. Holds at most `limit` bytes of message, and fails as soon as the prefix
/// announces more, or when nothing comes for `silence`. `arrived` is told what is there, and may
/// refuse it.
pub async fn receive(
    mut body: Incoming,
    limit: usize,
    silence: Duration,
    mut arrived: impl FnMut(Arrived) -> Result<(), Refused>,
) -> Result<Received, ReceiveError> {
    // Bytes that were there when `arrived` was told the last time.
    let mut told = None;
    let mut reader = FrameReader::new(limit);
    let mut trailers = None;
    while let Some(frame) = timeout(silence, body.frame()).await.map_err(|_| ReceiveError::Silent(silence))? {
        match frame.map_err(ReceiveError::Body)?.into_data() {
            Ok(data) => {
                reader.push(data)?;
                match (reader.announced(), told) {
                    (Some(size), None) => arrived(Arrived::Prefix(size))?,
                    (Some(_), Some(told)) if reader.held() >= told + PART => arrived(Arrived::Part)?,
                    _ => continue,
                }
                told = Some(reader.held());
            }
            Err(other) => trailers = other.into_trailers().ok(),
        }
    }
    let (framed, compressed) = if reader.held() == 0 { Default::default() } else { reader.finish()? };
    Ok(Received { framed, compressed, trailers })
}
