//! The queue of the exec runtime: a bounded number of calls run at once, and images take turns.
//!
//! A place is the permission to run one call. With a single queue for the places, a thousand calls
//! of one image would delay all other images. Here only the first call of each image waits for a
//! place. Places go to these calls in the order in which they began to wait.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, SemaphorePermit};

/// Places to run, and the calls that wait for one.
#[derive(Debug)]
pub(crate) struct Queue {
    places: Semaphore,
    pub(super) parallel: usize,
    pub(super) max_waiting: usize,
    lines: Mutex<HashMap<String, Line>>,
}

/// The waiting calls of one image. Each call has a clone of this. The first call holds the lock and
/// waits for a place. The others wait for the lock.
type Line = Arc<AsyncMutex<()>>;

impl Queue {
    /// A queue with `parallel` places. Up to `max_waiting` calls of each image may wait.
    pub(crate) fn new(parallel: usize, max_waiting: usize) -> Self {
        let places = Semaphore::new(parallel.min(Semaphore::MAX_PERMITS));
        Self { places, parallel, max_waiting, lines: Mutex::default() }
    }

    /// Waits for a place. Returns `None` if `max_waiting` calls of the image already wait. Dropping
    /// the future cancels the wait; dropping the place releases it.
    pub(super) async fn place(&self, image: &str) -> Option<SemaphorePermit<'_>> {
        if let Ok(place) = self.places.try_acquire() {
            return Some(place);
        }
        let line = self.enter(image)?;
        let _first = line.lock().await;
        // The semaphore is never closed.
        self.places.acquire().await.ok()
    }

    fn enter(&self, image: &str) -> Option<Line> {
        let mut lines = self.lines.lock();
        // The map holds one reference to each line, and each waiting call another one.
        lines.retain(|_, line| Arc::strong_count(line) > 1);
        let line = lines.entry(image.to_owned()).or_default();
        (Arc::strong_count(line) <= self.max_waiting).then(|| Arc::clone(line))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt;

    use super::*;

    type Place<'a> = Pin<Box<dyn Future<Output = Option<SemaphorePermit<'a>>> + 'a>>;

    /// The calls of a test, each with its image and its number.
    struct Calls<'a> {
        queue: &'a Queue,
        running: Vec<(&'static str, usize, SemaphorePermit<'a>)>,
        waiting: Vec<(&'static str, usize, Place<'a>)>,
    }

    impl<'a> Calls<'a> {
        fn new(queue: &'a Queue) -> Self {
            Self { queue, running: Vec::new(), waiting: Vec::new() }
        }

        /// False if the queue is full.
        fn enter(&mut self, image: &'static str, number: usize) -> bool {
            let mut place: Place<'a> = Box::pin(self.queue.place(image));
            match place.as_mut().now_or_never() {
                Some(Some(place)) => self.running.push((image, number, place)),
                Some(None) => return false,
                None => self.waiting.push((image, number, place)),
            }
            true
        }

        /// Ends a running call or cancels a waiting call. Free places go to waiting calls.
        fn end(&mut self, at: usize) {
            if at < self.running.len() {
                drop(self.running.remove(at));
            } else {
                drop(self.waiting.remove(at - self.running.len()));
            }
            // When a call gets a place, the next call of its image starts to wait for one. So this
            // polls all calls twice.
            for _ in 0..2 {
                for (image, number, mut place) in std::mem::take(&mut self.waiting) {
                    match place.as_mut().now_or_never() {
                        Some(got) => self.running.push((image, number, got.unwrap())),
                        None => self.waiting.push((image, number, place)),
                    }
                }
            }
        }
    }

    #[test]
    fn images_take_turns_and_calls_of_one_image_keep_their_order() {
        let queue = Queue::new(1, 3);
        let mut calls = Calls::new(&queue);
        for (image, number) in [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)] {
            assert!(calls.enter(image, number));
        }
        assert!(!calls.enter("a", 4) && calls.enter("b", 3));
        // The last call of `b` is cancelled.
        calls.end(7);
        let mut order = Vec::new();
        while !calls.running.is_empty() {
            calls.end(0);
            order.extend(calls.running.first().map(|(image, number, _)| (*image, *number)));
        }
        assert_eq!(order, [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)]);
        let _only = queue.enter("d").unwrap();
        assert_eq!(queue.lines.lock().len(), 1, "a line without calls is removed");
        assert!(Queue::new(usize::MAX, 0).place("a").now_or_never().unwrap().is_some());
    }
}
