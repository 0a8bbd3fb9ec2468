//! The Services that lead to us, and the runners'.

use super::super::destination::{
    Destination, PORT, behind, by_dns, has_port, is_merged, ours, selects, usual,
};
use super::super::facts::Facts;
use super::super::finding::Finding;
use crate::cluster::{CALLED, ROUTERS, SHARDS};

pub(super) fn services(facts: &Facts) -> Vec<Finding> {
    let Some(deployment) = ours(facts).map(|ours| &ours.name) else { return vec![] };
    let mut findings = Vec::new();
    for name in [ROUTERS, CALLED] {
        let Some(service) = facts.services.get(name) else { continue };
        let is_usual = name == usual(facts);
        findings.push(match behind(facts, name) {
            Destination::Ours if has_port(service, PORT) => {
                Finding::ok(format!("{name} leads to {deployment}"))
            }
            Destination::Ours => {
                let text = format!("Service {name} has no port {PORT}");
                Finding::problem(text, "apply the manifest that it is from")
            }
            Destination::NoSelector(_) if is_usual => {
                let fix = format!("compare where it leads with the pods of Deployment {deployment}");
                Finding::unknown(format!("Service {name} has no selector"), fix)
            }
            _ if is_usual || is_merged(facts, name) => Finding::problem(
                format!("Service {name} does not lead to Deployment {deployment}"),
                "apply the manifest that it is from; of a selector that was merged with another, remove the labels \
                 that its pods do not have",
            ),
            _ => continue,
        });
    }
    if findings.is_empty() {
        let text = format!("no Service leads to Deployment {deployment}: {} is missing", usual(facts));
        let manifest = if facts.installed.router.is_some() { "deploy/" } else { "deploy/single-runner" };
        findings.push(Finding::problem(text, format!("kubectl apply -k {manifest}")));
    }
    findings.extend(runners_service(facts));
    findings
}

/// What is wrong with the runners' headless Service. Without it they may be found in another way; what the routers see
/// is looked at beside this.
fn runners_service(facts: &Facts) -> Vec<Finding> {
    let installed = &facts.installed;
    let (Some(_), Some(runner)) = (&installed.router, &installed.runner) else { return vec![] };
    let Some(shards) = facts.services.get(SHARDS) else { return vec![] };
    let by_dns = by_dns(facts);
    let families = shards.ip_families.as_ref().map_or(0, Vec::len);
    let faults = [
        (!selects(shards, &runner.workload.labels), "does not lead to the runners", "correct its selector"),
        (
            by_dns && shards.cluster_ip.as_deref() != Some("None"),
            "is not headless, so that routers see one address",
            "make it anew with clusterIP: None",
        ),
        (
            shards.publish_not_ready_addresses == Some(true),
            "shows runners that are not ready",
            "remove publishNotReadyAddresses",
        ),
        (
            by_dns && families > 1,
            "is dual-stack, so that each runner stands there twice",
            "make it single-stack",
        ),
    ];
    let faults = faults.into_iter().filter(|(is_so, ..)| *is_so);
    faults.map(|(_, text, fix)| Finding::problem(format!("Service {SHARDS} {text}"), fix)).collect()
}
