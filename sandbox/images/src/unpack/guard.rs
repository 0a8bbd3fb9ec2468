//! Bounds what an archive makes this process read and write. The tar library keeps long names and
//! attributes in memory without a limit, and a small compressed stream may expand without end.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// Largest headers of one entry, in bytes: long names, attributes, and maps of sparse files. As
/// much may follow the end of the archive.
pub(super) const MAX_HEADERS: u64 = 1 << 20;
/// Size of a tar block, in bytes.
const BLOCK: u64 = 512;

/// What may still be read and written. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Guard(Rc<State>);

#[derive(Debug)]
struct State {
    /// All bytes that were read, and those that [`Guard::charge`] added.
    used: Cell<u64>,
    limit: u64,
    /// Bytes of the stream that were read.
    position: Cell<u64>,
    /// While no data of an entry is read: what its headers may still have.
    headers: Cell<Option<u64>>,
}

/// A stream that fails at the guard's limits.
#[derive(Debug)]
pub(crate) struct Guarded<R> {
    inner: R,
    guard: Guard,
}

// === impl Guard ===

impl Guard {
    /// Allows this many bytes in all.
    pub(crate) fn new(limit: u64) -> Self {
        let headers = Cell::new(Some(MAX_HEADERS));
        Self(Rc::new(State { used: Cell::default(), limit, position: Cell::default(), headers }))
    }

    pub(crate) fn watch<R>(&self, inner: R) -> Guarded<R> {
        Guarded { inner, guard: self.clone() }
    }

    /// The headers of an entry follow, or the end.
    pub(crate) fn expect_headers(&self) {
        self.0.headers.set(Some(MAX_HEADERS));
    }

    /// The data of an entry follows.
    pub(crate) fn expect_data(&self) {
        self.0.headers.set(None);
    }

    pub(crate) fn used(&self) -> u64 {
        self.0.used.get()
    }

    /// Whether `bytes` more would exceed the limit.
    pub(crate) fn exceeds(&self, bytes: u64) -> bool {
        self.0.limit.saturating_sub(self.used()) < bytes
    }

    /// Adds bytes that are not in the stream, such as those of the folder that an entry implies.
    ///
    /// # Errors
    /// The limit. Its kind is `FileTooLarge`.
    pub(crate) fn charge(&self, bytes: u64) -> io::Result<()> {
        if self.exceeds(bytes) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.used.set(self.used() + bytes);
        Ok(())
    }
}

// === impl Guarded ===

impl<R: Read> Read for Guarded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let state = &self.guard.0;
        let read = self.inner.read(buffer)?;
        self.guard.charge(read as u64)?;
        let Some(left) = state.headers.get() else {
            state.position.set(state.position.get() + read as u64);
            return Ok(read);
        };
        // Like Go's tar: an archive may end without the padding behind its last file.
        let padding = (BLOCK - state.position.get() % BLOCK) % BLOCK;
        let padding = buffer.len().min(padding as usize);
        let read = if read == 0 {
            buffer[..padding].fill(0);
            padding
        } else {
            read
        };
        let left = left.checked_sub(read as u64);
        let left = left.ok_or_else(|| io::Error::other("an entry's headers are longer than 1 MiB"))?;
        state.headers.set(Some(left));
        state.position.set(state.position.get() + read as u64);
        Ok(read)
    }
}
