//! Checks of flags: they must agree with each other and with the Deployments.

use std::collections::BTreeSet;
use std::time::Duration;

use porch_fn_discovery::Target;
use porch_fn_flags::ServerFlags;
use porch_fn_grpc::inflight_limit;

use super::super::destination::{Destination, destination, ours, place};
use super::super::facts::Facts;
use super::super::finding::{Level, Report};
use super::super::installation::Server;

/// Memory that a program needs in addition to its messages, in bytes.
const BASE_MEMORY: u64 = 64 * 1024 * 1024;

/// Returns the routers, then the runners, with the flags that both have. Skips a Deployment with
/// invalid flags.
fn servers(facts: &Facts) -> impl Iterator<Item = (&Server, &ServerFlags)> {
    let servers = facts.installed.router.iter().chain(&facts.installed.runner);
    servers.filter_map(|server| Some((server, server.flags.as_ref().ok()?)))
}

/// Checks that the maximum message size is the same on every hop.
pub(super) fn sizes(facts: &Facts, report: &mut Report) {
    let callers = facts.installed.callers.iter();
    let mut hops: Vec<_> = callers.map(|caller| (caller.deployment.as_str(), caller.max_message)).collect();
    // A Deployment that calls two addresses is listed twice, with the same limit.
    hops.dedup();
    let callers = hops.len();
    hops.extend(
        servers(facts)
            .map(|(server, flags)| (server.workload.name.as_str(), flags.max_request_body_size as u64)),
    );
    let Some(largest) = hops.iter().map(|(_, size)| *size).max() else { return };
    if hops.iter().all(|&(_, size)| size == largest) {
        return report.ok(format!("{} everywhere", shown(largest)));
    }
    // Porch applies its own limit before a message reaches our programs. So a larger limit of ours
    // has no effect, and is only a warning.
    let ours_are_largest = hops[callers..].iter().all(|&(_, size)| size == largest);
    let all: Vec<_> = hops.iter().map(|(name, size)| format!("{name} {}", shown(*size))).collect();
    report.add(
        if ours_are_largest { Level::Warning } else { Level::Problem },
        format!("they differ: {}", all.join(", ")),
        format!(
            "set --max-request-body-size={largest} on all of them (Porch's controllers: \
             --packagerevisions.max-grpc-message-size; Porch v1.5: --function-runner-grpc-max-message-size)"
        ),
    );
}

/// Formats a size: `6 MiB`, or bytes if it is not a whole number of MiB.
fn shown(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    if bytes >= MIB && bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else {
        format!("{bytes} bytes")
    }
}

/// Checks that the memory limit is large enough for --max-inflight-bytes of requests, and for the
/// same number of bytes of responses.
pub(super) fn memory(facts: &Facts, report: &mut Report) {
    for (Server { workload, memory, .. }, flags) in servers(facts) {
        let inflight = inflight_limit(flags.max_inflight_bytes, flags.max_request_body_size);
        let (&Some(limit), Ok(inflight)) = (memory, inflight) else { continue };
        let messages = (inflight as u64).saturating_mul(2);
        let needed = messages.saturating_add(BASE_MEMORY);
        if limit < needed {
            let (name, limit, held) = (&workload.name, shown(limit), shown(messages));
            report.warning(
                format!("Deployment {name} has a memory limit of {limit}, but may hold {held} of messages"),
                format!("raise the limit to {} or more, or lower --max-inflight-bytes", shown(needed)),
            );
        }
    }
}

/// Checks that SIGKILL does not interrupt calls while a program drains.
pub(super) fn shutdown(facts: &Facts, report: &mut Report) {
    for (server, flags) in servers(facts) {
        let (name, grace) = (&server.workload.name, server.workload.grace);
        let (delay, timeout) = (flags.drain_delay, flags.drain_timeout);
        let drain = Duration::from(delay).saturating_add(timeout.into()).as_secs();
        if drain > u64::try_from(grace).unwrap_or_default() {
            report.warning(
                format!(
                    "pods of Deployment {name} are killed after {grace}s, but may need {delay} (--drain-delay) \
                     and {timeout} (--drain-timeout) to finish their calls"
                ),
                format!("set terminationGracePeriodSeconds: {}", drain + 25),
            );
        }
    }
}

/// Checks that programs start with their flags, and that the flags agree.
pub(super) fn flags(facts: &Facts, report: &mut Report) {
    for server in facts.installed.router.iter().chain(&facts.installed.runner) {
        if let Err(error) = &server.flags {
            let text = format!("Deployment {} does not start: {error}", server.workload.name);
            report.problem(text, "correct its args");
        }
    }
    callers_tls(facts, report);
    router_count(facts, report);
    differing(facts, report);
}

/// Warns if Porch calls a program of ours that expects TLS, because Porch cannot use TLS. Doctor
/// cannot see a service mesh that adds TLS for Porch, so it warns in that case too. It does not
/// warn if Porch calls a proxy.
fn callers_tls(facts: &Facts, report: &mut Report) {
    // Porch calls the routers, or the only runner if there are no routers.
    let mut servers = servers(facts).filter(|(_, flags)| flags.listen_tls_cert.is_some());
    let called = servers.find(|(server, _)| ours(facts) == Some(&server.workload));
    let mut callers = facts.installed.callers.iter();
    let caller = callers.find(|caller| destination(facts, &caller.address) == Destination::Ours);
    if let (Some((called, _)), Some(caller)) = (called, caller) {
        let (name, caller) = (&called.workload.name, &caller.deployment);
        report.warning(
            format!("{name} has --listen-tls-cert, but {caller} connects in plain text"),
            "remove --listen-tls-*, or let Porch call a proxy, unless a service mesh adds TLS for Porch",
        );
    }
}

/// Compares --router-count with the replicas. The two may differ by a factor of three, because
/// the HPA of components/hpa allows up to three times the flag. With the default of 1, only one
/// router is accepted.
fn router_count(facts: &Facts, report: &mut Report) {
    let (Some(router), Some(flags)) = (&facts.installed.router, &facts.installed.router_flags) else {
        return;
    };
    let (flag, name) = (flags.router_count, &router.workload.name);
    let there = usize::try_from(router.workload.replicas).unwrap_or_default();
    let most = if flag == 1 { 1 } else { flag.saturating_mul(3) };
    if there > 0 && (there > most || flag > there.saturating_mul(3)) {
        let text = format!("--router-count is {flag}, but there are {there} routers");
        report.warning(text, format!("set --router-count={there} on Deployment {name}"));
    }
}

/// Compares the flags of routers and runners.
fn differing(facts: &Facts, report: &mut Report) {
    let (Some(router), Some(runner)) = (&facts.installed.router_flags, &facts.installed.runner_flags) else {
        return;
    };
    let namespace = &facts.namespace;
    let (of_routers, of_runners) = (&router.server.default_image_prefix, &runner.server.default_image_prefix);
    if of_routers != of_runners {
        report.problem(
            format!("--default-image-prefix differs: routers {of_routers:?}, runners {of_runners:?}"),
            "set Porch's value on routers and runners",
        );
    }
    let patterns = |patterns: &[String]| patterns.iter().cloned().collect::<BTreeSet<_>>();
    if patterns(&router.server.allowed_images) != patterns(&runner.server.allowed_images) {
        report.warning(
            "--allowed-images differs between routers and runners",
            "set the same on both: a call must pass both",
        );
    }
    if router.server.tls_cert.is_some() != runner.server.tls_cert.is_some() {
        report.problem(
            "only one side has --tls-cert: routers and runners cannot connect to each other",
            "set --tls-cert, --tls-key and --tls-client-ca on both, or on neither",
        );
    }
    if runner.server.listen_tls_cert.is_some() {
        report.problem(
            "the runners have --listen-tls-cert, which is for callers other than routers",
            "set --tls-cert, --tls-key and --tls-client-ca on the runners instead",
        );
    }
    match Target::parse(&runner.peers, 9445) {
        _ if runner.peers.is_empty() => report.warning(
            "the runners have no --peers: each acts as the owner of every function",
            format!("set --peers={} on the runners", router.runners),
        ),
        Ok(peers) if place(namespace, &peers) != place(namespace, &router.runners) => report.warning(
            format!("--runners is {}, but --peers is {}: the rings differ", router.runners, runner.peers),
            "set the same target on both",
        ),
        // A runner does not start with an invalid --peers, which `flags` has already reported.
        _ => {}
    }
    if report.is_empty() && router.server.max_request_body_size == runner.server.max_request_body_size {
        report.ok("the flags of routers and runners agree");
    }
}
