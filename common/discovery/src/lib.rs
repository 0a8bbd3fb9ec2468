//! Service discovery: finds a group of servers and publishes them as complete sets.
//!
//! A router uses it to find runners and the other routers, and a runner to find its peers. A
//! [`Target`] names the source: a list, DNS, or a Service's EndpointSlices. [`watch`] publishes
//! [`Snapshot`]s: always the complete set, sent only when it changed. [`LiveMembership`] then
//! decides which servers are members of the ring, so that the ring is not rebuilt for each pod of a
//! rollout or for an address that flaps.
//!
//! How answers are interpreted:
//! - A request that fails (no answer, SERVFAIL, refused, forbidden) changes nothing: the last good
//!   set stays.
//! - An empty answer, or "no such name", empties the set: DNS and the API server answer like this
//!   for a Service without ready pods.
//! - DNS: IPv4 and IPv6 are looked up in parallel. If the lookup of one family fails, its last good
//!   addresses stay. A server with both families is two endpoints.
//! - EndpointSlices: all endpoints are of one family, IPv4 if any pod has it. So each pod is one
//!   endpoint.

mod dns;
mod kubernetes;
mod membership;
mod publish;
mod target;
mod watch;

pub use self::membership::{COALESCE, COOLDOWN, LiveMembership, Membership, cooling_down_count};
pub use self::publish::Snapshot;
pub use self::target::{HostPort, Target, TargetError};
pub use self::watch::{SetupError, watch};
