//! Counts the streams of a connection, and drops a stream whose answer is not read.
//!
//! hyper takes the next part of an answer when the caller has made room for it. A stream whose
//! answer makes no progress for [`UNREAD`] is dropped, which resets it and frees HTTP/2's buffers.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::Executor;
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tokio::task_local;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a caller may read nothing of its answer. Progress is recorded for each part that hyper
/// takes, usually of about 16 KiB.
const UNREAD: Duration = Duration::from_mins(1);

task_local! {
    static STREAM: Stream;
}

/// The current stream.
struct Stream {
    /// When its answer last made progress; `None` before the answer begins.
    progress: Cell<Option<Instant>>,
    /// While this is set, the stream counts as activity of the connection.
    open: Cell<Option<Open>>,
}

/// Records that hyper takes the next part of the current stream's answer.
pub(crate) fn record_progress() {
    // The body may be a request of a client in this process. Then there is no current stream of
    // this server, and the error is ignored.
    let _ = STREAM.try_with(|stream| stream.progress.set(Some(Instant::now())));
}

/// Records that the current stream is a health check. A connection with only health checks is idle.
pub(crate) fn record_health_check() {
    let _ = STREAM.try_with(|stream| stream.open.take());
}

/// The activity on a connection: how many streams it has, and when the last one ended.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<(usize, Instant)>);

/// Runs the streams of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Streams(pub(crate) Arc<Activity>);

struct Open(Arc<Activity>);

pin_project! {
    /// Runs a stream until it ends or its answer is not read for [`UNREAD`]. An async function
    /// would hold the stream twice in memory.
    struct WhileRead<S> {
        #[pin]
        stream: S,
        timer: Option<Pin<Box<Sleep>>>,
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

// === impl Streams ===

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Streams {
    fn execute(&self, stream: S) {
        let open = Cell::new(Some(Open::new(&self.0)));
        tokio::spawn(
            STREAM.scope(Stream { progress: Cell::new(None), open }, WhileRead { stream, timer: None }),
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
        let Some(progress) = STREAM.with(|stream| stream.progress.get()) else { return Poll::Pending };
        let due = progress + UNREAD;
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        loop {
            ready!(timer.as_mut().poll(context));
            if timer.deadline() >= due {
                tracing::debug!("dropped an answer that its caller does not read");
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
    }
}

// === impl Open ===

impl Open {
    fn new(activity: &Arc<Activity>) -> Self {
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
        let streams = Streams(Arc::clone(&activity));
        for seconds in [1, 2] {
            streams.execute(sleep(second * seconds));
        }
        sleep(second * 3 / 2).await;
        assert_eq!(activity.idle_since(), None);
        sleep(second).await;
        assert_eq!(activity.idle_since(), Some(start + second * 2));
        streams.execute(async {
            record_health_check();
            sleep(UNREAD).await;
        });
        sleep(second).await;
        assert_eq!(activity.idle_since(), Some(start + second * 5 / 2), "a health stream does not count");
    }
}
