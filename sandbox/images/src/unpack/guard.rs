//! Bounds what an archive makes this process read and write. The tar library keeps long names and
//! attributes in memory without a limit, and a small compressed stream may expand without end.

use std::cell::Cell;
use std::io::{self, Read};

use tar::{Archive, Entry};

/// Largest headers of one entry, in bytes: long names and attributes. As much may follow the end of
/// the archive.
const MAX_HEADERS: u64 = 1 << 20;
/// Size of a tar block, in bytes.
const BLOCK: u64 = 512;

/// What may still be read and written.
pub(crate) struct Guard {
    limit: u64,
    /// Bytes of the stream that were read.
    position: Cell<u64>,
    /// Bytes that are not in the stream, such as those of a folder on the disk.
    charged: Cell<u64>,
    /// What the headers of an entry may still have. `None`: its data is read.
    headers: Cell<Option<u64>>,
}

/// A stream that fails at the guard's limits.
pub(crate) struct Guarded<'a, R> {
    inner: R,
    guard: &'a Guard,
}

// === impl Guard ===

impl Guard {
    /// Allows this many bytes in all.
    pub(crate) fn new(limit: u64) -> Self {
        let headers = Cell::new(Some(MAX_HEADERS));
        Self { limit, position: Cell::default(), charged: Cell::default(), headers }
    }

    /// Calls `read` for each entry of a tar stream. Returns what is behind the archive's end.
    pub(crate) fn each_entry<'a, R: Read, E: From<io::Error>>(
        &'a self,
        tar: R,
        mut read: impl FnMut(&mut Entry<'_, Guarded<'a, R>>) -> Result<(), E>,
    ) -> Result<Guarded<'a, R>, E> {
        let mut archive = Archive::new(Guarded { inner: tar, guard: self });
        for entry in archive.entries()? {
            let mut entry = entry?;
            self.headers.set(None);
            read(&mut entry)?;
            // Skips data that was not needed. It is not part of the headers of the next entry.
            io::copy(&mut entry, &mut io::sink())?;
            self.headers.set(Some(MAX_HEADERS));
        }
        Ok(archive.into_inner())
    }

    pub(crate) fn used(&self) -> u64 {
        self.position.get().saturating_add(self.charged.get())
    }

    /// Adds bytes that are not in the stream. Fails at the limit, with the kind `FileTooLarge`.
    pub(crate) fn charge(&self, bytes: u64) -> io::Result<()> {
        self.charged.set(self.charged.get().saturating_add(bytes));
        if self.used() > self.limit { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
    }
}

// === impl Guarded ===

impl<R: Read> Read for Guarded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.guard;
        let position = state.position.get();
        let mut read = self.inner.read(buffer)?;
        if let Some(left) = state.headers.get() {
            if read == 0 {
                // Like Go's tar: an archive may end without the padding behind its last file.
                read = buffer.len().min(((BLOCK - position % BLOCK) % BLOCK) as usize);
                buffer[..read].fill(0);
            }
            let left = left.checked_sub(read as u64);
            let left = left.ok_or_else(|| io::Error::other("an entry's headers are longer than 1 MiB"))?;
            state.headers.set(Some(left));
        }
        state.position.set(position + read as u64);
        self.guard.charge(0).map(|()| read)
    }
}
