//! Findings out of facts. Pure: [`CHECKS`] is the table, and each check looks at one thing that breaks in practice.

mod callers;
mod flags;
mod functions;
mod live;
mod services;
#[cfg(test)]
mod tests;

use super::facts::{Facts, Original};
use super::finding::{Finding, Level};
use super::installation::Installed;
use super::rights;

/// What to look at, in the report's order.
const CHECKS: &[Check] = &[
    settled("programs", programs),
    settled("routers", routers),
    settled("runners", runners),
    settled("services", services::services),
    settled("message sizes", flags::sizes),
    settled("memory", flags::memory),
    settled("shutdown", flags::shutdown),
    settled("flags", flags::flags),
    settled("Porch", callers::callers),
    settled("rights", |facts| rights::check(&facts.rights)),
    settled("routers", |facts| live::unreached(&facts.routers)),
    settled("runners", |facts| live::unreached(&facts.runners)),
    live("discovery", live::discovery),
    live("reachability", live::reachability),
    live("ring", live::ring),
    live("executables", live::executables),
    settled("versions", live::versions),
    live("configuration", live::configuration),
    settled("pod template", functions::template),
    settled("function pods", functions::pods),
    settled("leftovers", functions::leftovers),
];

/// One thing to look at.
struct Check {
    name: &'static str,
    /// Whether a fault is normal for seconds after a change.
    may_pass: bool,
    find: fn(&Facts) -> Vec<Finding>,
}

const fn settled(name: &'static str, find: fn(&Facts) -> Vec<Finding>) -> Check {
    Check { name, may_pass: false, find }
}

const fn live(name: &'static str, find: fn(&Facts) -> Vec<Finding>) -> Check {
    Check { name, may_pass: true, find }
}

/// The whole report.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let run = |check: &Check| {
        let named = |finding| Finding { check: check.name, ..finding };
        (check.find)(facts).into_iter().map(named).collect::<Vec<_>>()
    };
    let mut checks = CHECKS.iter();
    let programs: Vec<_> = checks.next().into_iter().flat_map(run).collect();
    match programs.iter().map(|finding| finding.level).next() {
        None => checks.flat_map(run).collect(),
        // Whether they are ready counts for either, and may be why none says which they are.
        Some(Level::Unknown) => programs.into_iter().chain(checks.nth(1).into_iter().flat_map(run)).collect(),
        Some(_) => programs,
    }
}

/// Whether this is how things look for seconds after a change.
pub(super) fn may_pass(finding: &Finding) -> bool {
    let is_live = CHECKS.iter().any(|check| check.may_pass && check.name == finding.check);
    finding.level >= Level::Warning && is_live
}

/// Why there is nothing of ours to look at.
fn programs(facts: &Facts) -> Vec<Finding> {
    if facts.installed.router.is_none() && facts.installed.runner.is_none() {
        let text = format!("namespace {} has neither routers nor runners", facts.namespace);
        return vec![Finding::problem(text, "see -n; kubectl apply -k deploy/")];
    }
    match facts.original() {
        Original::No => vec![],
        Original::Yes => vec![Finding::warning(
            "that is Porch's own function runner: there is nothing of ours to look at",
            "the README's chapter on moving says how this takes its place",
        )],
        Original::Unknown => vec![Finding::unknown(
            "this may be Porch's own function runner or ours in its place: no pod of it says",
            "the rights to get and create pods/portforward; kubectl get pods",
        )],
    }
}

/// Whether routers are ready. Several runners need them.
fn routers(facts: &Facts) -> Vec<Finding> {
    match (&facts.installed.router, &facts.installed.runner) {
        (Some(router), _) => vec![replicas(facts, router, 2)],
        (None, Some(runner)) if runner.workload.replicas > 1 => {
            let (name, replicas) = (&runner.workload.name, runner.workload.replicas);
            let fix =
                "several runners need routers before them, or each function has its pods everywhere: deploy/";
            vec![Finding::problem(format!("Deployment {name} has {replicas} replicas and no routers"), fix)]
        }
        _ => vec![],
    }
}

/// Whether runners are ready. Routers need them.
fn runners(facts: &Facts) -> Vec<Finding> {
    match (&facts.installed.router, &facts.installed.runner) {
        (Some(_), Some(runner)) => vec![replicas(facts, runner, 3)],
        (None, Some(runner)) => vec![replicas(facts, runner, 1)],
        (Some(router), None) => {
            let text = format!("Deployment {} has no runners beside it", router.workload.name);
            vec![Finding::problem(text, "kubectl apply -k deploy/")]
        }
        (None, None) => vec![],
    }
}

fn replicas<F>(facts: &Facts, installed: &Installed<F>, usual: i32) -> Finding {
    let (namespace, workload) = (&facts.namespace, &installed.workload);
    let (deployment, ready, replicas) = (&workload.name, workload.ready, workload.replicas);
    let text = format!("{ready} of {replicas} ready");
    let fix = format!("kubectl -n {namespace} describe pods of Deployment {deployment}; their logs");
    if replicas == 0 {
        let fix = format!("kubectl -n {namespace} scale deployment {deployment} --replicas={usual}");
        return Finding::problem(format!("Deployment {deployment} is scaled to 0"), fix);
    }
    match ready {
        0 => Finding::problem(text, fix),
        ready if ready < replicas => Finding::warning(text, fix),
        _ => Finding::ok(text),
    }
}
