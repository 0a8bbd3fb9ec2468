//! Answers the streams of a connection, and counts them.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::Response;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::Body;
use crate::body::{Message, send_tonic};
use crate::outgoing::Outgoing;
use crate::unwritten::{UNREAD, Unwritten};

/// The activity on a connection: how many streams it has, and when the last one ended.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<(usize, Instant)>);

/// A stream that counts as activity of its connection until this is dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<Activity>);

/// Waits for the answer to a request, and queues it. Drops `answer` when the stream ends before.
pub(crate) async fn respond(
    mut answer: impl Future<Output = Response<Body>> + Unpin,
    mut reply: SendResponse<Outgoing>,
    open: Open,
    unwritten: Arc<Unwritten>,
) {
    let answer = tokio::select! {
        biased;
        // First, so that nothing is started for a caller that has cancelled in the same moment.
        _ = poll_fn(|context| reply.poll_reset(context)) => return,
        answer = &mut answer => answer,
    };
    let sent = match answer.into_parts() {
        (head, Body::Message(message)) => {
            let is_last = !message.framed.has_remaining() && message.trailers.is_none();
            match reply.send_response(Response::from_parts(head, ()), is_last) {
                Ok(_) if is_last => Ok(()),
                Ok(stream) => queue(message, stream, open, &unwritten),
                Err(error) => Err(error),
            }
        }
        (head, Body::Tonic(body, deadline)) => {
            // A connection with only health checks is idle.
            drop(open);
            match reply.send_response(Response::from_parts(head, ()), false) {
                Ok(mut stream) => send_until(deadline, body, &mut stream).await,
                Err(error) => Err(error),
            }
        }
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "an answer was not sent");
    }
}

fn queue(
    message: Message,
    mut stream: SendStream<Outgoing>,
    open: Open,
    unwritten: &Arc<Unwritten>,
) -> Result<(), h2::Error> {
    let Message { mut framed, trailers, deadline } = message;
    if framed.has_remaining() {
        let progress = unwritten.add(deadline, open);
        let number = progress.number();
        framed.track(progress);
        stream.send_data(framed, trailers.is_none())?;
        if let Some(trailers) = trailers {
            stream.send_trailers(trailers)?;
        }
        unwritten.keep(number, stream);
    } else if let Some(trailers) = trailers {
        stream.send_trailers(trailers)?;
    }
    Ok(())
}

async fn send_until(
    deadline: Option<Instant>,
    body: tonic::body::Body,
    stream: &mut SendStream<Outgoing>,
) -> Result<(), h2::Error> {
    let Some(deadline) = deadline else { return send_tonic(body, stream).await };
    let sent = timeout_at(deadline + UNREAD, send_tonic(body, stream)).await;
    sent.unwrap_or_else(|_| {
        stream.send_reset(Reason::CANCEL);
        Ok(())
    })
}

// === impl Activity ===

impl Activity {
    /// An activity without streams.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((0, Instant::now()))))
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
