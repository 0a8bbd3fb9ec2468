//! Whose turn it is: a bounded number run at once, and images take turns at the places that come free.
//!
//! A first-come queue would let an image that is called a thousand times at once hold up every other one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// One of the calls that came in.
pub(super) type Id = u64;

/// The calls that wait, each with a `W` to wake it by.
#[derive(Debug)]
pub(super) struct Turns<W> {
    /// Nobody waits while there are any.
    free: usize,
    /// Most that wait of one image.
    max_waiting: usize,
    next: Id,
    /// Only images of which calls wait; ids ascend.
    waiting: HashMap<Arc<str>, VecDeque<(Id, W)>>,
    /// The same images, the one whose turn is next first.
    order: VecDeque<Arc<str>>,
}

/// What a call gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A place.
    Runs(Id),
    /// A place in the queue.
    Waits(Id),
}

/// As many calls of the image wait as may.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<W> Turns<W> {
    pub(super) fn new(places: usize, max_waiting: usize) -> Self {
        Self { free: places, max_waiting, next: 0, waiting: HashMap::new(), order: VecDeque::new() }
    }

    /// A call comes in. What it got ends by [`end`](Self::end).
    pub(super) fn enter(&mut self, image: &str, waker: W) -> Result<Entry, Full> {
        let id = self.next;
        if self.free > 0 {
            self.free -= 1;
            self.next += 1;
            return Ok(Entry::Runs(id));
        }
        if self.waiting.get(image).map_or(0, VecDeque::len) >= self.max_waiting {
            return Err(Full);
        }
        self.next += 1;
        if let Some(queue) = self.waiting.get_mut(image) {
            queue.push_back((id, waker));
        } else {
            let image = Arc::<str>::from(image);
            self.order.push_back(Arc::clone(&image));
            self.waiting.insert(image, VecDeque::from([(id, waker)]));
        }
        Ok(Entry::Waits(id))
    }

    /// A call has run, or is given up while it runs or waits. Returns the call that got its place.
    pub(super) fn end(&mut self, image: &str, id: Id) -> Option<W> {
        if let Some(queue) = self.waiting.get_mut(image)
            && let Ok(at) = queue.binary_search_by_key(&id, |(waiting, _)| *waiting)
        {
            queue.remove(at);
            if queue.is_empty() {
                self.waiting.remove(image);
                self.order.retain(|other| **other != *image);
            }
            return None;
        }
        let next = self.next_waiting();
        if next.is_none() {
            self.free += 1;
        }
        next
    }

    fn next_waiting(&mut self) -> Option<W> {
        let image = self.order.pop_front()?;
        let queue = self.waiting.get_mut(&image)?;
        let (_, waker) = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(&image);
        } else {
            self.order.push_back(image);
        }
        Some(waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Calls are named as they are woken: image and number of the call.
    type Name = (&'static str, usize);

    #[test]
    fn images_take_turns_and_calls_of_one_keep_their_order() {
        let mut turns = Turns::new(1, 10);
        assert_eq!(turns.enter("a", ("a", 0)), Ok(Entry::Runs(0)));
        let mut ids = HashMap::from([(("a", 0), 0)]);
        for name in [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)] {
            let Ok(Entry::Waits(id)) = turns.enter(name.0, name) else { panic!("{name:?} waits") };
            ids.insert(name, id);
        }
        let mut running: Name = ("a", 0);
        let mut order = Vec::new();
        while let Some(next) = turns.end(running.0, ids[&running]) {
            order.push(next);
            running = next;
        }
        assert_eq!(order, [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)]);
        assert_eq!(turns.free, 1);
    }

    #[test]
    fn each_image_has_its_own_queue() {
        let mut turns = Turns::new(1, 1);
        assert_eq!(turns.enter("a", ()), Ok(Entry::Runs(0)));
        assert_eq!(turns.enter("a", ()), Ok(Entry::Waits(1)));
        assert_eq!(turns.enter("a", ()), Err(Full));
        assert_eq!(turns.enter("b", ()), Ok(Entry::Waits(2)));
        // One that gives up makes room.
        assert_eq!(turns.end("a", 1), None);
        assert_eq!(turns.enter("a", ()), Ok(Entry::Waits(3)));
        assert_eq!(Turns::new(0, 0).enter("a", ()), Err(Full));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Enter(&'static str),
        /// Ends or gives up one of the calls there are.
        End(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let images = prop::sample::select(vec!["a", "b", "c"]);
        let step =
            prop_oneof![images.prop_map(Step::Enter), any::<prop::sample::Index>().prop_map(Step::End)];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn places_are_used_up_and_nobody_is_forgotten(places in 1usize..4, most in 0usize..4, steps in steps()) {
            let mut turns = Turns::new(places, most);
            let (mut running, mut waiting) = (Vec::new(), Vec::<Name>::new());
            let mut ids = HashMap::new();
            let end = |turns: &mut Turns<Name>, running: &mut Vec<Name>, waiting: &mut Vec<Name>, at: usize, ids: &HashMap<Name, Id>| {
                let call = if at < running.len() { running.remove(at) } else { waiting.remove(at - running.len()) };
                if let Some(next) = turns.end(call.0, ids[&call]) {
                    // The one that waits longest of its image.
                    let at = waiting.iter().position(|call| call.0 == next.0);
                    assert_eq!(at.map(|at| waiting.remove(at)), Some(next));
                    running.push(next);
                }
            };
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Enter(image) => {
                        let before = waiting.iter().filter(|call| call.0 == image).count();
                        let full = running.len() == places;
                        match turns.enter(image, (image, number)) {
                            Ok(Entry::Runs(id)) => {
                                prop_assert!(!full);
                                ids.insert((image, number), id);
                                running.push((image, number));
                            }
                            Ok(Entry::Waits(id)) => {
                                prop_assert!(full && before < most);
                                ids.insert((image, number), id);
                                waiting.push((image, number));
                            }
                            Err(Full) => prop_assert!(full && before == most),
                        }
                    }
                    Step::End(which) if !(running.is_empty() && waiting.is_empty()) => {
                        let at = which.index(running.len() + waiting.len());
                        end(&mut turns, &mut running, &mut waiting, at, &ids);
                    }
                    Step::End(_) => {}
                }
                prop_assert!(running.len() <= places);
                prop_assert!(waiting.is_empty() || running.len() == places, "a place is free and somebody waits");
                prop_assert_eq!(turns.order.len(), turns.waiting.len());
            }
            while !running.is_empty() {
                end(&mut turns, &mut running, &mut waiting, 0, &ids);
            }
            prop_assert!(waiting.is_empty() && turns.waiting.is_empty() && turns.order.is_empty());
            prop_assert_eq!(turns.free, places);
        }

        #[test]
        fn between_two_calls_of_one_image_each_other_has_its_turn(counts in prop::collection::vec(1usize..20, 2..5)) {
            let names = ["a", "b", "c", "d"];
            let mut turns = Turns::new(1, 20);
            let mut running = (names[0], 0);
            turns.enter(running.0, running).unwrap();
            for (name, count) in names.iter().zip(&counts) {
                for _ in 0..*count {
                    let Ok(Entry::Waits(id)) = turns.enter(name, (name, turns.next)) else { panic!("it waits") };
                    prop_assert_eq!(id + 1, turns.next);
                }
            }
            let mut left: HashMap<_, _> = names.into_iter().zip(counts).collect();
            while let Some(next) = turns.end(running.0, running.1) {
                left.entry(next.0).and_modify(|count| *count -= 1);
                let others = left.values().filter(|&&count| count > 0).count();
                // Whoever has just had a turn is last in line.
                prop_assert!(others <= 1 || turns.order.front() != Some(&Arc::from(next.0)));
                running = next;
            }
            prop_assert!(left.values().all(|&count| count == 0));
        }
    }
}
