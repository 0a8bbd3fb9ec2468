//! The last failures, for status pages. Only a few are kept, because each contains a caller's
//! input. Equal failures share one entry, so that a frequent failure does not displace the others.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use porch_fn_text::cut;
use serde::{Deserialize, Serialize};

/// Maximum number of entries.
const MAX_FAILURES: usize = 50;
/// Longest text, in bytes.
const MAX_TEXT: usize = 200;
/// Longest image name, in bytes.
const MAX_IMAGE: usize = 300;

/// Calls that failed in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Time of the last of these failures, in milliseconds since 1970, by the clock of the
    /// reporting process.
    pub at_ms: u64,
    /// How many calls failed like this.
    pub count: u64,
    /// The program that recorded these failures, `router` or `runner`. Only the status page sets
    /// this.
    pub by: String,
    /// The name of the router that recorded these failures; empty if a runner did. Only the status
    /// page sets this.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub router: String,
    /// The address of the runner where the call failed; empty if the router's error names no
    /// runner. A runner leaves this empty: the status page sets it.
    pub shard: String,
    /// The image, cut to a maximum length; empty when it is not known.
    pub image: String,
    /// The name of a gRPC code. Or `BROKEN`, `NOT_SENT` or `SHED` for a failed attempt, after which
    /// a router may send the call to another runner.
    pub code: String,
    /// The message's first line that is not blank, cut to a maximum length.
    pub text: String,
}

/// The last failures. Equal failures share one entry.
#[derive(Debug, Default)]
pub struct Failures(Mutex<VecDeque<Failure>>);

impl Failures {
    /// Records a failure at the current time.
    pub fn note(&self, image: &str, shard: &str, code: &str, text: &str) {
        self.note_at(now_ms(), image, shard, code, text);
    }

    fn note_at(&self, at_ms: u64, image: &str, shard: &str, code: &str, text: &str) {
        let mut failure = Failure {
            at_ms,
            count: 1,
            by: String::new(),
            router: String::new(),
            shard: shard.to_owned(),
            image: cut(image, MAX_IMAGE, "").into_owned(),
            code: code.to_owned(),
            text: cut(first_line(text), MAX_TEXT, "").into_owned(),
        };
        let mut failures = self.0.lock();
        let same = failures.iter().position(|known| {
            let Failure { image, shard, code, text, .. } = known;
            (image, shard, code, text) == (&failure.image, &failure.shard, &failure.code, &failure.text)
        });
        // The latest failure is the last entry.
        if let Some(known) = same.and_then(|place| failures.remove(place)) {
            failure.count = known.count.saturating_add(1);
        }
        if failures.len() >= MAX_FAILURES {
            failures.pop_front();
        }
        failures.push_back(failure);
    }

    /// All recorded failures, the latest last.
    pub fn all(&self) -> Vec<Failure> {
        self.0.lock().iter().cloned().collect()
    }
}

/// The current time, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The first line that is not blank.
fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_failures_share_one_entry_that_moves_to_the_end() {
        let failures = Failures::default();
        for (at_ms, image) in [(1, "a"), (2, "b"), (3, "a")] {
            failures.note_at(at_ms, image, "", "INTERNAL", "boom");
        }
        let all = failures.all().into_iter().map(|one| (one.at_ms, one.count, one.image));
        assert_eq!(all.collect::<Vec<_>>(), [(2, 1, "b".to_owned()), (3, 2, "a".to_owned())]);
        for (image, shard, code, text) in [
            ("c", "", "INTERNAL", "boom"),
            ("a", "s", "INTERNAL", "boom"),
            ("a", "", "UNKNOWN", "boom"),
            ("a", "", "INTERNAL", "bang"),
        ] {
            failures.note_at(4, image, shard, code, text);
        }
        assert_eq!(failures.all().len(), 6, "a failure that differs in one field gets its own entry");
    }

    #[test]
    fn the_number_of_entries_and_their_texts_are_bounded() {
        let failures = Failures::default();
        for number in 0..1000 {
            failures.note_at(1, &number.to_string(), "", "INTERNAL", "other");
        }
        let long = format!("\n  {}\nsecond", "ž".repeat(300));
        failures.note_at(2, &"ž".repeat(400), "", "INTERNAL", &long);
        let all = failures.all();
        assert_eq!((all.len(), &*all[0].image, &*all[MAX_FAILURES - 2].image), (MAX_FAILURES, "951", "999"));
        let last = &all[MAX_FAILURES - 1];
        assert_eq!((&last.text, &last.image), (&"ž".repeat(MAX_TEXT / 2), &"ž".repeat(MAX_IMAGE / 2)));
    }
}
