//! The streams of a connection: how many there are, and an end to those whose answer nobody reads.
//!
//! hyper takes the next part of an answer once the caller has made room for it. A stream whose
//! answer makes no progress for [`UNREAD`] is dropped: that resets it, and frees what waits in
//! HTTP/2 as well.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::task_local;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a caller may take no part of its answer. Parts have some 16 KiB.
const UNREAD: Duration = Duration::from_mins(1);

task_local! {
    static STREAM: Stream;
}

/// The stream that this runs on.
struct Stream {
    /// When its answer last made progress.
    asked: Cell<Option<Instant>>,
    /// It counts as activity.
    open: Cell<Option<Open>>,
}

/// The answer of the stream that this runs on is asked for more.
pub(crate) fn asked_for_more() {
    // Bodies that are sent to others are on no stream of ours.
    let _ = STREAM.try_with(|stream| stream.asked.set(Some(Instant::now())));
}

/// The stream that this runs on is no call, but one of health: a connection with no other is idle.
pub(crate) fn is_no_call() {
    let _ = STREAM.try_with(|stream| stream.open.take());
}

/// What goes on on a connection.
#[derive(Debug)]
pub(crate) struct Activity {
    streams: AtomicUsize,
    /// Milliseconds from `origin` to when the last stream ended.
    idle_since: AtomicU64,
    origin: Instant,
}

/// Runs the streams of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Streams(Arc<Activity>);

struct Open(Arc<Activity>);

pin_project! {
    /// Runs a stream to its end, or until its answer is not read. No async function, which would
    /// hold the stream twice.
    struct WhileRead<S> {
        #[pin]
        stream: S,
        timer: Option<Pin<Box<Sleep>>>,
    }
}

// === impl Activity ===

impl Activity {
    /// No stream yet. `origin` is the same for all connections that are compared.
    pub(crate) fn new(origin: Instant) -> Arc<Self> {
        let idle_since = AtomicU64::new(millis(origin));
        Arc::new(Self { streams: AtomicUsize::new(0), idle_since, origin })
    }

    /// Returns when it has had no stream for [`UNREAD`].
    pub(crate) async fn idle_for_long(&self) {
        loop {
            let idle = self.idle_since().map(Duration::from_millis);
            let due = idle.map_or_else(Instant::now, |idle| self.origin + idle) + UNREAD;
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }

    /// Since when it has no stream, if it has none.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        let idle = self.streams.load(Ordering::Relaxed) == 0;
        idle.then(|| self.idle_since.load(Ordering::Relaxed))
    }
}

fn millis(origin: Instant) -> u64 {
    u64::try_from(origin.elapsed().as_millis()).unwrap_or(u64::MAX)
}

// === impl Streams ===

impl Streams {
    pub(crate) fn new(activity: Arc<Activity>) -> Self {
        Self(activity)
    }
}

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Streams {
    fn execute(&self, stream: S) {
        let open = Cell::new(Some(Open::new(&self.0)));
        tokio::spawn(
            STREAM.scope(Stream { asked: Cell::new(None), open }, WhileRead { stream, timer: None }),
        );
    }
}

// === impl WhileRead ===

impl<S: Future<Output = ()>> Future for WhileRead<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.stream.poll(context).is_ready() {
            return Poll::Ready(());
        }
        let Some(asked) = STREAM.with(|stream| stream.asked.get()) else { return Poll::Pending };
        let due = asked + UNREAD;
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        loop {
            ready!(timer.as_mut().poll(context));
            if timer.deadline() >= due {
                tracing::debug!("an answer that its caller does not read is dropped");
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
    }
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
        let local = Stream { asked: Cell::new(None), open: Cell::new(None) };
        STREAM.scope(local, WhileRead { stream, timer: None }).await;
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
        streams.execute(async {
            is_no_call();
            sleep(UNREAD).await;
        });
        sleep(Duration::from_secs(1)).await;
        assert_eq!(activity.idle_since(), Some(2505), "a health stream is no call");
    }
}
