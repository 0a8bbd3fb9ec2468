//! The fake runner's TCP connection, and the faults that its HTTP/2 library cannot cause.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Length of an HTTP/2 frame's header in bytes.
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const GOAWAY: u8 = 7;

#[derive(Debug, Default)]
pub(super) struct Control {
    cut: Notify,
    go_away: Notify,
    go_away_at_next_call: AtomicBool,
    hung: AtomicBool,
}

impl Control {
    pub(super) fn cut(&self) {
        self.cut.notify_one();
    }

    pub(super) async fn wait_cut(&self) {
        self.cut.notified().await;
    }

    pub(super) fn go_away(&self) {
        self.go_away.notify_one();
    }

    pub(super) async fn wait_go_away(&self) {
        self.go_away.notified().await;
    }

    pub(super) fn go_away_at_next_call(&self) {
        self.go_away_at_next_call.store(true, Ordering::SeqCst);
    }

    pub(super) fn hang(&self) {
        self.hung.store(true, Ordering::SeqCst);
    }
}

/// A TCP stream with the faults that its [`Control`] requests.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    control: Arc<Control>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, control: Arc<Control>) -> Self {
        Self { stream, control }
    }

    fn is_hung(&self) -> bool {
        self.control.hung.load(Ordering::SeqCst)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_hung() {
            // No waker is registered, so the task never continues.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready()
            && self.control.go_away_at_next_call.load(Ordering::SeqCst)
            && let Some(stream_id) = first_new_stream(&buffer.filled()[before..])
        {
            // Discards the bytes of the call. The HTTP/2 library then reads zero bytes, which means
            // the end of the connection. Client streams have odd IDs, so the last stream that the
            // GOAWAY frame covers is `stream_id - 2`. One write can send the whole frame.
            buffer.set_filled(before);
            let _ = self.stream.try_write(&go_away_frame(stream_id - 2));
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_hung() { Poll::Pending } else { Pin::new(&mut self.stream).poll_write(context, bytes) }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The stream of the first HEADERS frame in `bytes`. The first byte must begin a frame.
fn first_new_stream(mut bytes: &[u8]) -> Option<u32> {
    while let Some((head, rest)) = bytes.split_at_checked(FRAME_HEAD) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if head[3] == HEADERS {
            return Some(u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        }
        bytes = rest.get(length..)?;
    }
    None
}

fn go_away_frame(last_stream_id: u32) -> Vec<u8> {
    const NO_ERROR: [u8; 4] = [0; 4];
    let mut frame = vec![0, 0, 8, GOAWAY, 0, 0, 0, 0, 0];
    frame.extend(last_stream_id.to_be_bytes());
    frame.extend(NO_ERROR);
    frame
}
