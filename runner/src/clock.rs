//! This machine's clock, as the pool's [`Time`].

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::SignedDuration;
use porch_fn_pool::Time;

/// The current time of this machine's clock.
pub(crate) fn now() -> Time {
    time(SystemTime::now()).unwrap_or_default()
}

/// Converts a time of this machine's clock. `None` means a time before 1970.
pub(crate) fn time(at: SystemTime) -> Option<Time> {
    Some(Time::default() + at.duration_since(UNIX_EPOCH).ok()?)
}

/// The current time of a clock that is `ahead` of this machine's clock.
pub(crate) fn now_ahead(ahead: SignedDuration) -> Time {
    let now = now();
    if ahead.is_negative() { now - ahead.unsigned_abs() } else { now + ahead.unsigned_abs() }
}
