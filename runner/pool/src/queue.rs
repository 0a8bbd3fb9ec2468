//! The calls of one image that wait for a pod: first in, first out, with removal when a caller
//! leaves or a deadline passes. The queue may be long, so each operation takes only logarithmic
//! time.

use std::collections::BTreeMap;

use crate::types::{RequestId, Time};

#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The deadlines, by arrival. Calls that arrive in the same millisecond are in the order of
    /// their ids.
    arrivals: BTreeMap<(Time, RequestId), Time>,
    /// The arrivals, by deadline.
    deadlines: BTreeMap<(Time, RequestId), Time>,
}

// === impl Queue ===

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.arrivals.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    pub(crate) fn push(&mut self, id: RequestId, since: Time, deadline: Time) {
        self.arrivals.insert((since, id), deadline);
        self.deadlines.insert((deadline, id), since);
    }

    pub(crate) fn remove(&mut self, id: RequestId, since: Time, deadline: Time) {
        self.arrivals.remove(&(since, id));
        self.deadlines.remove(&(deadline, id));
    }

    /// The call that has waited for longest, with the start of its wait and its deadline.
    pub(crate) fn front(&self) -> Option<(RequestId, Time, Time)> {
        self.arrivals.first_key_value().map(|(&(since, id), &deadline)| (id, since, deadline))
    }

    /// The call whose deadline comes first, with the start of its wait and its deadline.
    pub(crate) fn most_urgent(&self) -> Option<(RequestId, Time, Time)> {
        self.deadlines.first_key_value().map(|(&(deadline, id), &since)| (id, since, deadline))
    }

    pub(crate) fn last_deadline(&self) -> Option<Time> {
        self.deadlines.last_key_value().map(|(&(deadline, _), _)| deadline)
    }
}
