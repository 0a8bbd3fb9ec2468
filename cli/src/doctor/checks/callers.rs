//! Whom Porch calls to have functions evaluated, and what it evaluates itself.

use kube::ResourceExt;

use super::super::destination::{Destination, behind, destination, has_port};
use super::super::facts::Facts;
use super::super::finding::Finding;
use super::super::porch::{Caller, EVALUATOR_VARIABLE, RUNNER_VARIABLE};
use super::{is_merged, usual};

const CHECK: &str = "Porch";

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let (namespace, installed) = (&facts.namespace, &facts.installed);
    let called: Vec<_> =
        installed.callers.iter().map(|caller| (caller, destination(facts, &caller.address))).collect();
    let mut findings = Vec::new();
    for original in installed.originals.iter().filter(|original| original.pods > 0) {
        let (name, pods) = (&original.deployment, original.pods);
        // Whoever calls it says so below.
        if called.iter().any(|(_, destination)| *destination == Destination::Other(name)) {
            continue;
        }
        let text = format!("Porch's own function runner still runs: Deployment {name}, {pods} replicas");
        let fix =
            format!("once nobody calls it: kubectl -n {namespace} scale deployment {name} --replicas=0");
        findings.push(Finding::warning(CHECK, text, fix));
    }
    if called.is_empty() {
        let text = format!("nothing in namespace {namespace} calls a function runner");
        let fix = format!(
            "--function-runner={}:9445 on porch-server; elsewhere, with this namespace in the name",
            service(facts)
        );
        findings.push(Finding::warning(CHECK, text, fix));
    }
    let news = called.iter().filter(|(_, destination)| !is_reported(facts, destination));
    findings.extend(news.map(|(caller, destination)| finding(facts, caller, destination)));
    for deployment in &installed.without_evaluator {
        let text = format!(
            "{deployment} calls no function runner: packages of v1alpha2 have Porch's built-in functions alone"
        );
        let fix = format!(
            "{} (of the version after Porch 1.6: {EVALUATOR_VARIABLE})",
            set_variable(facts, deployment, RUNNER_VARIABLE)
        );
        findings.push(Finding::info(CHECK, text, fix));
    }
    findings.extend(installed.servers.iter().filter(|server| server.pods > 0).map(|server| {
        let text = format!(
            "{} evaluates functions in pods of its own, except those whose FunctionConfig names an executable",
            server.deployment
        );
        let fix = "porch-fn porch-config generate gives functions such a FunctionConfig, which leads them to \
                   --function-runner; --warm-up-pod-cache=false keeps porch-server from starting pods for them; \
                   functions without a FunctionConfig stay in it";
        Finding::info(CHECK, text, fix)
    }));
    findings
}

fn finding(facts: &Facts, caller: &Caller, destination: &Destination<'_>) -> Finding {
    let (deployment, address, namespace) = (&caller.deployment, &caller.address, &facts.namespace);
    let is_variable = !caller.setting.starts_with('-');
    let here = if is_variable {
        set_variable(facts, deployment, caller.setting)
    } else {
        format!("{}={}:9445 on Deployment {deployment}", caller.setting, service(facts))
    };
    let calls = format!("{deployment} calls {address} ({})", caller.setting);
    let installed = &facts.installed;
    match destination {
        Destination::Ours => Finding::ok(CHECK, calls),
        Destination::Other(other) if installed.servers.iter().any(|server| server.deployment == *other) => {
            let text = format!("{calls}, which is {other}'s own evaluator");
            Finding::info(CHECK, text, here)
        }
        Destination::Other(other)
            if installed.originals.iter().any(|one| one.deployment == *other && !one.starts_pods) =>
        {
            let text = format!("{calls}, which is Porch's own function runner, for executables alone");
            let fix = format!(
                "{here}, and when its old pods are gone: porch-fn porch-config generate | kubectl apply -f -"
            );
            Finding::info(CHECK, text, fix)
        }
        Destination::Other(other) if installed.originals.iter().any(|one| one.deployment == *other) => {
            Finding::warning(CHECK, format!("{calls}, which is Porch's own function runner"), here)
        }
        Destination::Other(other) => {
            Finding::warning(CHECK, format!("{calls}, which leads to Deployment {other}"), here)
        }
        Destination::Nobody(name) => {
            let text = format!("{calls}, and Service {name} selects pods of no Deployment here");
            Finding::warning(CHECK, text, here)
        }
        Destination::NoSelector(name) => {
            let text = format!("{calls}, and Service {name} has no selector");
            let fix = format!("compare where it leads with {}.{namespace}:9445", service(facts));
            Finding::unknown(CHECK, text, fix)
        }
        Destination::NoPort(name) => {
            Finding::problem(CHECK, format!("{calls}, a port that Service {name} does not have"), here)
        }
        Destination::Outside => {
            let text = format!("{calls}, which is not a Service of namespace {namespace}");
            Finding::warning(CHECK, text, format!("if it should be: {here}"))
        }
        Destination::Unknown => {
            let fix = format!("compare it with {}.{namespace}:9445", service(facts));
            Finding::unknown(CHECK, calls, fix)
        }
    }
}

/// Whether the check of our Services reports this already.
fn is_reported(facts: &Facts, destination: &Destination<'_>) -> bool {
    let service = |name: &str| facts.services.iter().find(|service| service.name_any() == name);
    match destination {
        Destination::Nobody(name) => {
            *name == usual(facts) || service(name).is_some_and(|one| is_merged(facts, one))
        }
        Destination::NoPort(name) => {
            let is_ours = |one: &&_| behind(&facts.installed, one) == Destination::Ours;
            service(name).filter(is_ours).is_some_and(|one| !has_port(one, 9445))
        }
        _ => false,
    }
}

fn set_variable(facts: &Facts, deployment: &str, variable: &str) -> String {
    let (namespace, service) = (&facts.namespace, service(facts));
    format!("kubectl -n {namespace} set env deployment/{deployment} {variable}={service}:9445")
}

/// A Service that leads to us: the one that our manifests bring, if it does.
fn service(facts: &Facts) -> String {
    let leads_here =
        |service: &&_| behind(&facts.installed, service) == Destination::Ours && has_port(service, 9445);
    let mut names: Vec<_> = facts.services.iter().filter(leads_here).map(ResourceExt::name_any).collect();
    names.sort_by_key(|name| name != usual(facts));
    names.into_iter().next().unwrap_or_else(|| usual(facts).to_owned())
}
