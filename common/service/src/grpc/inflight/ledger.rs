//! Who holds how many bytes: the arithmetic of admission, without clock, lock or message.
//!
//! A call whose message is still coming in may lose its place: when another finds no room, those go whose message
//! should have been there by now. So nobody keeps others out by calls that are never sent. Times are durations since
//! any fixed moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::Why;

/// How long a message may take that is as large as nothing.
const GRACE: Duration = Duration::from_secs(1);
/// And each of these bytes a second more.
const BYTES_PER_SECOND: u64 = 256 * 1024;

/// A call whose message is coming in: when it is due, and a number.
pub(super) type Place = (Duration, u64);

/// Bytes held. Calls and answers have accounts of their own, each with the limit: so answers, whose work is done, are
/// not refused for calls, and keep no calls out.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    limit: usize,
    calls: usize,
    /// Of these calls the bytes, and how to tell them that they lost their place.
    receiving: BTreeMap<Place, (usize, T)>,
    /// Places given so far.
    places: u64,
    answers: usize,
    /// Of calls, by image; only images that hold something.
    images: HashMap<Arc<str>, usize>,
    refused: [u64; Why::ALL.len()],
}

impl<T> Ledger<T> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            calls: 0,
            receiving: BTreeMap::new(),
            places: 0,
            answers: 0,
            images: HashMap::new(),
            refused: [0; Why::ALL.len()],
        }
    }

    /// Takes `bytes` for a call whose message begins to come in at `now`. Adds to `evicted` whoever loses its place to it.
    pub(super) fn enter(
        &mut self,
        bytes: usize,
        tell: T,
        now: Duration,
        evicted: &mut Vec<T>,
    ) -> Result<Place, Why> {
        self.room(bytes, now, evicted)?;
        self.calls += bytes;
        self.places += 1;
        let place = (now + GRACE, self.places);
        self.receiving.insert(place, (bytes, tell));
        Ok(place)
    }

    /// Takes `bytes` more for a message that is coming in, which then may take longer: returns the call's new place.
    pub(super) fn announce(
        &mut self,
        place: Place,
        bytes: usize,
        now: Duration,
        evicted: &mut Vec<T>,
    ) -> Result<Place, Why> {
        let (held, tell) = self.receiving.remove(&place).ok_or(Why::Slow)?;
        let room = self.room(bytes, now, evicted);
        let taken = if room.is_ok() { bytes } else { 0 };
        self.calls += taken;
        let longer = Duration::from_millis((taken as u64).saturating_mul(1000) / BYTES_PER_SECOND);
        let (due, number) = place;
        let place = (due + longer, number);
        self.receiving.insert(place, (held + taken, tell));
        room.map(|()| place)
    }

    /// The message is in, or comes no longer: from now on the call keeps its bytes. Returns them, unless it has lost its
    /// place.
    pub(super) fn received(&mut self, place: Place) -> Option<usize> {
        self.receiving.remove(&place).map(|(bytes, _)| bytes)
    }

    /// Sees to room for `bytes`.
    fn room(&mut self, bytes: usize, now: Duration, evicted: &mut Vec<T>) -> Result<(), Why> {
        while bytes > self.limit - self.calls {
            let Some(overdue) = self.receiving.first_entry().filter(|first| first.key().0 <= now) else {
                return Err(self.refuse(Why::Limit));
            };
            let (held, tell) = overdue.remove();
            self.calls = self.calls.saturating_sub(held);
            self.refuse(Why::Slow);
            evicted.push(tell);
        }
        Ok(())
    }

    /// Takes `bytes` for a call, of `image` if that is known already.
    pub(super) fn take(
        &mut self,
        bytes: usize,
        image: Option<&Arc<str>>,
        now: Duration,
        evicted: &mut Vec<T>,
    ) -> Result<(), Why> {
        self.room(bytes, now, evicted)?;
        self.calls += bytes;
        if let Some(image) = image
            && bytes > 0
        {
            *self.images.entry(Arc::clone(image)).or_default() += bytes;
        }
        Ok(())
    }

    /// Takes `bytes` for an answer.
    pub(super) fn take_answer(&mut self, bytes: usize) -> Result<(), Why> {
        if bytes > self.limit - self.answers {
            return Err(self.refuse(Why::Answer));
        }
        self.answers += bytes;
        Ok(())
    }

    /// Says that `bytes`, which were taken, are held for `image`.
    ///
    /// An image may hold as much as is free at that moment (the dynamic threshold of Choudhury and Hahne): one that
    /// floods gets half of the limit, two of them a third each, and there is always room for another. That room is for
    /// an image's first call, which is never refused.
    pub(super) fn claim(&mut self, image: &str, bytes: usize) -> Result<Arc<str>, Why> {
        let free = self.limit - self.calls;
        let Some((name, before)) = self.images.get_key_value(image) else {
            let name = Arc::<str>::from(image);
            self.images.insert(Arc::clone(&name), bytes);
            return Ok(name);
        };
        if before.saturating_add(bytes) > free {
            return Err(self.refuse(Why::Share));
        }
        let name = Arc::clone(name);
        *self.images.entry(Arc::clone(&name)).or_default() += bytes;
        Ok(name)
    }

    /// Gives back `bytes` of a call.
    pub(super) fn give(&mut self, bytes: usize, image: Option<&Arc<str>>) {
        self.calls = self.calls.saturating_sub(bytes);
        if let Some(image) = image
            && let Some(held) = self.images.get_mut(image)
        {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.images.remove(image);
            }
        }
    }

    /// Gives back `bytes` of an answer.
    pub(super) fn give_answer(&mut self, bytes: usize) {
        self.answers = self.answers.saturating_sub(bytes);
    }

    /// In both accounts.
    pub(super) fn held(&self) -> usize {
        self.calls.saturating_add(self.answers)
    }

    /// Refusals so far, in the order of [`Why::ALL`].
    pub(super) fn refused(&self) -> [u64; Why::ALL.len()] {
        self.refused
    }

    fn refuse(&mut self, why: Why) -> Why {
        self.refused[why as usize] += 1;
        why
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Ledger = super::Ledger<u32>;
    const START: Duration = Duration::ZERO;

    /// Of a call whose message is in.
    fn take(ledger: &mut Ledger, bytes: usize, image: Option<&Arc<str>>) -> Result<(), Why> {
        ledger.take(bytes, image, START, &mut Vec::new())
    }

    fn call(ledger: &mut Ledger, image: &str, bytes: usize) -> Result<Arc<str>, Why> {
        take(ledger, bytes, None)?;
        ledger.claim(image, bytes).inspect_err(|_| ledger.give(bytes, None))
    }

    /// How many calls of ten bytes get in, at most a hundred.
    fn flood(ledger: &mut Ledger, image: &str) -> usize {
        (0..100).filter(|_| call(ledger, image, 10).is_ok()).count()
    }

    #[test]
    fn calls_and_answers_have_the_limit_each() {
        let mut ledger = Ledger::new(100);
        assert_eq!(take(&mut ledger, 100, None), Ok(()));
        assert_eq!(take(&mut ledger, 1, None), Err(Why::Limit));
        assert_eq!(take(&mut ledger, usize::MAX, None), Err(Why::Limit));
        assert_eq!(ledger.take_answer(100), Ok(()));
        assert_eq!(ledger.take_answer(1), Err(Why::Answer));
        assert_eq!(ledger.held(), 200);
        ledger.give(1, None);
        assert_eq!((take(&mut ledger, 1, None), ledger.take_answer(1)), (Ok(()), Err(Why::Answer)));
        ledger.give_answer(60);
        assert_eq!((ledger.take_answer(60), ledger.held()), (Ok(()), 200));
        assert_eq!(ledger.refused(), [2, 0, 2, 0]);
    }

    #[test]
    fn one_image_gets_half_two_get_a_third_each_and_the_rest_is_for_others() {
        let mut ledger = Ledger::new(600);
        assert_eq!(flood(&mut ledger, "a"), 30);
        // The second finds half of it free, and gets half of that: a flood before it is not cut short.
        assert_eq!(flood(&mut ledger, "b"), 15);
        let (mut a, mut b) = (30, 15);
        // With both at it, and calls that end, they come to a third each.
        for _ in 0..100 {
            for (image, count) in [("a", &mut a), ("b", &mut b)] {
                ledger.give(10, Some(&Arc::from(image)));
                *count = *count - 1 + usize::from(call(&mut ledger, image, 10).is_ok());
                *count += usize::from(call(&mut ledger, image, 10).is_ok());
            }
        }
        assert_eq!((a, b), (20, 20));
        assert_eq!(call(&mut ledger, "c", 200).as_deref(), Ok("c"), "the first call of a third");
        assert_eq!(ledger.held(), 600);
    }

    #[test]
    fn a_message_that_is_overdue_makes_room_for_another_and_only_then() {
        let mut ledger = Ledger::new(1_000_000);
        let mut evicted = Vec::new();
        let s = Duration::from_secs;
        // Two that announce nothing, one that announces what takes two seconds more.
        let silent = ledger.enter(100_000, 1, s(0), &mut evicted).unwrap();
        let second = ledger.enter(100_000, 2, s(1), &mut evicted).unwrap();
        let large = ledger.enter(1, 3, s(0), &mut evicted).unwrap();
        let large = ledger.announce(large, 524_288, s(0), &mut evicted).unwrap();
        assert_eq!(ledger.take(600_000, None, Duration::from_millis(999), &mut evicted), Err(Why::Limit));
        assert_eq!(
            (ledger.take(200_000, None, s(60), &mut evicted), evicted.as_slice()),
            (Ok(()), &[][..]),
            "there is room"
        );
        assert_eq!(ledger.take(100_000, None, s(1), &mut evicted), Ok(()));
        assert_eq!(evicted, [1]);
        assert_eq!(ledger.received(silent), None);
        assert_eq!(ledger.announce(silent, 1, s(1), &mut evicted), Err(Why::Slow));
        // Not enough, but it was overdue.
        assert_eq!(ledger.take(400_000, None, s(2), &mut evicted), Err(Why::Limit));
        assert_eq!(evicted, [1, 2]);
        assert_eq!(ledger.received(second), None);
        assert_eq!(ledger.take(600_000, None, Duration::from_millis(2999), &mut evicted), Err(Why::Limit));
        assert_eq!(ledger.received(large), Some(524_289));
        assert_eq!(
            ledger.take(600_000, None, s(60), &mut evicted),
            Err(Why::Limit),
            "a message that is in stays"
        );
        ledger.give(524_289, None);
        assert_eq!(ledger.held(), 300_000);
        assert_eq!(ledger.refused()[Why::Slow as usize], 2);
    }

    #[test]
    fn an_image_that_holds_nothing_is_forgotten() {
        let mut ledger = Ledger::new(100);
        let name = call(&mut ledger, "a", 40).unwrap();
        take(&mut ledger, 10, Some(&name)).unwrap();
        ledger.give(40, Some(&name));
        assert_eq!(ledger.images[&name], 10);
        ledger.give(10, Some(&name));
        assert!(ledger.images.is_empty());
    }

    proptest! {
        /// Calls and answers of a few images come and go in any order.
        #[test]
        fn the_books_balance(
            steps in prop::collection::vec((0usize..4, 0usize..80, any::<bool>(), any::<prop::sample::Index>()), 1..200),
        ) {
            const LIMIT: usize = 200;
            let mut ledger = Ledger::new(LIMIT);
            let mut calls: Vec<(Arc<str>, usize)> = Vec::new();
            let mut answers: Vec<usize> = Vec::new();
            let sum = |calls: &[(Arc<str>, usize)]| calls.iter().map(|(_, bytes)| bytes).sum::<usize>();
            for (image, bytes, answer, which) in steps {
                let image = ["a", "b", "c", "d"][image];
                let before = sum(&calls);
                if answer {
                    let taken = ledger.take_answer(bytes).is_ok();
                    prop_assert_eq!(taken, answers.iter().sum::<usize>() + bytes <= LIMIT);
                    answers.extend(taken.then_some(bytes));
                } else {
                    let own: usize = calls.iter().filter(|(name, _)| &**name == image).map(|(_, held)| held).sum();
                    // A call holds something always, as its overhead does.
                    let bytes = bytes + 1;
                    let entered = call(&mut ledger, image, bytes);
                    let fits = before + bytes <= LIMIT;
                    let fair = own == 0 || own + bytes <= LIMIT.saturating_sub(before + bytes);
                    prop_assert_eq!(entered.is_ok(), fits && fair);
                    calls.extend(entered.map(|name| (name, bytes)));
                }
                if !calls.is_empty() && which.index(3) == 0 {
                    let (name, bytes) = calls.swap_remove(which.index(calls.len()));
                    ledger.give(bytes, Some(&name));
                }
                if !answers.is_empty() && which.index(3) == 1 {
                    ledger.give_answer(answers.swap_remove(which.index(answers.len())));
                }
                prop_assert_eq!(ledger.held(), sum(&calls) + answers.iter().sum::<usize>());
                prop_assert!(ledger.held() <= 2 * LIMIT);
                prop_assert_eq!(ledger.images.values().sum::<usize>(), sum(&calls));
            }
            for (name, bytes) in calls.drain(..) {
                ledger.give(bytes, Some(&name));
            }
            answers.drain(..).for_each(|bytes| ledger.give_answer(bytes));
            prop_assert_eq!(ledger.held(), 0);
            prop_assert!(ledger.images.is_empty());
        }

        /// Whatever one image sends and is answered, another's call of up to half the limit finds room.
        #[test]
        fn a_flood_leaves_room(sizes in prop::collection::vec(1usize..300, 1..300), other in 1usize..500) {
            let mut ledger = Ledger::new(1000);
            for bytes in sizes {
                let _ = call(&mut ledger, "flood", bytes);
                let _ = ledger.take_answer(bytes * 3);
            }
            prop_assert!(call(&mut ledger, "other", other).is_ok());
        }
    }
}
