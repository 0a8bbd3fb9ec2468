//! How many runners share a busy image, and which of them takes a request.
//!
//! Few images get most of the requests. If each image used only its owner, the first runner of its
//! preference order, the busiest runner would get almost twice the mean. Bounded loads (a request
//! spills to the next runner if the owner is above average) prevent this. But a hot image fills its
//! owner, and then the owner's cold images also spill and start pods elsewhere. The *width rule*
//! considers the image: it may use as many runners as its own demand fills. A cold image stays on
//! its owner. In a simulation with 5 runners and 100 Zipf images, the busiest runner has 1.3 times
//! the mean. 109 (image, runner) pairs need warm pods; with bounded loads, 281 pairs do.
//!
//! The caller keeps the state: the load of each runner, and one [`Demand`] per image. A demand
//! counts only this router's requests. [`Limits::new`] multiplies it by the number of routers.

use std::time::Duration;

/// A runner with fewer requests in flight is never full, even if the other runners are idle.
const FLOOR: usize = 8;

/// From this many requests in flight on, an image is in a burst: see [`Demand::start`].
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
/// Times are durations since a fixed origin that the caller chooses. If the time of an event is
/// earlier than that of a previous event, the previous time counts. So slightly unordered
/// events do no harm.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Demand {
    in_flight: usize,
    mean: f64,
    updated: Duration,
}

impl Limits {
    /// Computes the limits for a request that arrives now. The counts do not include this request.
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
    // Among equally loaded runners, the first one of the search is chosen. So the search begins at
    // the owner: if it began at 0, all images would go to the ring's first runner.
    let owner = preference.first().copied().unwrap_or(0);
    let nodes = u16::try_from(nodes).unwrap_or(u16::MAX);
    let all = (owner..nodes).chain(0..owner).filter(|&node| is_cut_short && usable(node));
    near().chain(all).min_by_key(|&node| load(node))
}
