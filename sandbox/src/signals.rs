//! A function starts with no signal ignored and none blocked, whatever its caller does with them.
//! What is ignored or blocked is inherited by each program that a process starts; a handler is not.

use std::fs;
use std::io;
use std::sync::Arc;

use nix::sys::signal::SigSet;
use signal_hook::consts::FORBIDDEN;
use signal_hook::flag;

/// Gives the signals that this process ignores a handler that does nothing. Also, the end of a child
/// is reported then.
pub(crate) fn handle_ignored() -> io::Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    for signal in (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1 && !FORBIDDEN.contains(signal)) {
        // The C library has some of the last ones for itself.
        let _ = flag::register(signal, Arc::default());
    }
    Ok(())
}

/// Blocks no signal.
pub(crate) fn unblock() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}
