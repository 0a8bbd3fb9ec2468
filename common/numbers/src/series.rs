//! The numbers of one image or runner, in slots of 10 s.

use std::iter::repeat_n;
use std::time::Duration;

use crate::Recorded;
use crate::counts::{BUCKETS, Counts, bucket};

/// Length of a slot.
pub const SLOT: Duration = Duration::from_secs(10);
/// Number of slots with calls: ten minutes.
pub const SLOTS: usize = 60;
/// Number of slots with durations: those that the last minute touches.
const MINUTE: usize = 7;

/// The numbers of one image or runner, at most 8 KiB. All times are durations since the same
/// moment.
#[derive(Debug)]
pub struct Series {
    calls: u64,
    failed: u64,
    /// The number of the newest slot with a call.
    newest: u64,
    /// When the last call ended.
    last: Duration,
    /// The slots' calls and failed calls, newest first.
    slots: [[u32; 2]; SLOTS],
    durations: Box<[[u32; BUCKETS]; MINUTE]>,
}

impl Default for Series {
    fn default() -> Self {
        let durations = Box::new([[0; BUCKETS]; MINUTE]);
        Self { calls: 0, failed: 0, newest: 0, last: Duration::ZERO, slots: [[0; 2]; SLOTS], durations }
    }
}

impl Series {
    /// Records a call that ended at `now`. A call that is recorded late, after a call of a newer
    /// slot, counts in that newer slot.
    pub fn record(&mut self, now: Duration, took: Duration, failed: bool) {
        self.advance(slot(now));
        self.last = self.last.max(now);
        self.calls += 1;
        self.failed += u64::from(failed);
        let [calls, failures] = &mut self.slots[0];
        *calls = calls.saturating_add(1);
        *failures = failures.saturating_add(failed.into());
        let count = &mut self.durations[0][bucket(took)];
        *count = count.saturating_add(1);
    }

    /// A snapshot at `now`.
    pub fn recorded(&self, now: Duration) -> Recorded {
        let at = slot(now).max(self.newest);
        let into_slot = if at == slot(now) { now.as_millis() % SLOT.as_millis() } else { 0 };
        let left = SLOT.as_millis().saturating_sub(into_slot) as u64;
        let idle = self.idle(at);
        let begun = self.slots.iter().take(SLOTS - idle).rev().map(|slot| slot.map(u64::from));
        let ten_minutes: Vec<_> = begun.chain(repeat_n([0; 2], idle)).collect();
        let mut minute = [0; 2];
        for (age, calls) in ten_minutes.iter().rev().take(MINUTE).enumerate() {
            // Only a part of the oldest slot is in the last 60 s.
            let part = if age == MINUTE - 1 { left } else { SLOT.as_millis() as u64 };
            crate::add(&mut minute, calls.map(|calls| (calls * part + 5000) / 10_000));
        }
        let mut sums = [0_u64; BUCKETS];
        for counts in self.durations.iter().take(MINUTE.saturating_sub(idle)) {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += u64::from(*count);
            }
        }
        let durations = Counts::of(&sums);
        let (calls, failed) = (self.calls, self.failed);
        Recorded { calls, failed, minute, ten_minutes, durations, queue: Counts::default() }
    }

    /// How often the image was used: its calls in the last ten minutes, then the time of its last
    /// call.
    pub(crate) fn use_at(&self, now: Duration) -> (u64, Duration) {
        let calls = |slots: &[[u32; 2]]| slots.iter().map(|[calls, _]| u64::from(*calls)).sum::<u64>();
        let too_old = &self.slots[SLOTS - self.idle(slot(now))..];
        (calls(&self.slots) - calls(too_old), self.last)
    }

    /// Moves all calls of `other` into this series, and leaves `other` empty.
    pub(crate) fn take(&mut self, other: &mut Self) {
        let newest = self.newest.max(other.newest);
        self.advance(newest);
        other.advance(newest);
        self.last = self.last.max(std::mem::take(&mut other.last));
        self.calls += std::mem::take(&mut other.calls);
        self.failed += std::mem::take(&mut other.failed);
        let calls = self.slots.as_flattened_mut().iter_mut().zip(other.slots.as_flattened_mut());
        let durations = self.durations.as_flattened_mut().iter_mut().zip(other.durations.as_flattened_mut());
        for (sum, more) in calls.chain(durations) {
            *sum = sum.saturating_add(std::mem::take(more));
        }
    }

    /// Begins the slot `at`, unless it has begun.
    fn advance(&mut self, at: u64) {
        if at <= self.newest {
            return;
        }
        let idle = self.idle(at);
        self.slots.rotate_right(idle);
        self.slots[..idle].fill([0; 2]);
        let idle = idle.min(MINUTE);
        self.durations.rotate_right(idle);
        self.durations[..idle].fill([0; BUCKETS]);
        self.newest = at;
    }

    /// How many of the last [`SLOTS`] slots up to `at` have not begun for this series.
    fn idle(&self, at: u64) -> usize {
        at.saturating_sub(self.newest).min(SLOTS as u64) as usize
    }
}

fn slot(now: Duration) -> u64 {
    now.as_secs() / SLOT.as_secs()
}
