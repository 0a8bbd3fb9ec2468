//! Answers the streams of a connection, and counts them.
//!
//! A caller may take its answer slowly, but not for ever: an answer whose caller takes no byte for
//! [`UNREAD`], or that is not written [`UNREAD`] after its call's deadline, is reset. That frees
//! HTTP/2's buffers and the call's bytes in flight.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::outgoing::Outgoing;
use crate::reply::Body;

/// How long a caller may read nothing of its answer.
const UNREAD: Duration = Duration::from_mins(1);

/// The activity on a connection.
#[derive(Debug)]
pub(crate) struct Activity {
    /// How many streams it has, and when the last one ended.
    streams: Mutex<(usize, Instant)>,
    /// Cancelled when the connection must end. It gets a GOAWAY then, and ends some seconds later if it
    /// has no stream.
    pub(crate) ending: CancellationToken,
}

/// A stream that counts as activity of its connection until this is dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<Activity>);

/// Waits for the answer to a request, and sends it. Drops `answer` when the stream ends before.
pub(crate) async fn respond(
    mut answer: impl Future<Output = Response<Body>> + Unpin,
    mut reply: SendResponse<Outgoing>,
    open: Open,
) {
    let response = tokio::select! {
        biased;
        // First, so that nothing is started for a caller that has cancelled in the same moment.
        _ = poll_fn(|context| reply.poll_reset(context)) => return,
        response = &mut answer => response,
    };
    drop(answer);
    if let Err(error) = send(response, reply, open).await {
        tracing::debug!(%error, "an answer was not sent");
    }
}

async fn send(
    response: Response<Body>,
    mut reply: SendResponse<Outgoing>,
    open: Open,
) -> Result<(), h2::Error> {
    let (head, body) = response.into_parts();
    let head = Response::from_parts(head, ());
    match body {
        Body::Message { framed, trailers, deadline } => {
            let is_last = !framed.has_remaining() && trailers.is_none();
            let mut stream = reply.send_response(head, is_last)?;
            if is_last {
                Ok(())
            } else {
                deliver(&mut stream, framed, true, trailers, deadline + UNREAD).await
            }
        }
        Body::Service { mut body, is_watch } => {
            // A connection with only health streams is idle.
            let _open = Some(open).filter(|_| !is_watch);
            let mut stream = reply.send_response(head, false)?;
            loop {
                let frame = tokio::select! {
                    frame = body.frame() => frame,
                    _ = poll_fn(|context| stream.poll_reset(context)) => return Ok(()),
                };
                let Some(Ok(frame)) = frame else { return stream.send_data(Outgoing::default(), true) };
                match frame.into_data() {
                    Ok(data) => {
                        let ends_by = Instant::now() + UNREAD;
                        deliver(&mut stream, data.into(), false, None, ends_by).await?;
                    }
                    Err(frame) => return stream.send_trailers(frame.into_trailers().unwrap_or_default()),
                }
            }
        }
    }
}

/// Queues a message, and waits until it is written or its time is over.
async fn deliver(
    stream: &mut SendStream<Outgoing>,
    mut framed: Outgoing,
    is_last: bool,
    trailers: Option<HeaderMap>,
    ends_by: Instant,
) -> Result<(), h2::Error> {
    let written = framed.track();
    stream.send_data(framed, is_last && trailers.is_none())?;
    if let Some(trailers) = trailers {
        stream.send_trailers(trailers)?;
    }
    while let Some(progress) = written.progress() {
        if timeout_at(ends_by.min(Instant::now() + UNREAD), progress).await.is_err() {
            tracing::debug!("dropped an answer that its caller does not read");
            stream.send_reset(Reason::CANCEL);
            break;
        }
    }
    Ok(())
}

// === impl Activity ===

impl Activity {
    /// An activity without streams.
    pub(crate) fn new(ending: CancellationToken) -> Arc<Self> {
        Arc::new(Self { streams: Mutex::new((0, Instant::now())), ending })
    }

    /// Completes when the connection has had no stream for `time`, counted from `since` at the
    /// earliest.
    pub(crate) async fn idle_for(&self, time: Duration, since: Instant) {
        loop {
            let due = self.idle_since().unwrap_or_else(Instant::now).max(since) + time;
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }

    /// When the last stream ended; `None` if there is a stream now.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let (streams, idle_since) = *self.streams.lock();
        (streams == 0).then_some(idle_since)
    }
}

// === impl Open ===

impl Open {
    pub(crate) fn new(activity: &Arc<Activity>) -> Self {
        activity.streams.lock().0 += 1;
        Self(Arc::clone(activity))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut activity = self.0.streams.lock();
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
        let (start, activity) = (Instant::now(), Activity::new(CancellationToken::new()));
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
