//! The accounts of admission control: bytes held per account and per image. Pure: time is an
//! argument.
//!
//! A call may lose its place (its entry in `pending`) until its message is complete. So clients
//! that never send their messages do not block other calls. Calls that have sent only headers have
//! their own account; when it is full, the oldest of them is evicted. A message that arrives too
//! slowly is evicted when another call needs the room.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Why;

/// If a part of a message, which has 16 KiB, takes longer than this, its call may lose its place. So a
/// sender of 16 KiB/s keeps it.
const GRACE: Duration = Duration::from_secs(1);

/// The key of a call whose message is not complete: the time when the message becomes overdue, and
/// a unique number. The time is `None` while the call has sent only headers.
pub(super) type Place = (Option<Instant>, u64);

/// Numbers of refusals, by [`Why`].
pub(super) type Refusals = [u64; Why::Slow as usize + 1];

/// What bytes are held for. Each account has the same limit. So calls do not cause answers to be
/// refused, and answers do not block calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Account {
    /// Calls that have sent only headers.
    Waiting,
    /// The other calls.
    #[default]
    Calls,
    /// Answers.
    Answers,
}

/// Bytes held.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    limit: usize,
    /// By [`Account`].
    held: [usize; Account::Answers as usize + 1],
    /// Calls whose message is not complete: their bytes, and the notification that the call has
    /// lost its place.
    pending: BTreeMap<Place, (usize, Arc<Notify>)>,
    /// Places created so far. A new [`Place`] takes this count as its unique number.
    places: u64,
    /// Bytes of calls, by image. Images without calls are removed.
    images: HashMap<Arc<str>, usize>,
    refused: Refusals,
}

impl Ledger {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds a call that has sent headers of `bytes`. `lost` is notified if the call loses its
    /// place.
    pub(super) fn enter(&mut self, bytes: usize, lost: Arc<Notify>) -> Result<Place, Why> {
        self.make_room(Account::Waiting, bytes, None, Why::Limit)?;
        Ok(self.insert(None, bytes, lost))
    }

    /// Records the announced size of the call's message. On success the call's bytes move to
    /// [`Account::Calls`]. On failure they are released.
    pub(super) fn announce(&mut self, place: Place, size: usize, now: Instant) -> Result<Place, Why> {
        let (bytes, lost) = self.remove(place).ok_or(Why::Slow)?;
        let bytes = bytes.saturating_add(size);
        self.make_room(Account::Calls, bytes, Some(now), Why::Limit)?;
        Ok(self.insert(Some(now + GRACE), bytes, lost))
    }

    /// Records that a part of the message has arrived.
    pub(super) fn progress(&mut self, place: Place, now: Instant) -> Result<Place, Why> {
        let (bytes, lost) = self.remove(place).ok_or(Why::Slow)?;
        Ok(self.insert(place.0.map(|_| now + GRACE), bytes, lost))
    }

    /// Records that the message is complete or was interrupted. From now on the call keeps its
    /// bytes. Returns them, or `None` if the call has lost its place.
    pub(super) fn received(&mut self, place: Place) -> Option<usize> {
        let (bytes, _) = self.remove(place)?;
        self.held[Account::Calls as usize] += bytes;
        Some(bytes)
    }

    /// Charges `bytes` to an account, and to `image` if the call is already assigned to one.
    pub(super) fn take(
        &mut self,
        account: Account,
        bytes: usize,
        image: Option<&Arc<str>>,
        now: Instant,
    ) -> Result<(), Why> {
        let (due, why) =
            if account == Account::Answers { (None, Why::Answer) } else { (Some(now), Why::Limit) };
        self.make_room(account, bytes, due, why)?;
        self.held[account as usize] += bytes;
        if let Some(image) = image {
            *self.images.entry(Arc::clone(image)).or_default() += bytes;
        }
        Ok(())
    }

    /// Assigns `bytes`, which are charged already, to `image`.
    ///
    /// An image may hold as many bytes as are free at that moment (the dynamic threshold of
    /// Choudhury and Hahne). One busy image gets half of the limit, two get a third each, and some
    /// room always stays free. An image's first call is never refused here, so it can use that
    /// room.
    pub(super) fn claim(&mut self, image: &str, bytes: usize, now: Instant) -> Result<Arc<str>, Why> {
        let Some((name, held)) = self.images.get_key_value(image) else {
            let name = Arc::<str>::from(image);
            self.images.insert(Arc::clone(&name), bytes);
            return Ok(name);
        };
        let (name, held) = (Arc::clone(name), held.saturating_add(bytes));
        self.make_room(Account::Calls, held, Some(now), Why::Share)?;
        self.images.insert(Arc::clone(&name), held);
        Ok(name)
    }

    /// Releases `bytes` of an account, and of `image`.
    pub(super) fn give(&mut self, account: Account, bytes: usize, image: Option<&Arc<str>>) {
        self.held[account as usize] = self.held[account as usize].saturating_sub(bytes);
        if let Some(image) = image
            && let Some(held) = self.images.get_mut(image)
        {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.images.remove(image);
            }
        }
    }

    /// Bytes held in all accounts.
    #[cfg(any(test, feature = "metrics"))]
    pub(super) fn held(&self) -> usize {
        self.held.iter().sum()
    }

    /// Refusals so far.
    #[cfg(feature = "metrics")]
    pub(super) fn refused(&self) -> Refusals {
        self.refused
    }

    /// Evicts calls until `bytes` are free in `account`: those that have sent only headers for another
    /// such call, and those whose messages were due for a message.
    fn make_room(
        &mut self,
        account: Account,
        bytes: usize,
        due: Option<Instant>,
        why: Why,
    ) -> Result<(), Why> {
        let Some(room) = self.limit.checked_sub(bytes) else { return Err(self.refuse(why)) };
        while self.held[account as usize] > room {
            // Calls with only headers sort first. No place has the last number.
            let first = if account == Account::Waiting { 0 } else { u64::MAX };
            let mut evictable = self.pending.range((None, first)..=(due, u64::MAX));
            let Some((&place, _)) = evictable.next() else { return Err(self.refuse(why)) };
            self.evict(place);
        }
        Ok(())
    }

    fn evict(&mut self, place: Place) {
        if let Some((_, lost)) = self.remove(place) {
            self.refuse(Why::Slow);
            // `notify_one` stores a permit if the call does not wait yet.
            lost.notify_one();
        }
    }

    fn insert(&mut self, due: Option<Instant>, bytes: usize, lost: Arc<Notify>) -> Place {
        self.places += 1;
        self.held[account(due) as usize] += bytes;
        self.pending.insert((due, self.places), (bytes, lost));
        (due, self.places)
    }

    fn remove(&mut self, place: Place) -> Option<(usize, Arc<Notify>)> {
        let (bytes, lost) = self.pending.remove(&place)?;
        self.give(account(place.0), bytes, None);
        Some((bytes, lost))
    }

    fn refuse(&mut self, why: Why) -> Why {
        self.refused[why as usize] += 1;
        why
    }
}

/// The account of a call whose message is not complete.
fn account(due: Option<Instant>) -> Account {
    if due.is_none() { Account::Waiting } else { Account::Calls }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;

    fn call(ledger: &mut Ledger, image: &str, bytes: usize) -> Result<Arc<str>, Why> {
        let now = Instant::now();
        ledger.take(Account::Calls, bytes, None, now)?;
        ledger.claim(image, bytes, now).inspect_err(|_| ledger.give(Account::Calls, bytes, None))
    }

    /// Offers a hundred calls of ten bytes. Returns how many are accepted.
    fn flood(ledger: &mut Ledger, image: &str) -> usize {
        (0..100).filter(|_| call(ledger, image, 10).is_ok()).count()
    }

    fn notifies<const N: usize>() -> [Arc<Notify>; N] {
        std::array::from_fn(|_| Arc::default())
    }

    /// Returns the calls that were evicted since this function last ran.
    fn evicted(calls: &[Arc<Notify>]) -> Vec<usize> {
        let evicted = |call: &usize| calls[*call].notified().now_or_never().is_some();
        (0..calls.len()).filter(evicted).collect()
    }

    #[test]
    fn one_image_gets_half_of_the_limit_and_two_get_a_third_each() {
        let mut ledger = Ledger::new(600);
        assert_eq!(flood(&mut ledger, "a"), 30);
        // Half of the limit is free, and the second image gets half of that. Calls of the first
        // image are not ended.
        assert_eq!(flood(&mut ledger, "b"), 15);
        let (mut a, mut b) = (30, 15);
        // While calls of both images end and begin, each image approaches a third.
        for _ in 0..100 {
            for (image, count) in [("a", &mut a), ("b", &mut b)] {
                ledger.give(Account::Calls, 10, Some(&Arc::from(image)));
                *count = *count - 1 + usize::from(call(&mut ledger, image, 10).is_ok());
                *count += usize::from(call(&mut ledger, image, 10).is_ok());
            }
        }
        assert_eq!((a, b), (20, 20));
        assert_eq!(call(&mut ledger, "c", 200).as_deref(), Ok("c"), "the first call of a third image");
        assert_eq!(ledger.held(), 600);
    }

    #[test]
    fn only_an_overdue_message_is_evicted_for_another() {
        let mut ledger = Ledger::new(1000);
        let (calls, start) = (notifies::<4>(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let announce = |ledger: &mut Ledger, call: usize, size, millis| {
            let place = ledger.enter(10, Arc::clone(&calls[call])).unwrap();
            ledger.announce(place, size, at(millis))
        };
        let silent = announce(&mut ledger, 0, 390, 0).unwrap();
        let arriving = announce(&mut ledger, 1, 290, 100).unwrap();
        assert_eq!(announce(&mut ledger, 2, 390, 999), Err(Why::Limit));
        assert_eq!((ledger.held(), evicted(&calls)), (700, vec![]), "a refused call holds no bytes");
        let arriving = ledger.progress(arriving, at(999)).unwrap();
        let third = announce(&mut ledger, 3, 390, 1000).unwrap();
        assert_eq!((ledger.held(), evicted(&calls)), (700, vec![0]));
        assert_eq!((ledger.received(silent), ledger.progress(silent, at(1001))), (None, Err(Why::Slow)));
        assert_eq!(ledger.take(Account::Calls, 400, None, at(1998)), Err(Why::Limit));
        // Calls 1 and 3 become overdue at 1,999 ms and 2,000 ms. Call 1's message is complete before
        // that, and call 3's is not.
        assert_eq!(ledger.received(arriving), Some(300));
        assert_eq!(ledger.take(Account::Calls, 701, None, at(5000)), Err(Why::Limit));
        assert_eq!((ledger.received(third), evicted(&calls)), (None, vec![3]));
        assert_eq!((ledger.held(), ledger.refused), (300, [3, 0, 0, 2]));
    }

    #[test]
    fn overdue_messages_count_as_free_for_shares() {
        let (mut ledger, [lost], start) = (Ledger::new(1000), notifies(), Instant::now());
        call(&mut ledger, "a", 100).unwrap();
        let place = ledger.enter(10, Arc::clone(&lost)).unwrap();
        ledger.announce(place, 690, start).unwrap();
        ledger.take(Account::Calls, 150, None, start).unwrap();
        assert_eq!(ledger.claim("a", 150, start), Err(Why::Share));
        assert_eq!(ledger.claim("a", 150, start + GRACE).as_deref(), Ok("a"));
        assert_eq!((ledger.held(), evicted(&[lost])), (250, vec![0]));
    }

    #[test]
    fn headers_have_their_own_account_and_the_oldest_call_is_evicted_when_it_is_full() {
        let (mut ledger, calls, now) = (Ledger::new(100), notifies::<12>(), Instant::now());
        let places = calls.each_ref().map(|call| ledger.enter(10, Arc::clone(call)).unwrap());
        assert_eq!(evicted(&calls), [0, 1]);
        assert_eq!(ledger.take(Account::Calls, 100, None, now), Ok(()));
        assert_eq!((ledger.held(), ledger.received(places[1])), (200, None));
        assert_eq!(ledger.enter(101, Arc::default()), Err(Why::Limit));
        assert_eq!(ledger.announce(places[2], 0, now), Err(Why::Limit));
        ledger.give(Account::Calls, 100, None);
        assert_eq!(ledger.received(places[3]), Some(10));
        ledger.give(Account::Calls, 10, None);
        assert_eq!(ledger.held(), 80);
    }

    proptest! {
        /// Calls and answers of a few images begin and end in any order.
        #[test]
        fn the_accounts_are_the_sums_of_what_is_held(
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
                    let taken = ledger.take(Account::Answers, bytes, None, Instant::now()).is_ok();
                    prop_assert_eq!(taken, answers.iter().sum::<usize>() + bytes <= LIMIT);
                    answers.extend(taken.then_some(bytes));
                } else {
                    let own: usize = calls.iter().filter(|(name, _)| &**name == image).map(|(_, held)| held).sum();
                    // A call never holds 0 bytes, because its overhead is charged.
                    let bytes = bytes + 1;
                    let entered = call(&mut ledger, image, bytes);
                    let fits = before + bytes <= LIMIT;
                    let fair = own == 0 || own + bytes <= LIMIT.saturating_sub(before + bytes);
                    prop_assert_eq!(entered.is_ok(), fits && fair);
                    calls.extend(entered.map(|name| (name, bytes)));
                }
                if !calls.is_empty() && which.index(3) == 0 {
                    let (name, bytes) = calls.swap_remove(which.index(calls.len()));
                    ledger.give(Account::Calls, bytes, Some(&name));
                }
                if !answers.is_empty() && which.index(3) == 1 {
                    ledger.give(Account::Answers, answers.swap_remove(which.index(answers.len())), None);
                }
                prop_assert_eq!(ledger.held(), sum(&calls) + answers.iter().sum::<usize>());
                prop_assert!(ledger.held() <= 2 * LIMIT);
                prop_assert_eq!(ledger.images.values().sum::<usize>(), sum(&calls));
                prop_assert!(ledger.images.values().all(|held| *held > 0), "images without calls are removed");
            }
        }
    }
}
