//! The answers of one connection that are not written yet, and the time that their callers have left.
//!
//! A caller may take its answer slowly, but not for ever: an answer whose caller takes no byte for
//! [`UNREAD`], or that is not written [`UNREAD`] after its call's deadline, is reset. That frees
//! HTTP/2's buffers and the call's bytes in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use h2::{Reason, SendStream};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::outgoing::Outgoing;
use crate::streams::Open;

/// How long a caller may read nothing of its answer.
pub(crate) const UNREAD: Duration = Duration::from_mins(1);
/// How often the answers of a connection are looked at.
pub(crate) const LOOK: Duration = Duration::from_secs(5);

/// The answers of one connection. They and HTTP/2's state keep each other, so the connection's task
/// must call [`Self::close`] at its end.
#[derive(Debug, Default)]
pub(crate) struct Unwritten(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    answers: BTreeMap<u64, Answer>,
    count: u64,
    /// The answers that are written or have ended. HTTP/2 holds its own lock when it drops them, and
    /// the drop of a stream takes that lock. So the connection's task removes them later.
    over: Vec<u64>,
    is_closed: bool,
}

#[derive(Debug)]
struct Answer {
    /// `None` until the answer is queued.
    stream: Option<SendStream<Outgoing>>,
    progress_at: Instant,
    ends_by: Instant,
    /// The call's stream is activity of the connection.
    _open: Open,
}

/// Tells about the progress of one answer, and when it is dropped, that the answer is over.
#[derive(Debug)]
pub(crate) struct Progress {
    unwritten: Arc<Unwritten>,
    number: u64,
}

// === impl Unwritten ===

impl Unwritten {
    /// Adds an answer to a call with this deadline.
    pub(crate) fn add(self: &Arc<Self>, deadline: Instant, open: Open) -> Progress {
        let ends_by = deadline + UNREAD;
        let answer = Answer { stream: None, progress_at: Instant::now(), ends_by, _open: open };
        let mut state = self.0.lock();
        state.count += 1;
        let number = state.count;
        state.answers.insert(number, answer);
        Progress { unwritten: Arc::clone(self), number }
    }

    /// Keeps the stream of an answer that is queued.
    pub(crate) fn keep(&self, number: u64, stream: SendStream<Outgoing>) {
        let mut state = self.0.lock();
        let is_open = !state.is_closed;
        if let Some(answer) = state.answers.get_mut(&number).filter(|_| is_open) {
            answer.stream = Some(stream);
        } else {
            // The stream is dropped without the lock.
            drop(state);
        }
    }

    /// Whether all answers are written.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().answers.is_empty()
    }

    /// Removes the answers that are over. For the connection's task alone.
    pub(crate) fn forget_written(&self) {
        let mut state = self.0.lock();
        let over = std::mem::take(&mut state.over);
        let written: Vec<_> = over.iter().map(|number| state.answers.remove(number)).collect();
        drop(state);
        drop(written);
    }

    /// Resets the answers whose time is over.
    pub(crate) fn reset_overdue(&self, now: Instant) {
        let mut streams = Vec::new();
        for answer in self.0.lock().answers.values_mut() {
            if now >= answer.ends_by.min(answer.progress_at + UNREAD) {
                streams.extend(answer.stream.take());
            }
        }
        for mut stream in streams {
            tracing::debug!("dropped an answer that its caller does not read");
            stream.send_reset(Reason::CANCEL);
        }
    }

    /// Drops all answers, because the connection has ended.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        let answers = std::mem::take(&mut state.answers);
        drop(state);
        drop(answers);
    }
}

// === impl Progress ===

impl Progress {
    /// The number of the answer in its connection.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of the answer were written.
    pub(crate) fn made(&self) {
        if let Some(answer) = self.unwritten.0.lock().answers.get_mut(&self.number) {
            answer.progress_at = Instant::now();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.unwritten.0.lock().over.push(self.number);
    }
}
