//! Which servers make up a tier, as a stream of whole sets.
//!
//! The router finds runners with it, and a runner its peers. A [`Target`] says where to look: in a list, in DNS by a
//! [`Resolver`], or in a Service's EndpointSlices. [`watch`] turns answers into [`Snapshot`]s: always the complete
//! set, sent only when it changed. [`LiveMembership`] then decides which of them take part: a
//! ring should neither be rebuilt for each pod of a rollout nor trust an address that comes and goes.
//!
//! What an answer means:
//! - Asking that fails (no answer, SERVFAIL, refused, forbidden) changes nothing: the last good set stays.
//! - An empty answer, or "no such name", is an answer. A Service without ready pods looks so.
//! - DNS: IPv4 and IPv6 are looked up side by side. When only one of the two was answered, the other keeps its
//!   last good addresses. What has both is two endpoints.
//! - EndpointSlices: one family for all, IPv4 if any pod has it, so that each pod is one endpoint.

mod dns;
mod kubernetes;
mod membership;
mod publish;
mod resolver;
mod target;
mod watch;

pub use self::{
    dns::{DnsResolver, DnsSetupError},
    membership::{COALESCE, COOLDOWN, LiveMembership, Membership, cooling_down_count},
    publish::Snapshot,
    resolver::{Family, Lookup, LookupError, MAX_VALID_FOR, MIN_VALID_FOR, Resolver},
    target::{HostPort, Target, TargetError},
    watch::{LOOKUP_TIMEOUT, SetupError, Source, watch},
};
