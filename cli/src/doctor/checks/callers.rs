//! Checks the addresses that Porch calls to evaluate functions, and what Porch evaluates itself.

use super::super::destination::{
    Destination, PORT, behind, destination, has_port, is_merged, leads_here, usual,
};
use super::super::facts::Facts;
use super::super::finding::{Level, Report};
use super::super::porch::{Caller, EVALUATOR_VARIABLE, RUNNER_VARIABLE};

pub(super) fn callers(facts: &Facts, report: &mut Report) {
    let (namespace, installed) = (&facts.namespace, &facts.installed);
    let called: Vec<_> =
        installed.callers.iter().map(|caller| (caller, destination(facts, &caller.address))).collect();
    for original in installed.originals.iter().filter(|original| original.workload.pods > 0) {
        let (name, pods) = (&original.workload.name, original.workload.pods);
        // If a program calls this runner, the code below reports the call.
        if called.iter().all(|(_, destination)| *destination != Destination::Other(name)) {
            report.warning(
                format!("Porch's own function runner still runs: Deployment {name}, {pods} replicas"),
                format!("once nobody calls it: kubectl -n {namespace} scale deployment {name} --replicas=0"),
            );
        }
    }
    if called.is_empty() {
        let flag = format!("--function-runner={}:{PORT} on porch-server", service(facts));
        report.warning(
            format!("nothing in namespace {namespace} calls a function runner"),
            format!("{flag}; elsewhere, with this namespace in the name"),
        );
    }
    for (caller, destination) in called.iter().filter(|(_, destination)| !is_reported(facts, destination)) {
        call(facts, caller, destination, report);
    }
    for deployment in &installed.without_evaluator {
        let set = set_variable(facts, deployment, RUNNER_VARIABLE);
        report.info(
            format!(
                "{deployment} calls no function runner: packages of v1alpha2 have Porch's built-in functions alone"
            ),
            format!("{set} (of the version after Porch 1.6: {EVALUATOR_VARIABLE})"),
        );
    }
    for server in installed.servers.iter().filter(|server| server.workload.pods > 0) {
        report.info(
            format!(
                "{} evaluates functions in pods of its own, except those whose FunctionConfig names an executable",
                server.workload.name
            ),
            "porch-fn porch-config generate gives functions such a FunctionConfig, which leads them to \
             --function-runner; --warm-up-pod-cache=false keeps porch-server from starting pods for them; functions \
             without a FunctionConfig stay in it",
        );
    }
}

fn call(facts: &Facts, caller: &Caller, destination: &Destination<'_>, report: &mut Report) {
    let Caller { deployment, setting, address, .. } = caller;
    let (namespace, installed, service) = (&facts.namespace, &facts.installed, service(facts));
    let here = if setting.starts_with('-') {
        format!("{setting}={service}:{PORT} on Deployment {deployment}")
    } else {
        set_variable(facts, deployment, setting)
    };
    let calls = format!("{deployment} calls {address} ({setting})");
    let compared = |what: &str| format!("compare {what} with {service}.{namespace}:{PORT}");
    let original = |name: &str| installed.originals.iter().find(|original| original.workload.name == name);
    let is_server = |name: &str| installed.servers.iter().any(|server| server.workload.name == name);
    let (level, where_to, fix) = match *destination {
        Destination::Ours => return report.ok(calls),
        Destination::Other(name) if is_server(name) => {
            (Level::Info, format!(", which is {name}'s own evaluator"), here)
        }
        Destination::Other(name) => match original(name) {
            Some(original) if original.starts_pods => {
                (Level::Warning, ", which is Porch's own function runner".to_owned(), here)
            }
            Some(_) => (
                Level::Info,
                ", which is Porch's own function runner, for executables alone".to_owned(),
                format!(
                    "{here}, and when its old pods are gone: porch-fn porch-config generate | kubectl apply -f -"
                ),
            ),
            None => (Level::Warning, format!(", which leads to Deployment {name}"), here),
        },
        Destination::Nobody(name) => {
            (Level::Warning, format!(", and Service {name} selects pods of no Deployment here"), here)
        }
        Destination::NoSelector(name) => {
            (Level::Unknown, format!(", and Service {name} has no selector"), compared("where it leads"))
        }
        Destination::NoPort(name) => {
            (Level::Problem, format!(", a port that Service {name} does not have"), here)
        }
        Destination::Outside => (
            Level::Warning,
            format!(", which is not a Service of namespace {namespace}"),
            format!("if it should be: {here}"),
        ),
        Destination::Unknown => (Level::Unknown, String::new(), compared("it")),
    };
    report.add(level, calls + &where_to, fix);
}

/// Returns whether the check "services" already reports this.
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

/// Returns a Service that selects our pods, preferably the Service of our manifests.
fn service(facts: &Facts) -> &str {
    let usual = usual(facts);
    let mut names = std::iter::once(usual).chain(facts.services.keys().map(String::as_str));
    names.find(|name| leads_here(facts, name)).unwrap_or(usual)
}
