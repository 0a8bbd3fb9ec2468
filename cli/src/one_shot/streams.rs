//! Copies the standard streams of a function. The caller's ends may be shared with other programs:
//! these may have made them return at once, or write to the same file. So each step is a plain read
//! or write, and not a splice, which has a position of its own.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};

const BUFFER: usize = 64 << 10;

/// Copies to the end, or until nobody reads what it writes.
pub(crate) fn copy(from: &impl AsFd, to: &impl AsFd) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = patiently(from, PollFlags::IN, || read(from, &mut buffer))?;
        let mut rest = &buffer[..length];
        if rest.is_empty() {
            return Ok(());
        }
        while !rest.is_empty() {
            match patiently(to, PollFlags::OUT, || write(to, rest)) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                written => rest = &rest[written?..],
            }
        }
    }
}

/// Whether a short text can be written without waiting for a reader.
pub(crate) fn takes_more(to: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(to, PollFlags::OUT)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Repeats what would have to wait, when it need not.
fn patiently(
    at: &impl AsFd,
    ready: PollFlags,
    mut step: impl FnMut() -> Result<usize, Errno>,
) -> io::Result<usize> {
    loop {
        match step() {
            // An interrupted wait is over, too.
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(at, ready)], None)),
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}
