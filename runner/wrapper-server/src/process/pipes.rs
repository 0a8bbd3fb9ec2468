//! Our ends of a function's pipes. They never block.
//!
//! Tokio's own pipe types ask the kernel about each pipe first, and register it at once. Most calls
//! are short: their input fits into the pipe, and they write no stderr while somebody waits. So a
//! pipe is registered only when a call must wait for it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;

use bytes::{Buf as _, Bytes};
use memmap2::MmapMut;
use rustix::buffer::spare_capacity;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::fcntl_setpipe_size;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Duration, sleep};

use super::stderr::Stderr;
use super::{RunError, failed};

/// The default capacity of a pipe.
const CAPACITY: usize = 64 * 1024;
/// The capacity of the pipes of a call with a larger input. The kernel counts it as memory of the
/// pod while data waits in the pipe.
const LARGE_CAPACITY: usize = 256 * 1024;
/// From this size on, in bytes, an output gets pages of its own. They cost a tenth more time than
/// memory of the heap.
const PAGES_FROM: usize = 2 * 1024 * 1024;
/// The most chunks of one write.
const SLICES: usize = 64;
/// How long nobody reads stderr, while the function can write 64 KiB of it.
const STDERR_WAITS: Duration = Duration::from_millis(5);

/// The three pipes.
pub(super) struct Pipes {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Pipes {
    /// Takes the pipes of a process.
    pub(super) fn of(child: &mut Child) -> io::Result<Self> {
        Ok(Self {
            stdin: non_blocking(child.stdin.take(), OFlags::WRONLY)?,
            stdout: non_blocking(child.stdout.take(), OFlags::RDONLY)?,
            stderr: non_blocking(child.stderr.take(), OFlags::RDONLY)?,
        })
    }

    /// Prepares the pipes for an input of `len` bytes.
    pub(super) fn expect(&self, len: usize) {
        if len > CAPACITY {
            for pipe in [&self.stdin, &self.stdout] {
                // The kernel limits the capacity of all pipes of a user. A smaller pipe works, too.
                let _ = fcntl_setpipe_size(pipe, LARGE_CAPACITY);
            }
        }
    }
}

/// Writes all of `chunks` to the function's stdin, and closes it.
pub(super) async fn write_stdin(pipe: OwnedFd, mut chunks: VecDeque<Bytes>) -> io::Result<()> {
    if write(&pipe, &mut chunks)? {
        return Ok(());
    }
    let watched = watch(pipe.as_fd(), Interest::WRITABLE)?;
    loop {
        let mut ready = watched.writable().await?;
        if write(&pipe, &mut chunks)? {
            return Ok(());
        }
        ready.clear_ready();
    }
}

/// Writes what fits into the pipe now, and removes it from `chunks`. Returns whether nothing more
/// is to be written.
fn write(pipe: &OwnedFd, chunks: &mut VecDeque<Bytes>) -> io::Result<bool> {
    while !chunks.is_empty() {
        let slices: Vec<_> = chunks.iter().take(SLICES).map(|chunk| IoSlice::new(chunk)).collect();
        match rustix::io::writev(pipe, &slices) {
            Ok(written) => advance(chunks, written),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            // The function has closed its stdin, because it needs no more input.
            Err(Errno::PIPE) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn advance(chunks: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(chunk) = chunks.front_mut() {
        if chunk.len() > written {
            return chunk.advance(written);
        }
        written -= chunk.len();
        // Frees the memory of the chunk, if no other chunk shares it.
        chunks.pop_front();
    }
}

/// Memory for a function's stdout.
enum Buffer {
    /// Grows as needed.
    Heap(Vec<u8>),
    /// Pages of the kernel, with room for the largest output, and the number of bytes read. The
    /// kernel provides a page when it is written, and takes all back after the call. The heap would
    /// keep most of the memory of large outputs, in pieces.
    Pages(MmapMut, usize),
}

impl Buffer {
    /// A buffer for an output of about `expected` bytes, of which at most `limit` are read.
    fn new(expected: usize, limit: usize) -> Self {
        let pages = (expected >= PAGES_FROM).then(|| MmapMut::map_anon(limit.saturating_add(1)).ok());
        match pages.flatten() {
            Some(pages) => Self::Pages(pages, 0),
            // Most functions write about as much as they read.
            None => Self::Heap(Vec::with_capacity(expected.min(limit).saturating_add(CAPACITY))),
        }
    }

    /// Reads once. Returns the number of bytes, and whether there may be more now.
    fn read(&mut self, pipe: BorrowedFd<'_>) -> Result<(usize, bool), Errno> {
        let room = match self {
            Self::Heap(bytes) if bytes.len() == bytes.capacity() => {
                bytes.reserve(CAPACITY);
                bytes.capacity() - bytes.len()
            }
            Self::Heap(bytes) => bytes.capacity() - bytes.len(),
            Self::Pages(pages, len) => pages.len() - *len,
        };
        let read = match self {
            Self::Heap(bytes) => rustix::io::read(pipe, spare_capacity(bytes))?,
            Self::Pages(pages, len) => {
                let read = rustix::io::read(pipe, &mut pages[*len..])?;
                *len += read;
                read
            }
        };
        // After a shorter read, the pipe is empty.
        Ok((read, read == room))
    }

    fn len(&self) -> usize {
        match self {
            Self::Heap(bytes) => bytes.len(),
            Self::Pages(_, len) => *len,
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Heap(bytes) => bytes.into(),
            Self::Pages(pages, len) => Bytes::from_owner(pages).slice(..len),
        }
    }
}

/// Reads stdout to its end, or until `ended` completes. `expected` is a guess of its length.
pub(super) async fn read_stdout(
    pipe: &OwnedFd,
    limit: usize,
    expected: usize,
    ended: impl Future<Output = Result<(), RunError>>,
) -> Result<Bytes, RunError> {
    tokio::pin!(ended);
    let failed = failed("reading the function's stdout");
    let pipe = watch(pipe.as_fd(), Interest::READABLE).map_err(&failed)?;
    let mut stdout = Buffer::new(expected, limit);
    loop {
        let mut ready = tokio::select! {
            biased;
            ready = pipe.readable() => ready.map_err(&failed)?,
            ended = &mut ended => return ended.map(|()| stdout.into_bytes()),
        };
        loop {
            match stdout.read(*pipe.get_ref()) {
                Ok((0, _)) => return Ok(stdout.into_bytes()),
                Ok(_) if stdout.len() > limit => return Err(RunError::StdoutTooLarge),
                Ok((_, false)) | Err(Errno::AGAIN) => break,
                Ok((_, true)) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        ready.clear_ready();
    }
}

/// Reads stderr while the function runs, so that a full pipe does not stop the function.
pub(super) async fn read_stderr(pipe: &OwnedFd, stderr: &mut Stderr) -> io::Result<()> {
    sleep(STDERR_WAITS).await;
    let pipe = watch(pipe.as_fd(), Interest::READABLE)?;
    let mut buffer = Vec::with_capacity(8 * 1024);
    loop {
        let mut ready = pipe.readable().await?;
        match rustix::io::read(pipe.get_ref(), spare_capacity(&mut buffer)) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                stderr.push(&buffer);
                buffer.clear();
            }
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads the current contents of the pipe, without waiting for a process that keeps it open.
pub(super) fn read_rest_of_stderr(pipe: OwnedFd, stderr: &mut Stderr) -> io::Result<()> {
    // The largest pipe that a process without privileges can create. The limit is needed because a
    // process that keeps writing must not delay the end of the call.
    const MOST: u64 = 1024 * 1024;
    let mut rest = Vec::new();
    // `take` saves the system calls that ask for the size of a file.
    let read = File::from(pipe).take(MOST).read_to_end(&mut rest);
    stderr.push(&rest);
    match read {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

/// Registers a descriptor with the runtime.
pub(super) fn watch(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
    #[expect(deprecated, reason = "the successor is unsafe; a borrowed descriptor meets its conditions")]
    AsyncFd::with_interest(fd, interest)
}

/// `access` is the pipe's own mode: setting the flags without it would need a further system call.
fn non_blocking<T: Into<OwnedFd>>(pipe: Option<T>, access: OFlags) -> io::Result<OwnedFd> {
    let pipe: OwnedFd = pipe.ok_or(io::ErrorKind::BrokenPipe)?.into();
    fcntl_setfl(&pipe, access | OFlags::NONBLOCK)?;
    Ok(pipe)
}
