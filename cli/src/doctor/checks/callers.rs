//! The addresses that Porch calls to have functions evaluated, and what it evaluates itself.

use super::super::destination::{
    Destination, PORT, behind, destination, has_port, is_merged, leads_here, usual,
};
use super::super::facts::Facts;
use super::super::finding::Finding;
use super::super::porch::{Caller, EVALUATOR_VARIABLE, RUNNER_VARIABLE};

pub(super) fn callers(facts: &Facts) -> Vec<Finding> {
    let (namespace, installed) = (&facts.namespace, &facts.installed);
    let called: Vec<_> =
        installed.callers.iter().map(|caller| (caller, destination(facts, &caller.address))).collect();
    let mut findings = Vec::new();
    for original in installed.originals.iter().filter(|original| original.workload.pods > 0) {
        let (name, pods) = (&original.workload.name, original.workload.pods);
        // A caller of it is reported below.
        if called.iter().any(|(_, destination)| *destination == Destination::Other(name)) {
            continue;
        }
        let text = format!("Porch's own function runner still runs: Deployment {name}, {pods} replicas");
        let fix =
            format!("once nobody calls it: kubectl -n {namespace} scale deployment {name} --replicas=0");
        findings.push(Finding::warning(text, fix));
    }
    if called.is_empty() {
        let text = format!("nothing in namespace {namespace} calls a function runner");
        let flag = format!("--function-runner={}:{PORT} on porch-server", service(facts));
        findings.push(Finding::warning(text, format!("{flag}; elsewhere, with this namespace in the name")));
    }
    let news = called.iter().filter(|(_, destination)| !is_reported(facts, destination));
    findings.extend(news.map(|(caller, destination)| finding(facts, caller, destination)));
    for deployment in &installed.without_evaluator {
        let text = format!(
            "{deployment} calls no function runner: packages of v1alpha2 have Porch's built-in functions alone"
        );
        let set = set_variable(facts, deployment, RUNNER_VARIABLE);
        let fix = format!("{set} (of the version after Porch 1.6: {EVALUATOR_VARIABLE})");
        findings.push(Finding::info(text, fix));
    }
    for server in installed.servers.iter().filter(|server| server.workload.pods > 0) {
        let text = format!(
            "{} evaluates functions in pods of its own, except those whose FunctionConfig names an executable",
            server.workload.name
        );
        let fix = "porch-fn porch-config generate gives functions such a FunctionConfig, which leads them to \
                   --function-runner; --warm-up-pod-cache=false keeps porch-server from starting pods for them; \
                   functions without a FunctionConfig stay in it";
        findings.push(Finding::info(text, fix));
    }
    findings
}

fn finding(facts: &Facts, caller: &Caller, destination: &Destination<'_>) -> Finding {
    let (deployment, address, namespace) = (&caller.deployment, &caller.address, &facts.namespace);
    let here = if caller.setting.starts_with('-') {
        format!("{}={}:{PORT} on Deployment {deployment}", caller.setting, service(facts))
    } else {
        set_variable(facts, deployment, caller.setting)
    };
    let calls = format!("{deployment} calls {address} ({})", caller.setting);
    let compared = |what: &str| format!("compare {what} with {}.{namespace}:{PORT}", service(facts));
    match destination {
        Destination::Ours => Finding::ok(calls),
        Destination::Other(other) => called_other(facts, &calls, other, here),
        Destination::Nobody(name) => {
            let text = format!("{calls}, and Service {name} selects pods of no Deployment here");
            Finding::warning(text, here)
        }
        Destination::NoSelector(name) => {
            let text = format!("{calls}, and Service {name} has no selector");
            Finding::unknown(text, compared("where it leads"))
        }
        Destination::NoPort(name) => {
            Finding::problem(format!("{calls}, a port that Service {name} does not have"), here)
        }
        Destination::Outside => {
            let text = format!("{calls}, which is not a Service of namespace {namespace}");
            Finding::warning(text, format!("if it should be: {here}"))
        }
        Destination::Unknown => Finding::unknown(calls, compared("it")),
    }
}

/// A call that another Deployment answers.
fn called_other(facts: &Facts, calls: &str, other: &str, here: String) -> Finding {
    let installed = &facts.installed;
    if installed.servers.iter().any(|server| server.workload.name == other) {
        return Finding::info(format!("{calls}, which is {other}'s own evaluator"), here);
    }
    match installed.originals.iter().find(|original| original.workload.name == other) {
        Some(original) if original.starts_pods => {
            Finding::warning(format!("{calls}, which is Porch's own function runner"), here)
        }
        Some(_) => Finding::info(
            format!("{calls}, which is Porch's own function runner, for executables alone"),
            format!(
                "{here}, and when its old pods are gone: porch-fn porch-config generate | kubectl apply -f -"
            ),
        ),
        None => Finding::warning(format!("{calls}, which leads to Deployment {other}"), here),
    }
}

/// Whether the check of our Services reports this already.
fn is_reported(facts: &Facts, destination: &Destination<'_>) -> bool {
    match destination {
        Destination::Nobody(name) => *name == usual(facts) || is_merged(facts, name),
        Destination::NoPort(name) => {
            behind(facts, name) == Destination::Ours && !has_port(&facts.services[*name], PORT)
        }
        _ => false,
    }
}

fn set_variable(facts: &Facts, deployment: &str, variable: &str) -> String {
    let (namespace, service) = (&facts.namespace, service(facts));
    format!("kubectl -n {namespace} set env deployment/{deployment} {variable}={service}:{PORT}")
}

/// A Service that leads to us: the one that our manifests bring, if it does.
fn service(facts: &Facts) -> &str {
    let usual = usual(facts);
    let mut others = facts.services.keys().map(String::as_str);
    if leads_here(facts, usual) {
        usual
    } else {
        others.find(|name| leads_here(facts, name)).unwrap_or(usual)
    }
}
