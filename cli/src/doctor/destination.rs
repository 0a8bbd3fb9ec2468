//! Resolves an address to its Service and the pods that the Service selects. Pure functions without
//! I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ServiceSpec;
use porch_fn_discovery::Target;

use super::facts::Facts;
use super::workload::{ELSEWHERE, Workload};
use crate::cluster::{CALLED, ROUTERS, SHARDS};

/// The gRPC port of our Services.
pub(super) const PORT: i32 = 9445;

/// The servers behind an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Destination<'a> {
    /// Our routers, or our only runner if there are no routers.
    Ours,
    /// The pods of another Deployment of the namespace.
    Other(&'a str),
    /// The Service selects no pods of a Deployment in this namespace.
    Nobody(&'a str),
    /// The Service has no selector, but an `externalName` or Endpoints of its own.
    NoSelector(&'a str),
    /// The Service does not have the port of the address, so nothing answers.
    NoPort(&'a str),
    /// The address is not a Service of the namespace.
    Outside,
    /// The calling Deployment takes the address from another object, such as a ConfigMap.
    Unknown,
}

/// Returns the servers that pods of the namespace reach at `address`.
pub(super) fn destination<'a>(facts: &'a Facts, address: &str) -> Destination<'a> {
    if address == ELSEWHERE || address.contains("$(") {
        return Destination::Unknown;
    }
    let schemes = ["dns:///", "dns:", "passthrough:///"];
    let address = schemes.iter().find_map(|scheme| address.strip_prefix(scheme)).unwrap_or(address);
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let mut labels = host.trim_end_matches('.').split('.');
    let (name, namespace, kind) = (labels.next().unwrap_or_default(), labels.next(), labels.next());
    let is_here = namespace.is_none_or(|namespace| namespace == facts.namespace)
        && kind.is_none_or(|kind| kind == "svc");
    let Some((name, service)) = facts.services.get_key_value(name).filter(|_| is_here) else {
        return Destination::Outside;
    };
    // The port of a Service without a selector is not checked: type ExternalName lists no ports.
    if selector(service).is_none() || port.parse().is_ok_and(|port| has_port(service, port)) {
        behind(facts, name)
    } else {
        Destination::NoPort(name)
    }
}

/// Returns the pods that a Service of the namespace selects.
pub(super) fn behind<'a>(facts: &'a Facts, service: &str) -> Destination<'a> {
    let Some((name, service)) = facts.services.get_key_value(service) else { return Destination::Outside };
    if selector(service).is_none() {
        return Destination::NoSelector(name);
    }
    if ours(facts).is_some_and(|ours| selects(service, &ours.labels)) {
        return Destination::Ours;
    }
    let mut workloads = facts.installed.workloads.iter();
    let selected = workloads.find(|workload| selects(service, &workload.labels));
    selected.map_or(Destination::Nobody(name), |workload| Destination::Other(&workload.name))
}

/// Returns the Deployment that Porch should call.
pub(super) fn ours(facts: &Facts) -> Option<&Workload> {
    facts.installed.router.as_ref().or(facts.installed.runner.as_ref()).map(|server| &server.workload)
}

/// Returns the Service that Porch should call according to our manifests.
pub(super) fn expected_service(facts: &Facts) -> &'static str {
    if facts.installed.router.is_some() { ROUTERS } else { CALLED }
}

/// Returns whether a Service's selector mixes our labels with others, so that it matches no pod.
pub(super) fn is_merged(facts: &Facts, name: &str) -> bool {
    let selector = facts.services.get(name).and_then(|service| selector(service));
    let has = |(key, value)| ours(facts).is_some_and(|ours| ours.labels.get(key) == Some(value));
    matches!(behind(facts, name), Destination::Nobody(_)) && selector.into_iter().flatten().any(has)
}

/// Returns whether a Service's selector matches pods with these labels.
pub(super) fn selects(service: &ServiceSpec, labels: &BTreeMap<String, String>) -> bool {
    let fits = |(key, value)| labels.get(key) == Some(value);
    selector(service).is_some_and(|selector| selector.iter().all(fits))
}

/// Returns the Service's selector. An empty selector counts as none.
fn selector(service: &ServiceSpec) -> Option<&BTreeMap<String, String>> {
    service.selector.as_ref().filter(|selector| !selector.is_empty())
}

pub(super) fn has_port(service: &ServiceSpec, number: i32) -> bool {
    service.ports.iter().flatten().any(|port| port.port == number)
}

/// Returns whether routers or runners resolve the runners' Service by DNS. Only then must the
/// Service be headless and single-stack.
pub(super) fn by_dns(facts: &Facts) -> bool {
    let namespace = &facts.namespace;
    let runners = facts.installed.router_flags.as_ref().map(|flags| flags.runners.clone());
    let peers =
        facts.installed.runner_flags.as_ref().and_then(|flags| Target::parse(&flags.peers, 9445).ok());
    [runners, peers].iter().flatten().any(|target| {
        matches!(target, Target::Dns { .. })
            && place(namespace, target).starts_with(&format!("{SHARDS}.{namespace}:"))
    })
}

/// Returns a DNS or Kubernetes target as `SERVICE.NAMESPACE:PORT`, so that both kinds can be
/// compared. `namespace` is the default for DNS names.
pub(super) fn place(namespace: &str, target: &Target) -> String {
    match target {
        Target::Dns { name, .. } => {
            let mut labels = name.host.trim_end_matches('.').split('.');
            let (service, of) = (labels.next().unwrap_or_default(), labels.next().unwrap_or(namespace));
            format!("{service}.{of}:{}", name.port)
        }
        Target::Kubernetes { namespace, service, port } => format!("{service}.{namespace}:{port}"),
        Target::Static(_) => target.to_string(),
    }
}
