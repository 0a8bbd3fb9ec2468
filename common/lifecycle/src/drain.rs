//! The drain of a server: one signal for all tasks, and a way to wait until the last one has
//! finished.
//!
//! A task keeps a [`Watch`] as long as it has work. [`Signal::drained`] returns when the last watch
//! is dropped.

use tokio::sync::watch;

/// The end that starts the drain.
#[derive(Debug)]
pub struct Signal(watch::Sender<bool>);

/// The end that is notified of the drain. The drain is not finished until every watch is dropped.
#[derive(Debug, Clone)]
pub struct Watch(watch::Receiver<bool>);

/// A connected pair.
pub fn channel() -> (Signal, Watch) {
    let (signal, watch) = watch::channel(false);
    (Signal(signal), Watch(watch))
}

impl Signal {
    /// Notifies every watch of the drain. Does not wait.
    pub fn drain(&self) {
        self.0.send_replace(true);
    }

    /// Returns when every [`Watch`] has been dropped.
    pub async fn drained(&self) {
        self.0.closed().await;
    }
}

impl Watch {
    /// Returns when draining has begun, at once if it already has.
    pub async fn draining(&mut self) {
        // An error means that the signal was dropped: the process ends, which is a drain too.
        let _ = self.0.wait_for(|&draining| draining).await;
    }
}
