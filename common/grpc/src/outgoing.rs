//! A message on its way to the socket, as one HTTP/2 send.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use porch_fn_proto::Chunks;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::inflight::Charge;

/// The slices of a message that HTTP/2 has not written yet. h2 cuts frames from it without copies.
/// It holds the call's [`Charge`] until it is written or its stream has ended.
#[derive(Debug, Default)]
pub struct Outgoing {
    parts: VecDeque<Bytes>,
    remaining: usize,
    _charge: Charge,
    progress: Option<Progress>,
}

/// The progress of a message, for the task that waits until it is written.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<State>);

#[derive(Debug)]
struct State {
    made_at: Mutex<Instant>,
    ended: Notify,
}

// === impl Outgoing ===

impl Outgoing {
    /// The slices of `message`, with the bytes that are charged for them.
    pub fn new(message: Chunks, charge: Charge) -> Self {
        let remaining = message.len();
        let parts = Vec::from_iter(message).into();
        Self { parts, remaining, _charge: charge, progress: None }
    }

    /// Begins to record the message's progress.
    pub(crate) fn progress(&mut self) -> Progress {
        let state = State { made_at: Mutex::new(Instant::now()), ended: Notify::new() };
        self.progress.insert(Progress(Arc::new(state))).clone()
    }
}

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Self {
        Self::new(bytes.into(), Charge::default())
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| part)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(&self.parts).map(|(slice, part)| *slice = IoSlice::new(part));
        filled.count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining, "past the end of a message");
        self.remaining -= count;
        while let Some(part) = self.parts.front_mut()
            && count > 0
        {
            if count < part.len() {
                part.advance(count);
                break;
            }
            count -= part.len();
            self.parts.pop_front();
        }
        if let Some(Progress(state)) = &self.progress {
            *state.made_at.lock() = Instant::now();
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some(Progress(state)) = &self.progress {
            state.ended.notify_one();
        }
    }
}

// === impl Progress ===

impl Progress {
    /// When bytes were last written, or when the recording began.
    pub(crate) fn made_at(&self) -> Instant {
        *self.0.made_at.lock()
    }

    /// Completes when the message is written, or its stream has ended.
    pub(crate) async fn ended(&self) {
        self.0.ended.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_the_joined_bytes(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..6), 0..8),
            steps in prop::collection::vec(1usize..9, 0..20),
        ) {
            let joined = parts.concat();
            let mut outgoing = Outgoing::new(parts.into_iter().map(Bytes::from).collect(), Charge::default());
            let progress = outgoing.progress();
            let mut rest = &joined[..];
            for step in steps {
                let mut slices = [IoSlice::new(&[]); 8];
                let filled = outgoing.chunks_vectored(&mut slices);
                prop_assert_eq!(slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>(), rest);
                prop_assert!(rest.starts_with(outgoing.chunk()) && outgoing.chunk().is_empty() == rest.is_empty());
                let step = step.min(rest.len());
                outgoing.advance(step);
                rest = &rest[step..];
                prop_assert_eq!(outgoing.remaining(), rest.len());
            }
            prop_assert!(progress.ended().now_or_never().is_none());
            drop(outgoing);
            prop_assert!(progress.ended().now_or_never().is_some());
        }
    }
}
