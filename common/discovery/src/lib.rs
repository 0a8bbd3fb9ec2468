//! Which servers make up a tier, as a stream of whole sets.
//!
//! The router finds runners with it, and a runner its peers. A [`Target`] says where to look: in a
//! list, in DNS, or in a Service's EndpointSlices. [`watch`] turns answers into [`Snapshot`]s:
//! always the complete set, sent only when it changed. [`LiveMembership`] then decides which of
//! them take part: a ring should neither be rebuilt for each pod of a rollout nor trust an address
//! that comes and goes.
//!
//! What an answer means:
//! - A request that fails (no answer, SERVFAIL, refused, forbidden) changes nothing: the last good
//!   set stays.
//! - An empty answer, or "no such name", is an answer. A Service without ready pods looks like
//!   that.
//! - DNS: IPv4 and IPv6 are looked up side by side. When only one of the two was answered, the
//!   other keeps its last good addresses. What has both is two endpoints.
//! - EndpointSlices: one family for all, IPv4 if any pod has it, so that each pod is one endpoint.

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
