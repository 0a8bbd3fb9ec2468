//! The streams of a connection: how many there are, and an end to those whose answer nobody reads.
//!
//! hyper asks an answer for its next part once the caller has made room for it. One that is not asked for [`UNREAD`] is
//! dropped: that resets its stream, and frees what waits in HTTP/2 as well.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::task_local;
use tokio::time::{Instant, sleep_until};

/// How long a caller may read nothing of its answer. It reads parts of some 16 KiB.
const UNREAD: Duration = Duration::from_mins(1);

task_local! {
    /// When the answer of this stream was last asked for more.
    static ASKED: Cell<Option<Instant>>;
}

/// The answer of the stream that this runs on is asked for more.
pub(crate) fn asked_for_more() {
    // Bodies that are sent to others are on no stream of ours.
    let _ = ASKED.try_with(|asked| asked.set(Some(Instant::now())));
}

/// What goes on on a connection.
#[derive(Debug)]
pub(super) struct Activity {
    streams: AtomicUsize,
    /// Milliseconds from `origin` to when the last stream ended.
    idle_since: AtomicU64,
    origin: Instant,
}

/// Runs the streams of one connection.
#[derive(Debug, Clone)]
pub(super) struct Streams(Arc<Activity>);

struct Open(Arc<Activity>);

// === impl Activity ===

impl Activity {
    /// No stream yet. `origin` is the same for all connections that are compared.
    pub(super) fn new(origin: Instant) -> Arc<Self> {
        let idle_since = AtomicU64::new(millis(origin));
        Arc::new(Self { streams: AtomicUsize::new(0), idle_since, origin })
    }

    /// Since when it has no stream, if it has none.
    pub(super) fn idle_since(&self) -> Option<u64> {
        let idle = self.streams.load(Ordering::Relaxed) == 0;
        idle.then(|| self.idle_since.load(Ordering::Relaxed))
    }
}

fn millis(origin: Instant) -> u64 {
    u64::try_from(origin.elapsed().as_millis()).unwrap_or(u64::MAX)
}

// === impl Streams ===

impl Streams {
    pub(super) fn new(activity: Arc<Activity>) -> Self {
        Self(activity)
    }
}

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Streams {
    fn execute(&self, stream: S) {
        let open = Open::new(&self.0);
        tokio::spawn(ASKED.scope(Cell::new(None), async move {
            while_read(stream).await;
            drop(open);
        }));
    }
}

/// Runs a stream to its end, or until its answer is not read.
async fn while_read(stream: impl Future<Output = ()>) {
    let mut stream = pin!(stream);
    let mut timer = pin!(None);
    poll_fn(|context| {
        if stream.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let Some(asked) = ASKED.with(Cell::get) else { return Poll::Pending };
        let due = asked + UNREAD;
        if timer.is_none() {
            timer.set(Some(sleep_until(due)));
        }
        while let Some(mut waiting) = timer.as_mut().as_pin_mut() {
            ready!(waiting.as_mut().poll(context));
            if waiting.deadline() >= due {
                tracing::debug!("an answer that its caller does not read is dropped");
                return Poll::Ready(());
            }
            waiting.as_mut().reset(due);
        }
        Poll::Pending
    })
    .await;
}

// === impl Open ===

impl Open {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.streams.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Self(activity) = self;
        activity.idle_since.store(millis(activity.origin), Ordering::Relaxed);
        activity.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const NEARLY: Duration = Duration::from_secs(59);

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_answer_is_not_asked_for_and_not_before() {
        let begin = Instant::now();
        let stream = async {
            // The call itself may take as long as it likes.
            sleep(UNREAD * 10).await;
            for _ in 0..3 {
                asked_for_more();
                sleep(NEARLY).await;
            }
            asked_for_more();
            sleep(UNREAD * 10).await;
            unreachable!("nobody reads it");
        };
        ASKED.scope(Cell::new(None), while_read(stream)).await;
        assert_eq!(begin.elapsed(), UNREAD * 11 + NEARLY * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_while_it_has_no_stream() {
        let origin = Instant::now();
        sleep(Duration::from_millis(5)).await;
        let activity = Activity::new(origin);
        assert_eq!(activity.idle_since(), Some(5));
        let streams = Streams::new(Arc::clone(&activity));
        for seconds in [1, 2] {
            streams.execute(sleep(Duration::from_secs(seconds)));
        }
        assert_eq!(activity.idle_since(), None);
        sleep(Duration::from_millis(1500)).await;
        assert_eq!(activity.idle_since(), None);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(activity.idle_since(), Some(2005));
    }
}
