//! Turns facts into findings, without I/O. [`CHECKS`] is the table of checks. Each check covers one
//! fault that happens in practice.

mod flags;
mod functions;
mod live;
mod services;
#[cfg(test)]
pub(super) mod tests;

use super::facts::Facts;
use super::finding::{Finding, Level, Report};
use super::installation::Server;
use super::rights;

type Check = (&'static str, fn(&Facts, &mut Report));

/// The checks, in the order of the report.
const CHECKS: &[Check] = &[
    ("routers", routers),
    RUNNERS,
    ("services", services::services),
    ("message sizes", flags::sizes),
    ("memory", flags::memory),
    ("shutdown", flags::shutdown),
    ("flags", flags::flags),
    ("Porch", services::callers),
    ("rights", |facts, report| rights::check(&facts.rights, report)),
    ("routers", |facts, report| live::unreached(&facts.routers, report)),
    ("runners", |facts, report| live::unreached(&facts.runners, report)),
    ("discovery", live::discovery),
    ("reachability", live::reachability),
    ("ring", live::ring),
    ("executables", live::executables),
    ("versions", live::versions),
    ("configuration", live::configuration),
    ("pod template", functions::template),
    ("function pods", functions::pods),
    ("leftovers", functions::leftovers),
];
const RUNNERS: Check = ("runners", runners);
/// Checks whose faults are normal for some seconds after a change.
const LIVE: [&str; 5] = ["discovery", "reachability", "ring", "executables", "configuration"];

/// Runs the checks and returns all findings.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let findings_of = |(name, check): &Check| {
        let mut report = Report::new(name);
        check(facts, &mut report);
        report.findings
    };
    let mut findings = findings_of(&("programs", programs));
    let checks = match findings.first().map(|finding| finding.level) {
        None => CHECKS,
        // No pod answers, so doctor does not know whether the program is Porch's runner or ours.
        // Only the readiness check applies to both. Its finding may explain the missing answers: a
        // pod that is not ready does not identify itself.
        Some(Level::Unknown) => &[RUNNERS],
        Some(_) => &[],
    };
    findings.extend(checks.iter().flat_map(findings_of));
    findings
}

/// Returns whether the finding may be a temporary effect of a change.
pub(super) fn may_be_temporary(finding: &Finding) -> bool {
    finding.level >= Level::Warning && LIVE.contains(&finding.check)
}

/// Reports why there is nothing to check: none of our programs runs, or doctor cannot identify the
/// program that runs.
fn programs(facts: &Facts, report: &mut Report) {
    if facts.installed.router.is_none() && facts.installed.runner.is_none() {
        let text = format!("namespace {} has neither routers nor runners", facts.namespace);
        return report.problem(text, "name another namespace with -n, or install: kubectl apply -k deploy/");
    }
    match facts.is_original() {
        Some(false) => {}
        Some(true) => report.warning(
            "this is Porch's own function runner: there is none of ours to check",
            "follow docs/migrate.md",
        ),
        None => report.unknown(
            "this may be Porch's own function runner, or ours in its place: its pods do not answer",
            "check that you may get and create pods/portforward; check its pods: kubectl get pods",
        ),
    }
}

/// Checks whether routers are ready, and whether they are missing although there are several
/// runners.
fn routers(facts: &Facts, report: &mut Report) {
    match (&facts.installed.router, &facts.installed.runner) {
        (Some(router), _) => replicas(facts, router, 2, report),
        (None, Some(runner)) if runner.workload.replicas > 1 => {
            let (name, replicas) = (&runner.workload.name, runner.workload.replicas);
            report.problem(
                format!("Deployment {name} has {replicas} replicas and no routers"),
                "install routers (deploy/): without them, each runner starts its own pods of each function",
            );
        }
        _ => {}
    }
}

/// Checks whether runners are ready, and whether they are missing although there are routers.
fn runners(facts: &Facts, report: &mut Report) {
    match (&facts.installed.router, &facts.installed.runner) {
        (router, Some(runner)) => replicas(facts, runner, if router.is_some() { 3 } else { 1 }, report),
        (Some(router), None) => {
            let text = format!("Deployment {} has no runners beside it", router.workload.name);
            report.problem(text, "install runners: kubectl apply -k deploy/");
        }
        (None, None) => {}
    }
}

fn replicas(facts: &Facts, server: &Server, recommended: i32, report: &mut Report) {
    let (namespace, workload) = (&facts.namespace, &server.workload);
    let (deployment, ready, replicas) = (&workload.name, workload.ready, workload.replicas);
    if replicas == 0 {
        let fix = format!("kubectl -n {namespace} scale deployment {deployment} --replicas={recommended}");
        return report.problem(format!("Deployment {deployment} is scaled to 0"), fix);
    }
    let text = format!("{ready} of {replicas} ready");
    let fix = format!("check pods and logs of Deployment {deployment}: kubectl -n {namespace} describe pods");
    match ready {
        0 => report.problem(text, fix),
        ready if ready < replicas => report.warning(text, fix),
        _ if workload.pods > replicas => report.warning(
            format!("{text}, but a rollout has not ended: there are {} pods", workload.pods),
            format!("if it does not end, {fix}"),
        ),
        _ => report.ok(text),
    }
}
