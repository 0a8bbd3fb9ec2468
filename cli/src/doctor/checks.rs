//! Findings out of facts. Pure; each check looks at one thing that breaks in practice.

mod flags;
mod functions;
mod live;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::facts::{Facts, Original};
use super::finding::Finding;
use super::installation::{Caller, Program};
use super::rights;
use crate::cluster::{CALLED, SHARDS};

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
    findings.extend(callers(facts));
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

fn services(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "services";
    let mut findings = Vec::new();
    let installed = &facts.installed;
    let (leads_to, labels) = match (&installed.router, &installed.runner) {
        (Some(router), _) => (router.deployment.as_str(), &router.labels),
        (None, Some(runner)) => (runner.deployment.as_str(), &runner.labels),
        (None, None) => return findings,
    };
    let (manifest, way) = match installed.router {
        Some(_) => {
            ("apply deploy/router.yaml", "of a selector that was merged with Porch's, remove Porch's label")
        }
        None => (
            "kubectl apply -k deploy/single-runner",
            "of one that was merged with the routers', remove theirs",
        ),
    };
    let service = |name: &str| facts.services.iter().find(|service| service.name_any() == name);
    match service(CALLED) {
        None => {
            let text = format!("there is no Service {CALLED}, which Porch calls");
            findings.push(Finding::problem(CHECK, text, manifest));
        }
        Some(called) if !selects(called, labels) => {
            let text = format!("Service {CALLED} does not lead to Deployment {leads_to}");
            findings.push(Finding::problem(CHECK, text, format!("{manifest}; {way}")));
        }
        Some(called) if !has_port(called) => {
            let text = format!("Service {CALLED} has no port 9445");
            findings.push(Finding::problem(CHECK, text, manifest));
        }
        Some(_) => findings.push(Finding::ok(CHECK, format!("{CALLED} leads to {leads_to}"))),
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

/// Whether a Service's selector fits pods with these labels.
fn selects(service: &Service, labels: &BTreeMap<String, String>) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| {
        !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    })
}

fn has_port(service: &Service) -> bool {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    ports.into_iter().flatten().any(|port| port.port == 9445)
}

/// Whether Porch calls us, and nobody else.
fn callers(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "Porch";
    let namespace = &facts.namespace;
    let mut findings = Vec::new();
    for (original, replicas) in facts.installed.originals.iter().filter(|(_, replicas)| *replicas > 0) {
        let text =
            format!("Porch's own function runner still runs: Deployment {original}, {replicas} replicas");
        let fix =
            format!("once nobody calls it: kubectl -n {namespace} scale deployment {original} --replicas=0");
        findings.push(Finding::warning(CHECK, text, fix));
    }
    if facts.installed.callers.is_empty() {
        let text = format!("nothing in namespace {namespace} calls a function runner");
        let fix = "Porch's flag is --function-runner=function-runner:9445; elsewhere, with this namespace in the name";
        findings.push(Finding::warning(CHECK, text, fix));
    }
    for caller in &facts.installed.callers {
        let (deployment, address) = (&caller.deployment, &caller.address);
        findings.push(if calls_us(caller, namespace) {
            Finding::ok(CHECK, format!("{deployment} calls {address}"))
        } else {
            let text =
                format!("{deployment} calls {address}, which is not Service {CALLED} of this namespace");
            Finding::warning(CHECK, text, format!("if it should: --function-runner={CALLED}:9445"))
        });
    }
    findings
}

/// Whether a caller's address is the Service that leads to us in `namespace`.
fn calls_us(caller: &Caller, namespace: &str) -> bool {
    let host = caller.address.trim_start_matches("dns:///").trim_end_matches(":9445");
    let names = [String::new(), format!(".{namespace}"), format!(".{namespace}.svc")];
    names.iter().any(|name| host == format!("{CALLED}{name}"))
        || host.starts_with(&format!("{CALLED}.{namespace}.svc."))
}
