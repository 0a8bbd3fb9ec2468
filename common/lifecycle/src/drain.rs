//! Orderly stop: one signal that every task hears, and a way to wait until the last one is done.
//!
//! A task keeps a [`Watch`] for as long as it has work in hand. [`Signal::drained`] returns when the
//! last watch is gone, so nothing needs to be counted.

use std::convert::Infallible;

use tokio::sync::{mpsc, watch};

/// The end that says "stop". Held by the wiring alone.
#[derive(Debug)]
pub struct Signal {
    draining: watch::Sender<bool>,
    done: mpsc::Receiver<Infallible>,
}

/// The end that hears "stop", and holds up the exit while it lives.
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
    /// Tells every watch to finish. Does not wait.
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
        // An error means that the signal is gone: the process is ending, which is a drain too.
        let _ = self.draining.wait_for(|&draining| draining).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn drained_waits_for_the_last_watch() {
        let (mut signal, watch) = channel();
        let mut second = watch.clone();
        assert!(second.draining().now_or_never().is_none());
        signal.drain();
        second.draining().await;
        drop(watch);
        assert!(signal.drained().now_or_never().is_none());
        drop(second);
        signal.drained().await;
    }

    #[tokio::test]
    async fn a_lost_signal_drains() {
        let (signal, mut watch) = channel();
        drop(signal);
        watch.draining().await;
    }
}
