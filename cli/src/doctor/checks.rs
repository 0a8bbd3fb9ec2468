//! Findings out of facts. Pure; each check looks at one thing that breaks in practice.

mod callers;
mod flags;
mod functions;
mod live;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::destination::{Destination, behind, has_port, ours, selects};
use super::facts::{Facts, Original};
use super::finding::Finding;
use super::installation::Program;
use super::rights;
use crate::cluster::{CALLED, ROUTERS, SHARDS};

/// Everything there is to say.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let installed = &facts.installed;
    if installed.router.is_none() && installed.runner.is_none() {
        let text = format!("namespace {} has neither routers nor runners", facts.namespace);
        return vec![Finding::problem("programs", text, "see -n; kubectl apply -k deploy/")];
    }
    let usual = if installed.router.is_some() { 3 } else { 1 };
    let runners =
        installed.runner.as_ref().map(|runner| replicas("runners", &facts.namespace, runner, usual));
    match facts.original() {
        Original::No => (),
        Original::Yes => {
            let text = "that is Porch's own function runner: there is nothing of ours to look at";
            return vec![Finding::warning(
                "programs",
                text,
                "the README's chapter on moving says how this takes its place",
            )];
        }
        Original::Unknown => {
            let text = "this may be Porch's own function runner or ours in its place: no pod of it says";
            let fix = "the rights to get and create pods/portforward; kubectl get pods";
            // Whether they are ready counts for either, and may be why none says.
            return [Finding::unknown("programs", text, fix)].into_iter().chain(runners).collect();
        }
    }
    let mut findings = Vec::new();
    findings.extend(installed.router.as_ref().map(|router| replicas("routers", &facts.namespace, router, 2)));
    findings.extend(runners);
    findings.extend(pairs(facts));
    findings.extend(services(facts));
    findings.extend(flags::all(facts));
    findings.extend(callers::all(facts));
    findings.extend(rights::check(&facts.rights));
    findings.extend(live::all(facts));
    findings.extend(functions::all(facts));
    findings
}

fn replicas<F>(check: &'static str, namespace: &str, program: &Program<F>, usual: i32) -> Finding {
    let Program { deployment, ready, replicas, .. } = program;
    let text = format!("{ready} of {replicas} ready");
    let fix = format!("kubectl -n {namespace} describe pods of Deployment {deployment}; their logs");
    match (*ready, *replicas) {
        (_, 0) => {
            let fix = format!("kubectl -n {namespace} scale deployment {deployment} --replicas={usual}");
            Finding::problem(check, format!("Deployment {deployment} is scaled to 0"), fix)
        }
        (0, _) => Finding::problem(check, text, fix),
        (ready, replicas) if ready < replicas => Finding::warning(check, text, fix),
        _ => Finding::ok(check, text),
    }
}

/// Routers need runners; several runners need a router.
fn pairs(facts: &Facts) -> Option<Finding> {
    let installed = &facts.installed;
    match (&installed.router, &installed.runner) {
        (Some(router), None) => {
            let text = format!("Deployment {} has no runners beside it", router.deployment);
            Some(Finding::problem("runners", text, "kubectl apply -k deploy/"))
        }
        (None, Some(runner)) if runner.replicas > 1 => {
            let text =
                format!("Deployment {} has {} replicas and no routers", runner.deployment, runner.replicas);
            let fix =
                "several runners need routers before them, or each function has its pods everywhere: deploy/";
            Some(Finding::problem("routers", text, fix))
        }
        _ => None,
    }
}

/// The Services that lead to us, and the runners'.
fn services(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "services";
    let installed = &facts.installed;
    let Some((deployment, _)) = ours(installed) else { return Vec::new() };
    let mut findings = Vec::new();
    let service = |name: &str| facts.services.iter().find(|service| service.name_any() == name);
    for name in [ROUTERS, CALLED] {
        let Some(called) = service(name) else { continue };
        let behind = behind(installed, called);
        let leads_here = behind == Destination::Ours;
        if leads_here && has_port(called, 9445) {
            findings.push(Finding::ok(CHECK, format!("{name} leads to {deployment}")));
        } else if leads_here {
            let text = format!("Service {name} has no port 9445");
            findings.push(Finding::problem(CHECK, text, "apply the manifest that it is from"));
        } else if name == usual(facts) && matches!(behind, Destination::NoSelector(_)) {
            let text = format!("Service {name} has no selector");
            let fix = format!("compare where it leads with the pods of Deployment {deployment}");
            findings.push(Finding::unknown(CHECK, text, fix));
        } else if name == usual(facts) || is_merged(facts, called) {
            let text = format!("Service {name} does not lead to Deployment {deployment}");
            let fix = "apply the manifest that it is from; of a selector that was merged with another, \
                       remove the labels that its pods do not have";
            findings.push(Finding::problem(CHECK, text, fix));
        }
    }
    if findings.is_empty() {
        let text = format!("no Service leads to Deployment {deployment}: {} is missing", usual(facts));
        let manifest = if installed.router.is_some() { "deploy/" } else { "deploy/single-runner" };
        findings.push(Finding::problem(CHECK, text, format!("kubectl apply -k {manifest}")));
    }
    let (Some(_), Some(runner)) = (&installed.router, &installed.runner) else { return findings };
    let Some(shards) = service(SHARDS) else {
        // They may be found in another way; what the routers see is looked at beside this.
        return findings;
    };
    let spec = shards.spec.clone().unwrap_or_default();
    let by_dns = flags::by_dns(facts);
    let faults = [
        (!selects(shards, &runner.labels), "does not lead to the runners: correct its selector"),
        (
            by_dns && spec.cluster_ip.as_deref() != Some("None"),
            "is not headless, so that routers see one address: make it anew with clusterIP: None",
        ),
        (
            spec.publish_not_ready_addresses == Some(true),
            "shows runners that are not ready: remove publishNotReadyAddresses",
        ),
        (
            by_dns && spec.ip_families.as_ref().is_some_and(|families| families.len() > 1),
            "is dual-stack, so that each runner stands there twice: make it single-stack",
        ),
    ];
    let faults = faults.iter().filter(|(is, _)| *is);
    findings.extend(faults.map(|(_, fault)| {
        let (what, fix) = fault.split_once(": ").unwrap_or((fault, ""));
        Finding::problem(CHECK, format!("Service {SHARDS} {what}"), fix)
    }));
    findings
}

/// The Service that our manifests have Porch call.
fn usual(facts: &Facts) -> &'static str {
    if facts.installed.router.is_some() { ROUTERS } else { CALLED }
}

/// Whether a Service's selector has labels of ours beside others, which fit no pod.
fn is_merged(facts: &Facts, service: &Service) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let has = |(key, value)| ours(&facts.installed).is_some_and(|(_, labels)| labels.get(key) == Some(value));
    matches!(behind(&facts.installed, service), Destination::Nobody(_))
        && selector.into_iter().flatten().any(has)
}
