//! How many runners share a busy image, and which of them takes a request.
//!
//! Image popularity is skewed, so a ring alone gives the busiest runner almost twice its share. Bounded
//! loads (spill to the next runner once the owner is above average) even that out but evict innocents: the
//! hot image fills its owner, and every cold image that lives there spills and starts pods elsewhere. The
//! *width rule* looks at the image instead: an image may use as many of its runners as its own demand
//! fills, and a cold image stays at home. Simulated with 5 runners and 100 Zipf images: the busiest runner
//! at 1.3 times the mean, with 109 (image, runner) pairs, each a pool of warm pods, where bounded loads
//! need 281.
//!
//! The caller keeps the state: one [`Demand`] per image, which counts this router's requests only ([`Spill::routers`]
//! makes up for the others), and the load of each runner, as much of it as is known.

use std::time::Duration;

/// Requests of one image in flight from which on a sudden rise counts at once.
const BURST: usize = 8;

/// The rule's two settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spill {
    /// Requests in flight that a runner takes before anything spills, however idle the others are; the
    /// runner's real capacity where that is known.
    pub floor: usize,
    /// Routers that share the runners. Each sees its part of an image's demand.
    pub routers: usize,
}

/// What one request may use: see [`Spill::limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A runner with this many requests in flight is full; at least 1.
    pub cap: usize,
    /// How many usable runners of its preference order the image may use; at least 1.
    pub width: usize,
}

/// How busy one image is: requests in flight now, and their exponentially weighted mean over time.
///
/// Times are durations since one fixed origin of the caller's choice. A time before the last one seen counts
/// as that one, so readings that arrive slightly out of order do no harm.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Demand {
    in_flight: usize,
    mean: f64,
    updated: Duration,
}

/// The runners for one request, best first; made by [`choices`].
#[derive(Debug)]
pub struct Choices<'a, Load, Usable> {
    preference: &'a [u16],
    nodes: u16,
    limits: Limits,
    load: Load,
    usable: Usable,
    tried: Vec<u16>,
    /// The last answer, put into `tried` only when another is asked for: most requests need one and allocate
    /// nothing.
    last: Option<u16>,
}

impl Default for Spill {
    /// A floor of 8 requests, one router.
    fn default() -> Self {
        Self { floor: 8, routers: 1 }
    }
}

impl Spill {
    /// The limits for a request that arrives now, itself not counted yet.
    ///
    /// `in_flight` is all that the runners have in flight, for whatever router, `usable_nodes` the number of runners that
    /// this one would send to, and `demand` the image's [`Demand::estimate`].
    pub fn limits(&self, in_flight: usize, usable_nodes: usize, demand: f64) -> Limits {
        // A quarter above the mean, the arriving request included: ceil(1.25 * (in_flight + 1) / nodes).
        let fair =
            in_flight.saturating_add(1).saturating_mul(5).div_ceil(usable_nodes.max(1).saturating_mul(4));
        // At least 1, since `fair` is.
        let cap = self.floor.max(fair);
        // One more runner for each quarter of `cap` of demand. The cast saturates, and NaN is 0.
        let demand = demand * self.routers.max(1) as f64;
        let width = (demand / (0.25 * cap as f64)).floor() as usize;
        Limits { cap, width: width.saturating_add(1) }
    }
}

impl Demand {
    /// Time constant of the mean: about 20 calls of a typical function.
    pub const TIME_CONSTANT: Duration = Duration::from_secs(5);

    /// A request of this image starts. Take the [`estimate`](Self::estimate) first: it must not count itself.
    pub fn add(&mut self, now: Duration) {
        self.advance(now);
        self.in_flight = self.in_flight.saturating_add(1);
    }

    /// A request of this image, one that was added, ended.
    pub fn sub(&mut self, now: Duration) {
        self.advance(now);
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The demand that [`Spill::limits`] takes, in requests in flight: their mean, or half of those in flight
    /// now if that is more. The mean alone would let a cold image that turns hot bury its owner for seconds.
    pub fn estimate(&self, now: Duration) -> f64 {
        let mean = self.mean(now);
        if self.in_flight >= BURST { mean.max(self.in_flight as f64 / 2.0) } else { mean }
    }

    /// The mean decays towards the number in flight, which is constant between two events.
    fn mean(&self, now: Duration) -> f64 {
        let elapsed = now.saturating_sub(self.updated).as_secs_f64();
        let kept = (-elapsed / Self::TIME_CONSTANT.as_secs_f64()).exp();
        let in_flight = self.in_flight as f64;
        in_flight + (self.mean - in_flight) * kept
    }

    fn advance(&mut self, now: Duration) {
        self.mean = self.mean(now);
        self.updated = self.updated.max(now);
    }
}

/// The runners to try for one request, best first, each once.
///
/// The first is the width rule's pick: of the image's first `limits.width` usable runners the first below
/// `limits.cap`, else the least loaded. Each further one is what the rule says without those already
/// returned, asked anew, so that it sees the loads and the health of that moment. Runners that `usable`
/// refuses do not count towards the width: skipping a runner gives what removing it from the ring would.
///
/// `preference` and `nodes` come from one [`Ring`](crate::Ring): the key's preference order, and how many
/// runners there are. Where a truncated order holds too few runners, the least loaded of all usable ones
/// follows.
///
/// `load` gives the requests in flight on a runner.
pub fn choices<Load, Usable>(
    preference: &[u16],
    nodes: usize,
    limits: Limits,
    load: Load,
    usable: Usable,
) -> Choices<'_, Load, Usable>
where
    Load: Fn(u16) -> usize,
    Usable: Fn(u16) -> bool,
{
    let nodes = u16::try_from(nodes).unwrap_or(u16::MAX);
    Choices { preference, nodes, limits, load, usable, tried: Vec::new(), last: None }
}

impl<Load, Usable> Iterator for Choices<'_, Load, Usable>
where
    Load: Fn(u16) -> usize,
    Usable: Fn(u16) -> bool,
{
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        self.tried.extend(self.last.take());
        self.last = self.pick();
        self.last
    }
}

impl<Load, Usable> Choices<'_, Load, Usable>
where
    Load: Fn(u16) -> usize,
    Usable: Fn(u16) -> bool,
{
    fn pick(&self) -> Option<u16> {
        let mut seen = 0;
        let mut least = None;
        for &node in self.preference {
            if !self.eligible(node) {
                continue;
            }
            let load = (self.load)(node);
            if load < self.limits.cap {
                return Some(node);
            }
            keep_less(&mut least, load, node);
            seen += 1;
            if seen == self.limits.width {
                return least.map(|(_, node)| node);
            }
        }
        if self.preference.len() < usize::from(self.nodes) {
            // Past a truncated list. Starting behind the owner keeps equally loaded runners from all being
            // the ring's first.
            let owner = self.preference.first().copied().unwrap_or(0);
            for node in (owner..self.nodes).chain(0..owner) {
                if self.eligible(node) {
                    keep_less(&mut least, (self.load)(node), node);
                }
            }
        }
        least.map(|(_, node)| node)
    }

    fn eligible(&self, node: u16) -> bool {
        !self.tried.contains(&node) && (self.usable)(node)
    }
}

fn keep_less(least: &mut Option<(usize, u16)>, load: usize, node: u16) {
    if least.is_none_or(|(held, _)| load < held) {
        *least = Some((load, node));
    }
}
