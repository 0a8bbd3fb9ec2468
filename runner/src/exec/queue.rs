//! The queue of the exec runtime: [`Turns`] that calls can wait for.

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::turns::{Entry, Full, Id, Turns};

/// Places, and those that wait for one.
#[derive(Debug)]
pub(super) struct Queue {
    turns: Mutex<Turns<oneshot::Sender<()>>>,
}

/// A place, or one in the queue: either is given up when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    queue: &'a Queue,
    image: &'a str,
    id: Id,
}

impl Queue {
    /// A queue for `places`, in which `max_waiting` calls of each image may wait.
    pub(super) fn new(places: usize, max_waiting: usize) -> Self {
        Self { turns: Mutex::new(Turns::new(places, max_waiting)) }
    }

    /// Waits for a place.
    pub(super) async fn turn<'a>(&'a self, image: &'a str) -> Result<Turn<'a>, Full> {
        let (waker, woken) = oneshot::channel();
        let entry = self.turns.lock().enter(image, waker)?;
        match entry {
            Entry::Runs(id) => Ok(Turn { queue: self, image, id }),
            Entry::Waits(id) => {
                let turn = Turn { queue: self, image, id };
                // Its sender is dropped only by `turn`.
                let _ = woken.await;
                Ok(turn)
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let next = self.queue.turns.lock().end(self.image, self.id);
        if let Some(waker) = next {
            // One that gave up in the meantime still has its turn, and ends it as this one does.
            let _ = waker.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_call_that_gives_up_leaves_its_place_to_the_next() {
        let queue = Queue::new(1, 2);
        let running = queue.turn("a").await.unwrap();
        let mut gives_up = Box::pin(queue.turn("a"));
        let mut woken = Box::pin(queue.turn("a"));
        let mut last = Box::pin(queue.turn("b"));
        for waiting in [&mut gives_up, &mut woken, &mut last] {
            assert!(waiting.now_or_never().is_none());
        }
        assert!(queue.turn("a").await.is_err());
        drop(gives_up);
        // It has its turn, and is gone before it knows.
        drop(running);
        assert!(last.as_mut().now_or_never().is_none());
        drop(woken);
        assert!(last.now_or_never().unwrap().is_ok());
        assert!(queue.turn("c").now_or_never().unwrap().is_ok());
    }
}
