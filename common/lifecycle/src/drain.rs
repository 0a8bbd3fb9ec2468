//! The drain of a server: one signal for all tasks, and a way to wait until the last one has
//! finished.
//!
//! A task keeps a [`Watch`] as long as it has work. [`Signal::drained`] returns when the last watch
//! is dropped.

use std::convert::Infallible;

use tokio::sync::{mpsc, watch};

/// The end that starts the drain.
#[derive(Debug)]
pub struct Signal {
    draining: watch::Sender<bool>,
    done: mpsc::Receiver<Infallible>,
}

/// The end that is notified of the drain. The drain is not finished until every watch is dropped.
#[derive(Debug, Clone)]
pub struct Watch {
    draining: watch::Receiver<bool>,
    _held: mpsc::Sender<Infallible>,
}

/// A connected pair.
pub fn channel() -> (Signal, Watch) {
    let (draining, heard) = watch::channel(false);
    let (held, done) = mpsc::channel(1);
    (Signal { draining, done }, Watch { draining: heard, _held: held })
}

impl Signal {
    /// Notifies every watch of the drain. Does not wait.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Returns when every [`Watch`] has been dropped.
    pub async fn drained(&mut self) {
        while self.done.recv().await.is_some() {}
    }
}

impl Watch {
    /// Returns when draining has begun, at once if it already has.
    pub async fn draining(&mut self) {
        // An error means that the signal was dropped: the process ends, which is a drain too.
        let _ = self.draining.wait_for(|&draining| draining).await;
    }
}
