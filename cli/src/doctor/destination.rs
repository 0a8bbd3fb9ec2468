//! Where an address leads that Porch calls: its Service, and the pods which that selects. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::facts::Facts;
use super::installation::Installation;
use super::porch::ELSEWHERE;

/// Who answers at an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Destination<'a> {
    /// Our routers, or the runner that stands alone.
    Ours,
    /// The pods of another Deployment of the namespace.
    Other(&'a str),
    /// Nobody, or pods of no Deployment: the Service selects the pods of no Deployment here.
    Nobody(&'a str),
    /// Whoever the Service's `externalName` or its Endpoints name: it has no selector.
    NoSelector(&'a str),
    /// Nobody: the Service has no such port.
    NoPort(&'a str),
    /// Not a Service of the namespace.
    Outside,
    /// The address is in another object than the Deployment.
    Unknown,
}

/// Who answers pods of the namespace that call `address`.
pub(super) fn destination<'a>(facts: &'a Facts, address: &str) -> Destination<'a> {
    if address == ELSEWHERE || address.contains("$(") {
        return Destination::Unknown;
    }
    let address = ["dns:///", "dns:", "passthrough:///"]
        .iter()
        .find_map(|scheme| address.strip_prefix(scheme))
        .unwrap_or(address);
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let mut labels = host.trim_end_matches('.').split('.');
    let (name, namespace, kind) = (labels.next(), labels.next(), labels.next());
    let is_here = namespace.is_none_or(|namespace| namespace == facts.namespace)
        && kind.is_none_or(|kind| kind == "svc");
    let service = facts.services.iter().find(|service| Some(service.name_any().as_str()) == name);
    let Some(service) = service.filter(|_| is_here) else { return Destination::Outside };
    let name = service.metadata.name.as_deref().unwrap_or_default();
    // A Service of type ExternalName serves ports that it does not name.
    if !has_selector(service) || port.parse().is_ok_and(|port| has_port(service, port)) {
        behind(&facts.installed, service)
    } else {
        Destination::NoPort(name)
    }
}

/// Whose pods a Service selects.
pub(super) fn behind<'a>(installed: &'a Installation, service: &'a Service) -> Destination<'a> {
    let name = service.metadata.name.as_deref().unwrap_or_default();
    if !has_selector(service) {
        return Destination::NoSelector(name);
    }
    if ours(installed).is_some_and(|(_, labels)| selects(service, labels)) {
        return Destination::Ours;
    }
    let selected = installed.pod_labels.iter().find(|(_, labels)| selects(service, labels));
    match selected {
        Some((deployment, _)) => Destination::Other(deployment),
        None => Destination::Nobody(name),
    }
}

/// The Deployment that Porch is to call, and its pods' labels.
pub(super) fn ours(installed: &Installation) -> Option<(&str, &BTreeMap<String, String>)> {
    match (&installed.router, &installed.runner) {
        (Some(router), _) => Some((&router.deployment, &router.labels)),
        (None, Some(runner)) => Some((&runner.deployment, &runner.labels)),
        (None, None) => None,
    }
}

/// Whether a Service's selector fits pods with these labels.
pub(super) fn selects(service: &Service, labels: &BTreeMap<String, String>) -> bool {
    let selector = selector(service);
    selector.is_some_and(|selector| selector.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

fn has_selector(service: &Service) -> bool {
    selector(service).is_some()
}

/// An empty one is as good as none.
fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let selector = service.spec.as_ref()?.selector.as_ref()?;
    (!selector.is_empty()).then_some(selector)
}

pub(super) fn has_port(service: &Service, number: i32) -> bool {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    ports.into_iter().flatten().any(|port| port.port == number)
}
