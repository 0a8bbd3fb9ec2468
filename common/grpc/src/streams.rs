//! Answers the streams of a connection, and counts them.
//!
//! A stream whose answer makes no progress for [`UNREAD`] is reset, which frees HTTP/2's buffers.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::Response;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::Body;
use crate::body::{Message, send_tonic};
use crate::outgoing::Outgoing;

/// How long a caller may read nothing of its answer.
const UNREAD: Duration = Duration::from_mins(1);
/// Answers up to this size, in bytes, are not watched. Most answers are that small, and their
/// unread part needs little memory.
const SMALL: usize = 16 * 1024;

/// The activity on a connection: how many streams it has, and when the last one ended.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<(usize, Instant)>);

/// A stream that counts as activity of its connection until this is dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<Activity>);

/// Waits for the answer to a request, and sends it. Drops `answer` when the stream ends before.
pub(crate) async fn respond(
    mut answer: impl Future<Output = Response<Body>> + Unpin,
    mut reply: SendResponse<Outgoing>,
    open: Open,
) {
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        _ = poll_fn(|context| reply.poll_reset(context)) => return,
    };
    let sent = match answer.into_parts() {
        (head, Body::Message(message)) => {
            let is_last = !message.framed.has_remaining() && message.trailers.is_none();
            match reply.send_response(Response::from_parts(head, ()), is_last) {
                Ok(_) if is_last => Ok(()),
                Ok(stream) => send_message(message, stream).await,
                Err(error) => Err(error),
            }
        }
        (head, Body::Tonic(body)) => {
            // A connection with only health checks is idle.
            drop(open);
            match reply.send_response(Response::from_parts(head, ()), false) {
                Ok(mut stream) => send_tonic(body, &mut stream).await,
                Err(error) => Err(error),
            }
        }
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "an answer was not sent");
    }
}

async fn send_message(message: Message, mut stream: SendStream<Outgoing>) -> Result<(), h2::Error> {
    let Message { mut framed, trailers } = message;
    let progress = (framed.remaining() > SMALL).then(|| framed.progress());
    if framed.has_remaining() {
        stream.send_data(framed, trailers.is_none())?;
    }
    if let Some(trailers) = trailers {
        stream.send_trailers(trailers)?;
    }
    let Some(progress) = progress else { return Ok(()) };
    let mut due = progress.made_at() + UNREAD;
    loop {
        tokio::select! {
            () = progress.ended() => return Ok(()),
            _ = poll_fn(|context| stream.poll_reset(context)) => return Ok(()),
            () = sleep_until(due) => {}
        }
        if progress.made_at() + UNREAD == due {
            tracing::debug!("dropped an answer that its caller does not read");
            stream.send_reset(Reason::CANCEL);
            return Ok(());
        }
        due = progress.made_at() + UNREAD;
    }
}

// === impl Activity ===

impl Activity {
    /// An activity without streams.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((0, Instant::now()))))
    }

    /// Completes when the connection has had no stream for [`UNREAD`].
    pub(crate) async fn idle_for_long(&self) {
        loop {
            let due = self.idle_since().unwrap_or_else(Instant::now) + UNREAD;
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }

    /// When the last stream ended; `None` if there is a stream now.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let (streams, idle_since) = *self.0.lock();
        (streams == 0).then_some(idle_since)
    }
}

// === impl Open ===

impl Open {
    pub(crate) fn new(activity: &Arc<Activity>) -> Self {
        activity.0.lock().0 += 1;
        Self(Arc::clone(activity))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut activity = self.0.0.lock();
        *activity = (activity.0.saturating_sub(1), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_while_it_has_no_stream() {
        let second = Duration::from_secs(1);
        let (start, activity) = (Instant::now(), Activity::new());
        assert_eq!(activity.idle_since(), Some(start));
        for seconds in [1, 2] {
            let open = Open::new(&activity);
            tokio::spawn(async move {
                sleep(second * seconds).await;
                drop(open);
            });
        }
        sleep(second * 3 / 2).await;
        assert_eq!(activity.idle_since(), None);
        sleep(second).await;
        assert_eq!(activity.idle_since(), Some(start + second * 2));
    }
}
