//! The calls of one image that wait for a pod: first in, first out, with removal when a caller
//! leaves or a deadline passes. Each takes logarithmic time, since the queue is long under load.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{RequestId, Time};

/// A place in the queue.
pub(crate) type Ticket = u64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) id: RequestId,
    pub(crate) deadline: Time,
    pub(crate) since: Time,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiters: BTreeMap<Ticket, Waiter>,
    deadlines: BTreeSet<(Time, Ticket)>,
    next: Ticket,
}

// === impl Queue ===

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn push(&mut self, waiter: Waiter) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.deadlines.insert((waiter.deadline, ticket));
        self.waiters.insert(ticket, waiter);
        ticket
    }

    pub(crate) fn front(&self) -> Option<&Waiter> {
        self.waiters.first_key_value().map(|(_, waiter)| waiter)
    }

    pub(crate) fn pop(&mut self) -> Option<Waiter> {
        let (ticket, waiter) = self.waiters.pop_first()?;
        self.deadlines.remove(&(waiter.deadline, ticket));
        Some(waiter)
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            self.deadlines.remove(&(waiter.deadline, ticket));
        }
    }

    /// Takes out the waiter whose deadline comes first.
    pub(crate) fn pop_first_deadline(&mut self) -> Option<RequestId> {
        let (_, ticket) = self.deadlines.pop_first()?;
        self.waiters.remove(&ticket).map(|waiter| waiter.id)
    }

    pub(crate) fn first_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    pub(crate) fn last_deadline(&self) -> Option<Time> {
        self.deadlines.last().map(|&(deadline, _)| deadline)
    }
}
