//! Limits what is read between two entries of an archive. The tar library keeps long names and
//! attributes in memory, and does not limit them.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// The bytes that may still be read. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Guard(Rc<Cell<Option<u64>>>);

/// A stream that fails at the guard's limit.
#[derive(Debug)]
pub(super) struct Guarded<R> {
    inner: R,
    guard: Guard,
}

// === impl Guard ===

impl Guard {
    pub(super) fn watch<R>(&self, inner: R) -> Guarded<R> {
        Guarded { inner, guard: self.clone() }
    }

    /// Allows this many bytes from now on.
    pub(super) fn limit(&self, bytes: u64) {
        self.0.set(Some(bytes));
    }

    /// Allows any number of bytes from now on.
    pub(super) fn lift(&self) {
        self.0.set(None);
    }
}

// === impl Guarded ===

impl<R: Read> Read for Guarded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if let Some(left) = self.guard.0.get() {
            let left = left.checked_sub(read as u64);
            let left = left.ok_or_else(|| io::Error::other("an entry's headers are longer than 1 MiB"))?;
            self.guard.0.set(Some(left));
        }
        Ok(read)
    }
}
