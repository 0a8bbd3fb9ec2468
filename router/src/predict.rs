//! Learns which image follows which, so that the pods of a pipeline start together (`--predict`).
//!
//! Porch renders a package by calling one function after the other. If no pod of them runs, each
//! call waits for the start of a pod. When the first call arrives, the router sends hints to the
//! owners of the images that will probably follow.
//!
//! A call follows another one if it starts soon after the other's answer, and its package has about
//! the size of that answer: a function passes on the package that it got, with small changes. The
//! sizes tell the pipelines apart that run at the same time. They also tell packages apart that
//! share an image but have different pipelines. A wrong guess costs at most one pod that nobody
//! uses, until its time to live is over.
//!
//! Pure: times are durations since an origin of the caller's choice. Everything is bounded, because
//! images are callers' input.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;

/// Maximum number of images that are remembered. The least recently called one is dropped.
const MAX_IMAGES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// Maximum number of answers that a call may follow.
const MAX_ANSWERS: usize = 64;
/// How many of the last calls of an image are remembered. Older ones no longer count.
const MAX_SEEN: usize = 16;
/// A call follows an answer within this time. Porch needs milliseconds between two functions.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(2);
/// A hint is sent if the image has followed in at least this part of the calls.
const LIKELY: f32 = 0.5;
/// How many images of a pipeline get hints.
const MAX_HINTS: usize = 8;
/// An image that was called or hinted within this time has a pod that runs or starts.
const WARM: Duration = Duration::from_secs(5);

/// An image as a caller wrote it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The shard key.
    pub(crate) key: Arc<str>,
    pub(crate) image: String,
    /// The request's field `tag`.
    pub(crate) tag: String,
}

/// The pipelines that were seen.
#[derive(Debug)]
pub(crate) struct Predictor {
    images: LruCache<Arc<str>, Known>,
    /// Answers that no call has followed yet; the oldest first.
    answers: VecDeque<Answer>,
}

#[derive(Debug)]
struct Known {
    target: Arc<Target>,
    /// When the image was last called or hinted.
    used: Duration,
    /// The size and the time of the last call whose successors were looked up.
    looked_up: Option<(usize, Duration)>,
    /// The last calls; the oldest first.
    seen: VecDeque<Seen>,
}

/// A call, and what followed it.
#[derive(Debug)]
struct Seen {
    /// The size of the call's package.
    size: usize,
    /// The next image and the size of its package; `None` after the last call of a pipeline.
    next: Option<(Arc<str>, usize)>,
}

#[derive(Debug)]
struct Answer {
    key: Arc<str>,
    /// The sizes of the package in the call and in its answer.
    asked: usize,
    answered: usize,
    at: Duration,
}

/// Whether two packages may be the same one, before and after a function has changed it.
fn may_follow(before: usize, after: usize) -> bool {
    before.abs_diff(after) <= (before / 10).max(4096)
}

/// Whether two packages are probably the same one at the same place of a pipeline.
fn is_alike(one: usize, other: usize) -> bool {
    one.abs_diff(other) <= (one / 100).max(64)
}

// === impl Predictor ===

impl Predictor {
    pub(crate) fn new() -> Self {
        Self { images: LruCache::new(MAX_IMAGES), answers: VecDeque::new() }
    }

    /// A call arrives with a package of `size` bytes. Returns the images that will probably follow
    /// and may have no pod.
    pub(crate) fn call(&mut self, target: Target, size: usize, now: Duration) -> Vec<Arc<Target>> {
        self.expire(now);
        let key = Arc::clone(&target.key);
        if let Some(before) = self.take_answer(size) {
            self.learn(&before, Some((Arc::clone(&key), size)));
        }
        match self.images.get_mut(&key) {
            Some(known) => known.used = now,
            None => {
                let (target, seen) = (Arc::new(target), VecDeque::new());
                let known = Known { target, used: now, looked_up: None, seen };
                self.images.put(Arc::clone(&key), known);
            }
        }
        self.hints(key, size, now)
    }

    /// A call of the image with a package of `asked` bytes was answered with one of `answered`
    /// bytes.
    pub(crate) fn answered(&mut self, key: &Arc<str>, asked: usize, answered: usize, now: Duration) {
        self.expire(now);
        if self.answers.len() == MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(Answer { key: Arc::clone(key), asked, answered, at: now });
    }

    /// An answer that nothing has followed in time is the end of a pipeline.
    fn expire(&mut self, now: Duration) {
        while let Some(answer) = self.answers.pop_front_if(|answer| answer.at + FOLLOWS_WITHIN < now) {
            self.learn(&answer, None);
        }
    }

    /// Removes and returns the answer that a package of `size` bytes follows.
    fn take_answer(&mut self, size: usize) -> Option<Answer> {
        let answers = self.answers.iter().enumerate();
        let fitting = answers.filter(|(_, answer)| may_follow(answer.answered, size));
        let (index, _) = fitting.min_by_key(|(_, answer)| answer.answered.abs_diff(size))?;
        self.answers.remove(index)
    }

    fn learn(&mut self, answer: &Answer, next: Option<(Arc<str>, usize)>) {
        let Some(known) = self.images.peek_mut(&answer.key) else { return };
        if known.seen.len() == MAX_SEEN {
            known.seen.pop_front();
        }
        known.seen.push_back(Seen { size: answer.asked, next });
    }

    /// The likely successors of a call, one after the other.
    fn hints(&mut self, mut key: Arc<str>, mut size: usize, now: Duration) -> Vec<Arc<Target>> {
        let mut hints = Vec::new();
        let Some(known) = self.images.peek_mut(&key) else { return hints };
        // The same package again: its successors are warm, or start already.
        if known.looked_up.is_some_and(|(known, at)| is_alike(known, size) && now < at + WARM) {
            return hints;
        }
        known.looked_up = Some((size, now));
        let mut passed = vec![Arc::clone(&key)];
        while let Some((next, next_size)) = self.images.peek(&key).and_then(|known| known.likely(size))
            && passed.len() <= MAX_HINTS
            && !passed.contains(&next)
        {
            let Some(known) = self.images.peek_mut(&next) else { break };
            if known.used + WARM < now {
                known.used = now;
                hints.push(Arc::clone(&known.target));
            }
            passed.push(Arc::clone(&next));
            (key, size) = (next, next_size);
        }
        hints
    }
}

impl Seen {
    /// The image that followed.
    fn image(&self) -> Option<&str> {
        self.next.as_ref().map(|(image, _)| &**image)
    }
}

impl Known {
    /// What will probably follow a call with a package of this size. Only calls with such a package
    /// count, if there were any.
    fn likely(&self, size: usize) -> Option<(Arc<str>, usize)> {
        let alike: Vec<_> = self.seen.iter().filter(|seen| is_alike(seen.size, size)).collect();
        let seen = if alike.is_empty() { self.seen.iter().collect() } else { alike };
        let count = |wanted: &Seen| seen.iter().filter(|seen| seen.image() == wanted.image()).count();
        // Of equally frequent ones, the latest counts.
        let best = seen.iter().max_by_key(|seen| count(seen))?;
        let is_likely = count(best) as f32 >= LIKELY * seen.len() as f32;
        best.next.clone().filter(|_| is_likely)
    }
}

#[cfg(test)]
mod tests;
