//! Which of a Service's endpoints are to be called: pure.
//!
//! Like kube-proxy: those that are ready and not terminating. If there is none, those that are
//! terminating and still serving, since calls had better reach a server that drains than none; and
//! those that were ready before and are not any more. When the API server was away, nodes lose
//! their leases and all of their pods count as not ready, although they serve: the caller's health
//! checks tell.

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    address: IpAddr,
    standing: Standing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Ready,
    /// Terminating, and serving until it has ended.
    Ending,
    NotReady,
    Unusable,
}

/// Keeps in `proven` the addresses that were ready at some time and are still listed.
pub(super) fn remember_ready<'a>(
    proven: &mut BTreeSet<IpAddr>,
    candidates: &(impl Iterator<Item = &'a Candidate> + Clone),
) {
    let listed: BTreeSet<_> = candidates.clone().map(|candidate| candidate.address).collect();
    proven.retain(|address| listed.contains(address));
    let ready = candidates.clone().filter(|candidate| candidate.standing == Standing::Ready);
    proven.extend(ready.map(|candidate| candidate.address));
}

/// The endpoints to be called, sorted. `proven` are those that were ready at some time. All are of
/// one family, so that a pod of a dual-stack Service, which is in a slice of each, is one endpoint:
/// IPv4 if there is any, in whatever state, so that the family does not change with states.
pub(super) fn endpoints_of<'a>(
    candidates: &(impl Iterator<Item = &'a Candidate> + Clone),
    port: u16,
    proven: &BTreeSet<IpAddr>,
) -> Arc<[String]> {
    let v4 = candidates.clone().any(|candidate| candidate.address.is_ipv4());
    let with = |standing| {
        let candidates = candidates.clone();
        candidates
            .filter(move |candidate| candidate.address.is_ipv4() == v4 && candidate.standing == standing)
    };
    let endpoint = |candidate: &Candidate| HostPort { host: candidate.address.to_string(), port }.to_string();
    // While slices are rearranged, an endpoint may be in two.
    let ready = sorted(with(Standing::Ready).map(endpoint));
    if !ready.is_empty() {
        return ready;
    }
    // One that was never ready starts: it is waited for.
    let known = with(Standing::NotReady).filter(|candidate| proven.contains(&candidate.address));
    sorted(with(Standing::Ending).chain(known).map(endpoint))
}

/// What a slice says. One of domain names says nothing: who makes such slices is not defined, nor what they mean.
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
        let standing = if !conditions.terminating.unwrap_or(false) {
            if ready { Standing::Ready } else { Standing::NotReady }
        } else if conditions.serving.unwrap_or(ready) {
            Standing::Ending
        } else {
            Standing::Unusable
        };
        Some(Candidate { address, standing })
    };
    slice.endpoints.iter().filter_map(candidate).collect()
}

/// What the older kind of object says. It has one family, a thousand addresses at most, and nothing of pods that end.
pub(super) fn of_endpoints(endpoints: &Endpoints) -> Vec<Candidate> {
    let candidates = |addresses: &Option<Vec<EndpointAddress>>, standing| {
        let addresses = addresses.iter().flatten().filter_map(|address| address.ip.parse().ok());
        addresses.map(move |address| Candidate { address, standing }).collect::<Vec<_>>()
    };
    let subsets = endpoints.subsets.iter().flatten();
    let of_subset = |subset: &k8s_openapi::api::core::v1::EndpointSubset| {
        let mut all = candidates(&subset.addresses, Standing::Ready);
        all.extend(candidates(&subset.not_ready_addresses, Standing::NotReady));
        all
    };
    subsets.flat_map(of_subset).collect()
}
