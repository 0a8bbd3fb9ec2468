//! Who holds how many bytes: the arithmetic of admission, without clock, lock or message.
//!
//! A call whose message is not in may lose its place, so that nobody keeps others out by calls that
//! are never sent. Calls that have sent their headers alone have an account of their own, whose
//! oldest makes room for the next. A message that comes in makes room when it is overdue and
//! another call needs it. Times are durations since any fixed moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::Why;

/// How long a message that comes in may make no progress before its call may lose its place.
const GRACE: Duration = Duration::from_millis(500);

/// A call whose message is not in yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It has sent its headers alone.
    Waiting(u64),
    /// Its message comes in, and is overdue at this time unless it makes progress.
    Receiving(Duration, u64),
}

/// Bytes held. Calls and answers have accounts of their own, each with the limit: so answers, whose work is done, are
/// not refused for calls, and keep no calls out.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    limit: usize,
    calls: usize,
    /// Of these the calls whose message comes in: their bytes, and how to tell them that they lost
    /// their place.
    receiving: BTreeMap<(Duration, u64), (usize, T)>,
    /// The same of calls that have sent their headers alone. They are not among `calls`.
    waiting: BTreeMap<u64, (usize, T)>,
    waiting_bytes: usize,
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
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            places: 0,
            answers: 0,
            images: HashMap::new(),
            refused: [0; Why::ALL.len()],
        }
    }

    /// A call has sent its headers, which hold `bytes`. Adds the calls that lose their place to
    /// `evicted`.
    pub(super) fn enter(&mut self, bytes: usize, tell: T, evicted: &mut Vec<T>) -> Result<Place, Why> {
        if bytes > self.limit {
            return Err(self.refuse(Why::Limit));
        }
        while bytes > self.limit - self.waiting_bytes {
            // There is one, or nothing would be held.
            let Some((_, (held, tell))) = self.waiting.pop_first() else { break };
            self.waiting_bytes = self.waiting_bytes.saturating_sub(held);
            self.refuse(Why::Slow);
            evicted.push(tell);
        }
        self.places += 1;
        self.waiting_bytes += bytes;
        self.waiting.insert(self.places, (bytes, tell));
        Ok(Place::Waiting(self.places))
    }

    /// The call's message is announced with this size. On success its bytes are among those of
    /// calls.
    pub(super) fn announce(
        &mut self,
        place: Place,
        size: usize,
        now: Duration,
        evicted: &mut Vec<T>,
    ) -> Result<Place, Why> {
        let (bytes, tell) = self.leave(place).ok_or(Why::Slow)?;
        self.give(bytes, None);
        let bytes = bytes.saturating_add(size);
        self.room(bytes, now, evicted)?;
        self.calls += bytes;
        self.places += 1;
        self.receiving.insert((now + GRACE, self.places), (bytes, tell));
        Ok(Place::Receiving(now + GRACE, self.places))
    }

    /// More of the message is there.
    pub(super) fn progress(&mut self, place: Place, now: Duration) -> Result<Place, Why> {
        let Place::Receiving(due, number) = place else { return Ok(place) };
        let held = self.receiving.remove(&(due, number)).ok_or(Why::Slow)?;
        self.receiving.insert((now + GRACE, number), held);
        Ok(Place::Receiving(now + GRACE, number))
    }

    /// The message is in, or comes no longer: from now on the call keeps its bytes. Returns them,
    /// unless it has lost its place.
    pub(super) fn received(&mut self, place: Place) -> Option<usize> {
        self.leave(place).map(|(bytes, _)| bytes)
    }

    /// The bytes of a call that leaves its place, which are among those of calls then.
    fn leave(&mut self, place: Place) -> Option<(usize, T)> {
        match place {
            Place::Waiting(number) => {
                let left = self.waiting.remove(&number)?;
                self.waiting_bytes = self.waiting_bytes.saturating_sub(left.0);
                self.calls = self.calls.saturating_add(left.0);
                Some(left)
            }
            Place::Receiving(due, number) => self.receiving.remove(&(due, number)),
        }
    }

    /// Sees to room for `bytes`.
    fn room(&mut self, bytes: usize, now: Duration, evicted: &mut Vec<T>) -> Result<(), Why> {
        while bytes > self.limit.saturating_sub(self.calls) {
            if !self.evict(now, evicted) {
                return Err(self.refuse(Why::Limit));
            }
        }
        Ok(())
    }

    /// Takes its place from the message that is overdue for longest, if there is one.
    fn evict(&mut self, now: Duration, evicted: &mut Vec<T>) -> bool {
        let Some(overdue) = self.receiving.first_entry().filter(|first| first.key().0 <= now) else {
            return false;
        };
        let (held, tell) = overdue.remove();
        self.calls = self.calls.saturating_sub(held);
        self.refuse(Why::Slow);
        evicted.push(tell);
        true
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
        if bytes > self.limit.saturating_sub(self.answers) {
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
    pub(super) fn claim(
        &mut self,
        image: &str,
        bytes: usize,
        now: Duration,
        evicted: &mut Vec<T>,
    ) -> Result<Arc<str>, Why> {
        let Some((name, before)) = self.images.get_key_value(image) else {
            let name = Arc::<str>::from(image);
            self.images.insert(Arc::clone(&name), bytes);
            return Ok(name);
        };
        let (name, held) = (Arc::clone(name), before.saturating_add(bytes));
        while held > self.limit.saturating_sub(self.calls) {
            if !self.evict(now, evicted) {
                return Err(self.refuse(Why::Share));
            }
        }
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

    /// In all accounts.
    pub(super) fn held(&self) -> usize {
        self.calls.saturating_add(self.answers).saturating_add(self.waiting_bytes)
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
        ledger.claim(image, bytes, START, &mut Vec::new()).inspect_err(|_| ledger.give(bytes, None))
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
        let mut ledger = Ledger::new(1000);
        let mut evicted = Vec::new();
        let ms = Duration::from_millis;
        let announce = |ledger: &mut Ledger, tell, size, at, evicted: &mut Vec<u32>| {
            let place = ledger.enter(10, tell, evicted).unwrap();
            ledger.announce(place, size, ms(at), evicted)
        };
        let silent = announce(&mut ledger, 1, 390, 0, &mut evicted).unwrap();
        let going_on = announce(&mut ledger, 2, 290, 100, &mut evicted).unwrap();
        assert_eq!(announce(&mut ledger, 3, 390, 499, &mut evicted), Err(Why::Limit));
        assert_eq!((ledger.held(), evicted.len()), (700, 0), "what is refused holds nothing");
        let going_on = ledger.progress(going_on, ms(499)).unwrap();
        let third = announce(&mut ledger, 3, 390, 500, &mut evicted).unwrap();
        assert_eq!((ledger.held(), evicted.as_slice()), (700, &[1][..]));
        assert_eq!((ledger.received(silent), ledger.progress(silent, ms(501))), (None, Err(Why::Slow)));
        assert_eq!(ledger.take(400, None, ms(998), &mut evicted), Err(Why::Limit));
        // Of the two that are overdue at last one is in.
        assert_eq!(ledger.received(going_on), Some(300));
        assert_eq!(ledger.take(701, None, ms(5000), &mut evicted), Err(Why::Limit));
        assert_eq!((ledger.received(third), evicted.as_slice()), (None, &[1, 3][..]));
        assert_eq!((ledger.held(), ledger.refused()[Why::Slow as usize]), (300, 2));
    }

    #[test]
    fn what_is_overdue_counts_as_free_for_shares() {
        let mut ledger = Ledger::new(1000);
        let mut evicted = Vec::new();
        call(&mut ledger, "a", 100).unwrap();
        let place = ledger.enter(10, 1, &mut evicted).unwrap();
        ledger.announce(place, 690, START, &mut evicted).unwrap();
        take(&mut ledger, 150, None).unwrap();
        assert_eq!(ledger.claim("a", 150, START, &mut evicted), Err(Why::Share));
        assert_eq!(ledger.claim("a", 150, GRACE, &mut evicted).as_deref(), Ok("a"));
        assert_eq!((ledger.held(), evicted.as_slice()), (250, &[1][..]));
    }

    #[test]
    fn headers_alone_take_nothing_from_calls_and_the_oldest_goes_for_one_too_many() {
        let mut ledger = Ledger::new(100);
        let mut evicted = Vec::new();
        let places: Vec<_> = (0..12).map(|tell| ledger.enter(10, tell, &mut evicted).unwrap()).collect();
        assert_eq!(evicted, [0, 1]);
        assert_eq!(take(&mut ledger, 100, None), Ok(()));
        assert_eq!((ledger.held(), ledger.received(places[1])), (200, None));
        assert_eq!(ledger.enter(101, 12, &mut evicted), Err(Why::Limit));
        assert_eq!(ledger.announce(places[2], 0, START, &mut evicted), Err(Why::Limit));
        ledger.give(100, None);
        assert_eq!(ledger.received(places[3]), Some(10));
        ledger.give(10, None);
        assert_eq!(ledger.held(), 80);
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
