//! Joins the small reads and writes of HTTP/2 into large ones.
//!
//! h2 flushes after each DATA frame, and reads a few KiB at a time. So one call would cost several
//! system calls in each direction, and a package of 1 MiB hundreds. A [`Cork`] collects what a
//! connection writes while it is polled, and writes it when the connection has nothing more to do.
//!
//! It also is where a connection's share of the thread ends: after a [`SLICE`], other tasks run first.
//! And it ends a peer that floods ([`Ended::Flood`]).

use std::fmt::Debug;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use crate::frames::{Frames, Kind, PREFACE, Tally};

/// A byte stream: plain TCP or TLS.
pub trait Stream: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Debug + Send + Unpin> Stream for S {}

/// Size of one read, in bytes. A longer payload is read directly to where it is needed.
const READ: usize = 64 * 1024;
/// The most bytes that wait for the end of a poll. A write that does not fit is passed on at once,
/// without a copy.
const WRITE: usize = 64 * 1024;
/// Room for the first write of a poll, in bytes. Most polls write less.
const FIRST_WRITE: usize = 16 * 1024;
/// The most slices of one write. h2 passes on at most 64.
const SLICES: usize = 65;

/// The most that a connection is given at one time, in bytes of the peer.
const SLICE: usize = 1280 * 1024;
/// A frame counts as this many bytes more, so that a slice has at most 256.
const FRAME_WEIGHT: usize = 5 * 1024;
/// A byte of compressed headers counts as many: it may stand for a field of 72 bytes in memory.
const HEADERS_WEIGHT: usize = 32;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The peer sends too many frames that carry no call.
    #[error(
        "the peer changed its settings more than 20 times, or sent 1,000 control frames without a call, in 10 s"
    )]
    Flood,
    /// HTTP/2 or the stream below it failed.
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

/// A byte stream with buffers. A connection has one handle, whose flush does nothing. The task that
/// polls the connection has another, by which it writes what the connection has left.
#[derive(Debug, Clone)]
pub struct Cork(Arc<Mutex<Buffers>>);

#[derive(Debug)]
struct Buffers {
    stream: Box<dyn Stream>,
    /// Bytes that the connection has not taken yet. It has no memory while the connection waits.
    unread: BytesMut,
    /// Bytes that the stream has not taken yet. It has no memory while the connection waits.
    unwritten: BytesMut,
    /// An error of a flush. The connection gets it from its next read or write.
    error: Option<io::Error>,
    read_at: Instant,
    /// The frames in both directions.
    incoming: Frames,
    outgoing: Frames,
    tally: Tally,
    is_flooded: bool,
    /// What is left of the slice.
    left: usize,
    /// The slice is over, and a task begins the next one.
    is_resting: bool,
}

// === impl Cork ===

impl Cork {
    /// Puts buffers before the stream of a client. It may send as many headers as it likes: each one
    /// begins or ends a call.
    pub fn server(stream: Box<dyn Stream>) -> Self {
        Self::new(stream, PREFACE, 0, u32::MAX)
    }

    /// Puts buffers before the stream to a server.
    pub fn client(stream: Box<dyn Stream>) -> Self {
        Self::new(stream, 0, PREFACE, 0)
    }

    fn new(stream: Box<dyn Stream>, incoming: usize, outgoing: usize, headers: u32) -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(Buffers {
            stream,
            unread: BytesMut::new(),
            unwritten: BytesMut::new(),
            error: None,
            read_at: now,
            incoming: Frames::new(incoming),
            outgoing: Frames::new(outgoing),
            tally: Tally::new(now, headers),
            is_flooded: false,
            left: SLICE,
            is_resting: false,
        })))
    }

    /// Polls a connection, and then writes what it has left, unless it has ended or has more to do.
    ///
    /// # Errors
    /// The connection's, or the peer floods the connection, which then reads nothing more.
    pub async fn drive<T>(
        &self,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, h2::Error>>,
    ) -> Result<T, Ended> {
        poll_fn(|context| match poll(context) {
            Poll::Ready(ended) => Poll::Ready(ended.map_err(Ended::Http2)),
            Poll::Pending => self.write(context),
        })
        .await
    }

    /// Writes what the connection has left, and ends its slice.
    fn write<T>(&self, context: &mut Context<'_>) -> Poll<Result<T, Ended>> {
        let mut buffers = self.0.lock();
        if buffers.left > 0 {
            buffers.left = SLICE;
        } else if !buffers.is_resting {
            buffers.is_resting = true;
            let (cork, connection) = (self.clone(), context.waker().clone());
            // The other tasks come first, and those whose bytes have just arrived. The connection's own
            // calls wake it before, and that begins no slice.
            tokio::spawn(async move {
                yield_now().await;
                let mut buffers = cork.0.lock();
                (buffers.left, buffers.is_resting) = (SLICE, false);
                connection.wake();
            });
        }
        if let Poll::Ready(Err(error)) = buffers.poll_flush(context) {
            buffers.error = Some(error);
            context.waker().wake_by_ref();
        }
        if buffers.is_flooded { Poll::Ready(Err(Ended::Flood)) } else { Poll::Pending }
    }

    /// When the last bytes arrived.
    pub fn read_at(&self) -> Instant {
        self.0.lock().read_at
    }
}

// === impl Buffers ===

impl Buffers {
    /// Counts the peer's bytes up to the end of the slice. Returns how many these are.
    fn count(&mut self, bytes: &[u8]) -> usize {
        let now = self.read_at;
        let counted = self.incoming.follow(bytes, |kind, length| {
            let headers = if kind == Kind::Headers { length } else { 0 };
            let weight = headers.saturating_mul(HEADERS_WEIGHT).saturating_add(FRAME_WEIGHT);
            self.left = self.left.saturating_sub(weight);
            self.is_flooded |= self.tally.is_flooded_by(kind, now);
            self.left == 0 || self.is_flooded
        });
        self.left = self.left.saturating_sub(counted);
        counted
    }

    /// Notes that calls make progress if headers or data are among these bytes.
    fn note_written(&mut self, parts: &[IoSlice<'_>], mut written: usize) {
        for part in parts {
            let part = &part[..part.len().min(written)];
            written -= part.len();
            self.outgoing.follow(part, |kind, _| {
                self.tally.sent(kind);
                false
            });
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_flooded || self.left == 0 {
            return Poll::Pending;
        }
        if self.unread.is_empty() {
            if let Some(error) = self.error.take() {
                return Poll::Ready(Err(error));
            }
            let had = buffer.filled().len();
            // Only what is inside of a frame is passed on before it is counted.
            let payload = self.incoming.skip;
            let read = if buffer.remaining().min(payload) >= READ {
                pin!((&mut self.stream).take(payload as u64)).poll_read(context, buffer)
            } else {
                self.unread.reserve(READ);
                poll_read_buf(Pin::new(&mut self.stream), context, &mut self.unread).map_ok(drop)
            };
            if !matches!(read, Poll::Ready(Ok(()))) {
                self.unread = BytesMut::new();
                return read;
            }
            self.read_at = Instant::now();
            self.count(&buffer.filled()[had..]);
        }
        let unread = std::mem::take(&mut self.unread);
        let taken = self.count(&unread[..unread.len().min(buffer.remaining())]);
        buffer.put_slice(&unread[..taken]);
        self.unread = unread;
        self.unread.advance(taken);
        Poll::Ready(Ok(()))
    }

    fn poll_write(&mut self, context: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Err(error));
        }
        let len = parts.iter().map(|part| part.len()).sum();
        if self.unwritten.len().saturating_add(len) <= WRITE {
            if self.unwritten.capacity() == 0 {
                self.unwritten.reserve(FIRST_WRITE);
            }
            for part in parts {
                self.unwritten.extend_from_slice(part);
            }
            self.note_written(parts, len);
            return Poll::Ready(Ok(len));
        }
        loop {
            let waiting = self.unwritten.len();
            let mut slices = [IoSlice::new(&[]); SLICES];
            slices[0] = IoSlice::new(&self.unwritten);
            let count = parts.len().min(SLICES - 1);
            slices[1..=count].copy_from_slice(&parts[..count]);
            let written = Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..=count]);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written if written > waiting => {
                    self.unwritten.clear();
                    self.note_written(parts, written - waiting);
                    return Poll::Ready(Ok(written - waiting));
                }
                written => self.unwritten.advance(written),
            }
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unwritten.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(context, &self.unwritten))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.unwritten.advance(written),
            }
        }
        self.unwritten = BytesMut::new();
        Pin::new(&mut self.stream).poll_flush(context)
    }
}

impl AsyncRead for Cork {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.lock().poll_read(context, buffer)
    }
}

impl AsyncWrite for Cork {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().poll_write(context, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().poll_write(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffers = self.0.lock();
        ready!(buffers.poll_flush(context))?;
        Pin::new(&mut buffers.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncWriteExt as _, duplex};
    use tokio_test::io::Builder;

    use super::*;

    /// Polls `connection` to its end, like the task of a connection.
    async fn run<F: Future>(cork: &Cork, connection: F) -> F::Output {
        let mut connection = std::pin::pin!(connection);
        cork.drive(|context| connection.as_mut().poll(context).map(Ok)).await.expect("no flood")
    }

    #[tokio::test]
    async fn small_writes_of_one_poll_are_one_write() {
        // The mock accepts exactly these reads and writes.
        let mock = Builder::new().read(b"go").write(b"abc").read(b"on").write(b"d").build();
        let cork = Cork::server(Box::new(mock));
        let mut corked = cork.clone();
        run(&cork, async {
            let mut buffer = [0; 2];
            corked.read_exact(&mut buffer).await.unwrap();
            for part in [b"a", b"b", b"c"] {
                corked.write_all(part).await.unwrap();
                corked.flush().await.unwrap();
            }
            corked.read_exact(&mut buffer).await.unwrap();
            corked.write_all(b"d").await.unwrap();
            corked.shutdown().await.unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn an_error_of_a_flush_reaches_the_connection() {
        let mock = Builder::new().write_error(io::ErrorKind::TimedOut.into()).wait(MINUTE).build();
        let cork = Cork::server(Box::new(mock));
        let mut corked = cork.clone();
        let error = run(&cork, async {
            corked.write_all(b"a").await.unwrap();
            corked.read_u8().await.unwrap_err()
        });
        assert_eq!(error.await.kind(), io::ErrorKind::TimedOut);
    }

    const MINUTE: std::time::Duration = std::time::Duration::from_mins(1);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn bytes_arrive_in_order(sizes in prop::collection::vec(0..3 * WRITE, 1..8), room in 1..2 * READ) {
            let sent: Vec<u8> = (0..sizes.iter().sum::<usize>()).map(|n| (n / 251) as u8).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let received = runtime.block_on(async {
                let (ours, theirs) = duplex(room);
                let echo = async {
                    let (mut reader, mut writer) = tokio::io::split(theirs);
                    tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                    writer.shutdown().await.unwrap();
                };
                let cork = Cork::server(Box::new(ours));
                let (mut reader, mut writer) = tokio::io::split(cork.clone());
                let write = async {
                    let mut rest = &sent[..];
                    for size in sizes {
                        let (part, after) = rest.split_at(size);
                        writer.write_all(part).await.unwrap();
                        rest = after;
                    }
                    writer.shutdown().await.unwrap();
                };
                let mut received = Vec::new();
                let all = async { tokio::join!(write, reader.read_to_end(&mut received)) };
                let _ = tokio::join!(run(&cork, all), echo);
                received
            });
            prop_assert!(received == sent);
        }
    }
}
