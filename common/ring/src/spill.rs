//! How many runners share a busy image, and which of them takes a request.
//!
//! Image popularity is skewed, so without spill the busiest runner gets almost twice its share.
//! Bounded loads (spill to the next runner once the owner is above average) fix this, but they also
//! move other images: the hot image fills its owner, and every cold image of that owner spills and
//! starts pods elsewhere. The *width rule* considers the image instead: an image may use as many of
//! its runners as its own demand fills, and a cold image stays on its owner. Simulated with 5
//! runners and 100 Zipf images, the busiest runner has 1.3 times the mean, with 109 (image, runner)
//! pairs, each a pool of warm pods. Bounded loads need 281 pairs.
//!
//! The caller keeps the state: the known load of each runner, and one [`Demand`] per image. A
//! demand counts the requests of this router only; [`Limits::new`] accounts for the others.

use std::time::Duration;

/// A runner with fewer requests in flight is never full, even if the other runners are idle.
const FLOOR: usize = 8;

/// With this many requests of one image in flight, or more, a sudden rise counts at once.
const BURST: usize = 8;

/// Time constant of the mean demand: the duration of about 20 calls of a typical function.
const TIME_CONSTANT: Duration = Duration::from_secs(5);

/// Which runners one request may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A runner with this many requests in flight is full; at least 1.
    pub cap: usize,
    /// How many usable runners of its preference order the image may use; at least 1.
    pub width: usize,
}

/// How busy one image is: requests in flight now, and their exponentially weighted mean over time.
///
/// Times are durations since a fixed origin that the caller chooses. A time before the latest time
/// counts as the latest, so slightly unordered events do no harm.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Demand {
    in_flight: usize,
    mean: f64,
    updated: Duration,
}

impl Limits {
    /// Computes the limits for a request that arrives now. The counts do not include it yet.
    ///
    /// `in_flight` counts the requests in flight on all runners, including those of other routers;
    /// `usable_nodes` counts the runners that this router would send to; `demand` is the image's
    /// [`Demand`] at this router; `routers` counts the routers that share the runners.
    pub fn new(in_flight: usize, usable_nodes: usize, demand: f64, routers: usize) -> Self {
        // A quarter above the mean, the arriving request included: ceil(1.25 * (in_flight + 1) /
        // nodes).
        let fair =
            in_flight.saturating_add(1).saturating_mul(5).div_ceil(usable_nodes.max(1).saturating_mul(4));
        let cap = fair.max(FLOOR);
        // The width grows by 1 for each `cap / 4` of demand. The cast saturates, and NaN is 0.
        let demand = demand * routers.max(1) as f64;
        let width = (demand / (0.25 * cap as f64)).floor() as usize;
        Self { cap, width: width.saturating_add(1) }
    }
}

impl Demand {
    /// Counts the start of a request of this image. Returns the demand before this request: the
    /// mean number of requests in flight. In a burst, the demand is at least half of the current
    /// number. If only the mean counted, a cold image that turns hot would overload its owner for
    /// seconds.
    pub fn start(&mut self, now: Duration) -> f64 {
        self.advance(now);
        let in_flight = self.in_flight;
        self.in_flight = in_flight.saturating_add(1);
        if in_flight >= BURST { self.mean.max(in_flight as f64 / 2.0) } else { self.mean }
    }

    /// Counts the end of a request that was started.
    pub fn end(&mut self, now: Duration) {
        self.advance(now);
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The mean decays towards the number in flight, which is constant between two events.
    fn advance(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.updated).as_secs_f64();
        let kept = (-elapsed / TIME_CONSTANT.as_secs_f64()).exp();
        let in_flight = self.in_flight as f64;
        self.mean = in_flight + (self.mean - in_flight) * kept;
        self.updated = self.updated.max(now);
    }
}

/// Chooses the runner for one request among the image's first `limits.width` usable runners: the
/// first runner below `limits.cap`, or else the least loaded.
///
/// Runners that `usable` rejects do not count towards the width. Skipping a runner has the same
/// effect as removing it from the ring. For a second attempt, `usable` must reject the runner of
/// the first attempt.
///
/// `preference` and `nodes` come from one [`Ring`](crate::Ring): the key's preference order, and
/// the number of runners. A truncated order may have fewer usable runners than `limits.width`. If
/// all of them are full, this chooses the least loaded of all usable runners.
///
/// `load` returns the requests in flight on a runner.
pub fn choose(
    preference: &[u16],
    nodes: usize,
    limits: Limits,
    load: impl Fn(u16) -> usize,
    usable: impl Fn(u16) -> bool,
) -> Option<u16> {
    let near = || preference.iter().copied().filter(|&node| usable(node)).take(limits.width);
    if let Some(node) = near().find(|&node| load(node) < limits.cap) {
        return Some(node);
    }
    let is_cut_short = preference.len() < nodes && near().count() < limits.width;
    // Of equally loaded runners, the first after the owner is chosen. If the search began at 0, all
    // images would go to the ring's first runner.
    let owner = preference.first().copied().unwrap_or(0);
    let nodes = u16::try_from(nodes).unwrap_or(u16::MAX);
    let all = (owner..nodes).chain(0..owner).filter(|&node| is_cut_short && usable(node));
    near().chain(all).min_by_key(|&node| load(node))
}
