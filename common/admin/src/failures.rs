//! The failures of late, for status pages: a few, since each holds what a caller sent, and since a flood of one failure
//! must not drive the others out.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use porch_fn_text::cut;

/// Failures remembered.
pub const MAX_FAILURES: usize = 50;
/// Longest text, in bytes.
pub const MAX_TEXT: usize = 200;
/// Longest image name, in bytes.
const MAX_IMAGE: usize = 300;

/// Calls that failed in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The last time, in milliseconds since 1970.
    pub at_ms: u64,
    /// How many there were.
    pub count: u64,
    /// The image, cut to a bound.
    pub image: String,
    /// The runner that it happened at, if it is another's to say.
    pub shard: String,
    /// A gRPC code's name, or one word for what is none.
    pub code: &'static str,
    /// The first line of the message, cut to [`MAX_TEXT`].
    pub text: String,
}

/// The failures of late, one entry for those that are the same.
#[derive(Debug, Default)]
pub struct Failures(Mutex<VecDeque<Failure>>);

impl Failures {
    /// Remembers one that happens now.
    pub fn note(&self, image: &str, shard: &str, code: &'static str, text: &str) {
        self.note_at(now_ms(), image, shard, code, text);
    }

    fn note_at(&self, at_ms: u64, image: &str, shard: &str, code: &'static str, text: &str) {
        let (image, text) = (cut(image, MAX_IMAGE, ""), cut(first_line(text), MAX_TEXT, ""));
        let mut failures = self.lock();
        let same = failures.iter().position(|known| {
            known.code == code && known.image == image && known.shard == shard && known.text == text
        });
        // The latest stands last.
        let failure = match same.and_then(|place| failures.remove(place)) {
            Some(known) => Failure { at_ms, count: known.count.saturating_add(1), ..known },
            None => Failure {
                at_ms,
                count: 1,
                image: image.into_owned(),
                shard: shard.to_owned(),
                code,
                text: text.into_owned(),
            },
        };
        if failures.len() >= MAX_FAILURES {
            failures.pop_front();
        }
        failures.push_back(failure);
    }

    /// All that are remembered, the latest last.
    pub fn all(&self) -> Vec<Failure> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Failure>> {
        // Whole at every moment at which a panic is possible.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The first line with something on it.
fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(failures: &Failures) -> Vec<(u64, u64, String, String)> {
        failures.all().into_iter().map(|one| (one.at_ms, one.count, one.image, one.text)).collect()
    }

    #[test]
    fn the_same_failure_is_one_entry_and_moves_to_the_end() {
        let failures = Failures::default();
        failures.note_at(1, "a", "", "INTERNAL", "boom");
        failures.note_at(2, "b", "", "INTERNAL", "boom");
        failures.note_at(3, "a", "", "INTERNAL", "boom");
        let expected = [(2, 1, "b".into(), "boom".into()), (3, 2, "a".into(), "boom".into())];
        assert_eq!(told(&failures), expected);
        // What differs in anything is another one.
        for (image, shard, code, text) in [
            ("c", "", "INTERNAL", "boom"),
            ("a", "s", "INTERNAL", "boom"),
            ("a", "", "UNKNOWN", "boom"),
            ("a", "", "INTERNAL", "bang"),
        ] {
            failures.note_at(4, image, shard, code, text);
        }
        assert_eq!(failures.all().len(), 6);
    }

    #[test]
    fn a_flood_keeps_what_others_left_and_all_is_bounded() {
        let failures = Failures::default();
        failures.note_at(1, "quiet", "", "INTERNAL", "once");
        for at in 0..1000 {
            failures.note_at(at, "loud", "", "INTERNAL", "again");
        }
        assert_eq!(failures.all().len(), 2);
        for number in 0..1000 {
            failures.note_at(2000, &format!("{number}"), "", "INTERNAL", "other");
        }
        let all = failures.all();
        assert_eq!((all.len(), &*all[0].image, &*all[MAX_FAILURES - 1].image), (MAX_FAILURES, "950", "999"));
    }

    #[test]
    fn texts_are_a_first_line_of_bounded_length() {
        let failures = Failures::default();
        failures.note_at(1, &"ž".repeat(400), "", "INTERNAL", &format!("\n  {}\nsecond", "ž".repeat(300)));
        failures.note_at(2, "", "", "INTERNAL", "");
        let all = failures.all();
        assert_eq!(all[0].text, "ž".repeat(MAX_TEXT / 2));
        assert_eq!(all[0].image, "ž".repeat(MAX_IMAGE / 2));
        assert_eq!((&*all[1].image, &*all[1].text), ("", ""));
    }
}
