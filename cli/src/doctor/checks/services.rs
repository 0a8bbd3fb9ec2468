//! Checks of the Services of our programs, and of the runners' headless Service.

use super::super::destination::{
    Destination, PORT, behind, by_dns, has_port, is_merged, ours, selects, usual,
};
use super::super::facts::Facts;
use super::super::finding::Report;
use crate::cluster::{CALLED, ROUTERS, SHARDS};

pub(super) fn services(facts: &Facts, report: &mut Report) {
    let Some(deployment) = ours(facts).map(|ours| &ours.name) else { return };
    for name in [ROUTERS, CALLED] {
        let Some(service) = facts.services.get(name) else { continue };
        let is_usual = name == usual(facts);
        match behind(facts, name) {
            Destination::Ours if has_port(service, PORT) => {
                report.ok(format!("{name} leads to {deployment}"));
            }
            Destination::Ours => report.problem(
                format!("Service {name} has no port {PORT}"),
                "apply the manifest that it is from",
            ),
            Destination::NoSelector(_) if is_usual => report.unknown(
                format!("Service {name} has no selector"),
                format!("compare where it leads with the pods of Deployment {deployment}"),
            ),
            _ if is_usual || is_merged(facts, name) => report.problem(
                format!("Service {name} does not lead to Deployment {deployment}"),
                "apply the manifest that it is from; of a selector that was merged with another, remove the labels \
                 that its pods do not have",
            ),
            _ => {}
        }
    }
    if report.is_empty() {
        let manifest = if facts.installed.router.is_some() { "deploy/" } else { "deploy/single-runner" };
        report.problem(
            format!("no Service leads to Deployment {deployment}: {} is missing", usual(facts)),
            format!("kubectl apply -k {manifest}"),
        );
    }
    runners_service(facts, report);
}

/// Checks the runners' headless Service. Its absence is no fault, since routers may find runners in
/// another way. The check "discovery" covers the runners that routers see.
fn runners_service(facts: &Facts, report: &mut Report) {
    let installed = &facts.installed;
    let (Some(_), Some(runner)) = (&installed.router, &installed.runner) else { return };
    let Some(shards) = facts.services.get(SHARDS) else { return };
    let by_dns = by_dns(facts);
    let is_headless = shards.cluster_ip.as_deref() == Some("None");
    let is_dual_stack = shards.ip_families.as_ref().is_some_and(|families| families.len() > 1);
    let shows_unready = shards.publish_not_ready_addresses == Some(true);
    let leads_there = selects(shards, &runner.workload.labels);
    for (is_so, text, fix) in [
        (!leads_there, "does not lead to the runners", "correct its selector"),
        (
            by_dns && !is_headless,
            "is not headless, so that routers see one address",
            "make it anew with clusterIP: None",
        ),
        (shows_unready, "shows runners that are not ready", "remove publishNotReadyAddresses"),
        (
            by_dns && is_dual_stack,
            "is dual-stack, so that each runner stands there twice",
            "make it single-stack",
        ),
    ] {
        if is_so {
            report.problem(format!("Service {SHARDS} {text}"), fix);
        }
    }
}
