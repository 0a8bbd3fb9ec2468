//! Selects the endpoints of a Service that may be called. Pure functions without I/O.
//!
//! Like kube-proxy, it selects endpoints that are ready and not terminating. If there are none, it
//! selects endpoints that are terminating but still serving, because a draining server is better
//! than none. In that case it also selects endpoints that are not ready but were ready before. This
//! helps in an outage of the API server: nodes cannot renew their leases, and all their pods are
//! marked as not ready although they serve. The caller's health checks find the pods that serve.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::publish::sorted;

/// An address and its readiness.
pub(super) type Candidate = (IpAddr, Readiness);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    NotReady,
    /// Terminating, but still serving.
    Draining,
    /// Terminating, and no longer serving.
    Ended,
}

/// Returns the endpoints to call, sorted. Updates `proven`, the addresses that have been ready
/// before and are still listed. Only endpoints of one IP family are returned: a pod of a dual-stack
/// Service is in a slice of each family, and must not count twice. The family is IPv4 if any IPv4
/// address is listed, so it does not change with readiness.
pub(super) fn endpoints_of(
    candidates: &[Candidate],
    port: u16,
    proven: &mut BTreeSet<IpAddr>,
) -> Arc<[String]> {
    let listed: BTreeSet<_> = candidates.iter().map(|(address, _)| *address).collect();
    let is_ready = |(_, readiness): &&Candidate| *readiness == Readiness::Ready;
    proven.retain(|address| listed.contains(address));
    proven.extend(candidates.iter().filter(is_ready).map(|(address, _)| *address));

    let v4 = listed.iter().any(IpAddr::is_ipv4);
    let endpoints = |wanted: &dyn Fn(IpAddr, Readiness) -> bool| {
        let wanted = candidates.iter().filter(|(address, readiness)| wanted(*address, *readiness));
        let of_family = wanted.filter(|(address, _)| address.is_ipv4() == v4);
        // `sorted` removes duplicates: an endpoint that moves to another slice may be in both.
        sorted(of_family.map(|(address, _)| SocketAddr::new(*address, port).to_string()))
    };
    let ready = endpoints(&|_, readiness| readiness == Readiness::Ready);
    if !ready.is_empty() {
        return ready;
    }
    // An endpoint that was never ready is still starting, so it is not used.
    endpoints(&|address, readiness| match readiness {
        Readiness::NotReady => proven.contains(&address),
        readiness => readiness == Readiness::Draining,
    })
}

/// The endpoints of a slice. A slice of domain names has none, because Kubernetes does not define
/// their meaning.
pub(super) fn of_slice(slice: &EndpointSlice) -> Vec<Candidate> {
    let parse = match slice.address_type.as_str() {
        "IPv4" => |text: &str| text.parse::<Ipv4Addr>().map(IpAddr::from).ok(),
        "IPv6" => |text: &str| text.parse::<Ipv6Addr>().map(IpAddr::from).ok(),
        _ => return Vec::new(),
    };
    let candidate = |endpoint: &Endpoint| {
        // If there are several addresses, only the first has a meaning.
        let address = parse(endpoint.addresses.first()?)?;
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        let ready = conditions.ready.unwrap_or(true);
        let readiness = match (conditions.terminating.unwrap_or(false), ready) {
            (false, true) => Readiness::Ready,
            (false, false) => Readiness::NotReady,
            (true, ready) if conditions.serving.unwrap_or(ready) => Readiness::Draining,
            _ => Readiness::Ended,
        };
        Some((address, readiness))
    };
    slice.endpoints.iter().filter_map(candidate).collect()
}

/// The endpoints of the older `Endpoints` object. It has one family and at most a thousand
/// addresses, and does not mark terminating pods.
pub(super) fn of_endpoints(endpoints: &Endpoints) -> Vec<Candidate> {
    let lists = endpoints.subsets.iter().flatten().flat_map(|subset| {
        [(&subset.addresses, Readiness::Ready), (&subset.not_ready_addresses, Readiness::NotReady)]
    });
    let addresses = lists.flat_map(|(list, readiness)| list.iter().flatten().map(move |it| (it, readiness)));
    addresses.filter_map(|(address, readiness)| Some((address.ip.parse().ok()?, readiness))).collect()
}
