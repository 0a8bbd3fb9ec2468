//! Checks of the Services of our programs, of the runners' headless Service, and of the addresses
//! that Porch calls to evaluate functions. Also reports which functions Porch evaluates itself.

use super::super::destination::{
    Destination, PORT, behind, by_dns, destination, expected_service, has_port, is_merged, ours, selects,
};
use super::super::facts::Facts;
use super::super::finding::{Level, Report};
use super::super::installation::evaluator_of;
use super::super::porch::{Caller, EVALUATOR_VARIABLE, RUNNER_VARIABLE};
use crate::cluster::{CALLED, ROUTERS, SHARDS};

pub(super) fn services(facts: &Facts, report: &mut Report) {
    let Some(deployment) = ours(facts).map(|ours| &ours.name) else { return };
    for name in [ROUTERS, CALLED] {
        let Some(service) = facts.services.get(name) else { continue };
        let is_expected = name == expected_service(facts);
        match behind(facts, name) {
            Destination::Ours if has_port(service, PORT) => {
                report.ok(format!("{name} leads to {deployment}"));
            }
            Destination::Ours => report.problem(
                format!("Service {name} has no port {PORT}"),
                "apply the Service's manifest again",
            ),
            Destination::NoSelector(_) if is_expected => report.unknown(
                format!("Service {name} has no selector"),
                format!("compare its endpoints with the pods of Deployment {deployment}"),
            ),
            _ if is_expected || is_merged(facts, name) => report.problem(
                format!("Service {name} does not lead to Deployment {deployment}"),
                "apply the Service's manifest again; if its selector was merged with another, remove the labels that \
                 the pods do not have",
            ),
            _ => {}
        }
    }
    if report.is_empty() {
        let manifest = if facts.installed.router.is_some() { "deploy/" } else { "deploy/single-runner" };
        report.problem(
            format!("no Service leads to Deployment {deployment}: {} is missing", expected_service(facts)),
            format!("kubectl apply -k {manifest}"),
        );
    }
    runners_service(facts, report);
}

/// Checks the runners' headless Service. It may be missing, because routers may find runners in
/// other ways. The check "discovery" covers the runners that routers know.
fn runners_service(facts: &Facts, report: &mut Report) {
    let installed = &facts.installed;
    let (Some(_), Some(runner)) = (&installed.router, &installed.runner) else { return };
    let Some(shards) = facts.services.get(SHARDS) else { return };
    let by_dns = by_dns(facts);
    let is_headless = shards.cluster_ip.as_deref() == Some("None");
    let is_dual_stack = shards.ip_families.as_ref().is_some_and(|families| families.len() > 1);
    let lists_unready = shards.publish_not_ready_addresses == Some(true);
    let selects_runners = selects(shards, &runner.workload.labels);
    for (is_so, text, fix) in [
        (!selects_runners, "does not lead to the runners", "correct its selector"),
        (
            by_dns && !is_headless,
            "is not headless, so routers see only one address",
            "create it again with clusterIP: None",
        ),
        (lists_unready, "lists runners that are not ready", "remove publishNotReadyAddresses"),
        (by_dns && is_dual_stack, "is dual-stack, so it lists each runner twice", "make it single-stack"),
    ] {
        if is_so {
            report.problem(format!("Service {SHARDS} {text}"), fix);
        }
    }
}

pub(super) fn callers(facts: &Facts, report: &mut Report) {
    let (namespace, installed) = (&facts.namespace, &facts.installed);
    let called: Vec<_> =
        installed.callers.iter().map(|caller| (caller, destination(facts, &caller.address))).collect();
    for original in installed.originals.iter().filter(|original| original.pods > 0) {
        let (name, pods) = (&original.name, original.pods);
        // If a program calls this runner, the finding of `call` below already names the runner.
        if called.iter().all(|(_, destination)| *destination != Destination::Other(name)) {
            report.warning(
                format!("Porch's own function runner still runs: Deployment {name}, {pods} replicas"),
                format!(
                    "stop it when nothing calls it any more: kubectl -n {namespace} scale deployment {name} --replicas=0"
                ),
            );
        }
    }
    if called.is_empty() {
        let address = format!("{}:{PORT}", expected_service(facts));
        report.warning(
            format!("nothing in namespace {namespace} calls a function runner"),
            format!(
                "set --function-runner={address} on porch-server; if it runs in another namespace, add \
                 .{namespace} to the name"
            ),
        );
    }
    for (caller, destination) in called.iter().filter(|(_, destination)| !is_reported(facts, destination)) {
        call(facts, caller, destination, report);
    }
    for deployment in &installed.without_evaluator {
        let set = set_variable(facts, deployment, RUNNER_VARIABLE);
        report.info(
            format!(
                "{deployment} calls no function runner: packages of v1alpha2 can only use Porch's built-in functions"
            ),
            format!("{set} (in Porch versions after 1.6, the variable is {EVALUATOR_VARIABLE})"),
        );
    }
    for server in installed.servers.iter().filter(|server| server.workload.pods > 0) {
        report.info(
            format!(
                "{} evaluates functions in its own pods, except functions whose FunctionConfig names an executable",
                server.workload.name
            ),
            "porch-fn porch-config generate prints FunctionConfigs that make porch-server call \
             --function-runner; with --warm-up-pod-cache=false it starts no pods for these functions; it \
             still evaluates functions without a FunctionConfig itself",
        );
    }
}

fn call(facts: &Facts, caller: &Caller, destination: &Destination<'_>, report: &mut Report) {
    let Caller { deployment, setting, address, .. } = caller;
    let (namespace, installed, service) = (&facts.namespace, &facts.installed, expected_service(facts));
    let set_address = if setting.starts_with('-') {
        format!("set {setting}={service}:{PORT} on Deployment {deployment}")
    } else {
        set_variable(facts, deployment, setting)
    };
    let calls = format!("{deployment} calls {address} ({setting})");
    let compared = |what: &str| format!("compare {what} with {service}.{namespace}:{PORT}");
    let original = |name: &str| installed.originals.iter().find(|original| original.name == name);
    let is_server = |name: &str| installed.servers.iter().any(|server| server.workload.name == name);
    let (level, where_to, fix) = match *destination {
        Destination::Ours => return report.ok(calls),
        Destination::Other(name) if is_server(name) => {
            (Level::Info, format!(", which is {name}'s own evaluator"), set_address)
        }
        Destination::Other(name) => match original(name) {
            Some(original) if evaluator_of(original).is_some() => {
                (Level::Warning, ", which is Porch's own function runner".to_owned(), set_address)
            }
            Some(_) => (
                Level::Info,
                ", which is Porch's own function runner and runs only executables".to_owned(),
                format!(
                    "{set_address}; when its old pods are gone: porch-fn porch-config generate | kubectl apply -f -"
                ),
            ),
            None => (Level::Warning, format!(", which leads to Deployment {name}"), set_address),
        },
        Destination::Nobody(name) => (
            Level::Warning,
            format!(", and Service {name} selects pods of no Deployment in this namespace"),
            set_address,
        ),
        Destination::NoSelector(name) => {
            (Level::Unknown, format!(", and Service {name} has no selector"), compared("its endpoints"))
        }
        Destination::NoPort(name) => {
            (Level::Problem, format!(", a port that Service {name} does not have"), set_address)
        }
        Destination::Outside => (
            Level::Warning,
            format!(", which is not a Service of namespace {namespace}"),
            format!("if it should call this installation: {set_address}"),
        ),
        Destination::Unknown => (Level::Unknown, String::new(), compared("the address")),
    };
    report.add(level, calls + &where_to, fix);
}

/// Returns whether the function [`services`] already reports the fault of this destination.
fn is_reported(facts: &Facts, destination: &Destination<'_>) -> bool {
    match destination {
        Destination::Nobody(name) => *name == expected_service(facts) || is_merged(facts, name),
        Destination::NoPort(name) => {
            behind(facts, name) == Destination::Ours && !has_port(&facts.services[*name], PORT)
        }
        _ => false,
    }
}

fn set_variable(facts: &Facts, deployment: &str, variable: &str) -> String {
    let (namespace, service) = (&facts.namespace, expected_service(facts));
    format!("kubectl -n {namespace} set env deployment/{deployment} {variable}={service}:{PORT}")
}
