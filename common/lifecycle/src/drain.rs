//! The drain of a server: one signal for all tasks, and a way to wait until the last one has
//! finished.
//!
//! A task keeps a [`Watch`] as long as it has work. [`Signal::drained`] returns when the last watch
//! is dropped.

use tokio::sync::watch;

/// Starts the drain.
#[derive(Debug)]
pub struct Signal(watch::Sender<bool>);

/// Receives the signal. The drain is finished when every watch is dropped.
#[derive(Debug, Clone)]
pub struct Watch(watch::Receiver<bool>);

/// Creates a signal and its first watch.
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
    /// Returns when the drain has begun; at once if it already has.
    pub async fn draining(&mut self) {
        // An error means that the signal was dropped because the process ends. Return then, too.
        let _ = self.0.wait_for(|&draining| draining).await;
    }
}
