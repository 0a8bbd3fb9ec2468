//! Which of a Service's endpoints are to be called: pure.
//!
//! Like kube-proxy: those that are ready and not terminating. If there is none, those that are
//! terminating and still serving, since calls had better reach a server that drains than none; and
//! those that were ready before and are not any more. When the API server was away, nodes lose
//! their leases and all of their pods count as not ready, although they serve: the caller's health
//! checks tell them apart.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::publish::sorted;
use crate::target::HostPort;

/// An address, and what may be done with it.
pub(super) type Candidate = (IpAddr, Readiness);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// Terminating, and serving until it has ended.
    Ending,
    NotReady,
    Unusable,
}

/// The endpoints to be called, sorted. Keeps in `proven` the addresses that were ready at some time
/// and are still listed. All are of one family, so that a pod of a dual-stack Service, which is in
/// a slice of each, is one endpoint: IPv4 if there is any, however ready, so that the family does
/// not change with readiness.
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
        // While slices are rearranged, an endpoint may be in two.
        sorted(of_family.map(|(address, _)| HostPort { host: address.to_string(), port }.to_string()))
    };
    let ready = endpoints(&|_, readiness| readiness == Readiness::Ready);
    if !ready.is_empty() {
        return ready;
    }
    // One that was never ready starts: it is waited for.
    endpoints(&|address, readiness| match readiness {
        Readiness::NotReady => proven.contains(&address),
        readiness => readiness == Readiness::Ending,
    })
}

/// The endpoints of a slice. None of one of domain names: who makes such slices is not defined, nor
/// what they mean.
pub(super) fn of_slice(slice: &EndpointSlice) -> Vec<Candidate> {
    let parse = match slice.address_type.as_str() {
        "IPv4" => |text: &str| text.parse::<Ipv4Addr>().map(IpAddr::from).ok(),
        "IPv6" => |text: &str| text.parse::<Ipv6Addr>().map(IpAddr::from).ok(),
        _ => return Vec::new(),
    };
    let candidate = |endpoint: &Endpoint| {
        // Of more than one address only the first has a meaning.
        let address = parse(endpoint.addresses.first()?)?;
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        let ready = conditions.ready.unwrap_or(true);
        let readiness = match (conditions.terminating.unwrap_or(false), ready) {
            (false, true) => Readiness::Ready,
            (false, false) => Readiness::NotReady,
            (true, ready) if conditions.serving.unwrap_or(ready) => Readiness::Ending,
            _ => Readiness::Unusable,
        };
        Some((address, readiness))
    };
    slice.endpoints.iter().filter_map(candidate).collect()
}

/// The same of the older kind of object. It has one family, a thousand addresses at most, and
/// nothing of pods that end.
pub(super) fn of_endpoints(endpoints: &Endpoints) -> Vec<Candidate> {
    let candidates = |addresses: &Option<Vec<EndpointAddress>>, readiness| {
        let addresses = addresses.iter().flatten().filter_map(|address| address.ip.parse().ok());
        addresses.map(move |address| (address, readiness)).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        all.extend(candidates(&subset.addresses, Readiness::Ready));
        all.extend(candidates(&subset.not_ready_addresses, Readiness::NotReady));
    }
    all
}
