//! A message on its way to the socket, as one HTTP/2 send.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, Bytes};
use porch_fn_proto::Chunks;
use tokio::sync::Notify;

use crate::inflight::Charge;

/// The slices of a message that HTTP/2 has not written yet. h2 cuts frames from it without copies.
/// It holds the call's [`Charge`] until it is written or its stream has ended.
#[derive(Debug, Default)]
pub struct Outgoing {
    parts: VecDeque<Bytes>,
    remaining: usize,
    _charge: Charge,
    written: Option<Arc<Written>>,
}

/// How far a message is written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The message is written whole, or its stream has ended.
    is_over: AtomicBool,
    changed: Notify,
}

// === impl Outgoing ===

impl Outgoing {
    /// The slices of `message`, with the bytes that are charged for them.
    pub fn new(message: Chunks, charge: Charge) -> Self {
        let remaining = message.len();
        let parts = Vec::from_iter(message).into();
        Self { parts, remaining, _charge: charge, written: None }
    }

    /// Returns the message's progress.
    pub(crate) fn track(&mut self) -> Arc<Written> {
        Arc::clone(self.written.insert(Arc::default()))
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some(written) = &self.written {
            written.is_over.store(true, Ordering::Release);
            written.changed.notify_one();
        }
    }
}

impl Written {
    /// Completes when more is written. `None` if the message is over.
    pub(crate) fn progress(&self) -> Option<impl Future<Output = ()> + '_> {
        (!self.is_over.load(Ordering::Acquire)).then(|| self.changed.notified())
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
        // A message that is written whole is dropped next.
        if let Some(written) = self.written.as_ref().filter(|_| self.remaining > 0) {
            written.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
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
        }
    }
}
