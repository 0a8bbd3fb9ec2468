//! A stream that can be ended from outside, in the middle of a read.
//!
//! hyper lets the calls of a connection run on when its handles are gone, and has no way to end them.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Ends the stream that was made with it. Dropping it does not.
#[derive(Debug, Clone)]
pub(super) struct Closer(Arc<Mutex<Option<oneshot::Sender<()>>>>);

/// The stream.
#[derive(Debug)]
pub(super) struct Closable<S> {
    stream: S,
    /// `None`: nobody can close it any more, or it is closed.
    closing: Option<oneshot::Receiver<()>>,
    is_closed: bool,
}

// === impl Closer ===

impl Closer {
    pub(super) fn close(&self) {
        if let Some(sender) = self.0.lock().take() {
            // A stream that is gone needs no end.
            let _ = sender.send(());
        }
    }
}

// === impl Closable ===

impl<S> Closable<S> {
    pub(super) fn new(stream: S) -> (Self, Closer) {
        let (sender, closing) = oneshot::channel();
        (
            Self { stream, closing: Some(closing), is_closed: false },
            Closer(Arc::new(Mutex::new(Some(sender)))),
        )
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Closable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(Poll::Ready(closed)) = self.closing.as_mut().map(|closing| pin!(closing).poll(context)) {
            (self.closing, self.is_closed) = (None, closed.is_ok());
        }
        if self.is_closed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        pin!(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Closable<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        pin!(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        pin!(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_shutdown(context)
    }
}
