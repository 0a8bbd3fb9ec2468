//! Flags that have to agree, and fit what Kubernetes gives.

use porch_fn_service::discovery::Target;
use porch_fn_service::flags::GoDuration;
use porch_fn_service::grpc::inflight_limit;

use super::super::destination::{Destination, destination};
use super::super::facts::Facts;
use super::super::finding::Finding;
use super::super::installation::Program;
use super::super::quantity::shown;
use crate::cluster::SHARDS;

/// What a program takes beside the messages it holds, in bytes.
const BESIDE: u64 = 64 * 1024 * 1024;

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let installed = &facts.installed;
    let mut findings = Vec::new();
    let router = installed.router.as_ref().and_then(|router| read(router, &mut findings));
    let runner = installed.runner.as_ref().and_then(|runner| read(runner, &mut findings));
    findings.extend(sizes(facts));
    if let (Some(program), Some(router)) = (&installed.router, router) {
        let held = inflight_limit(router.max_inflight_bytes, router.max_request_body_size);
        findings.extend(memory(program, held.ok()));
        findings.extend(grace(program, &router.drain_delay, &router.drain_timeout));
        findings.extend(callers_tls(facts, program, router.listen_tls_cert.is_some()));
        // An HPA moves the number, that of components/hpa up to three times what is told; near it will do. One is what
        // is told when nobody thought of it.
        let (told, there) = (router.router_count, usize::try_from(program.replicas).unwrap_or_default());
        let most = if told == 1 { 1 } else { told.saturating_mul(3) };
        if there > 0 && (there > most || told > there.saturating_mul(3)) {
            let text = format!("--router-count is {told}, and there are {there} routers");
            let fix = format!("--router-count={there} on Deployment {}", program.deployment);
            findings.push(Finding::warning("flags", text, fix));
        }
    }
    if let (Some(program), Some(runner)) = (&installed.runner, runner) {
        let held = inflight_limit(runner.max_inflight_bytes, runner.max_request_body_size);
        findings.extend(memory(program, held.ok()));
        findings.extend(grace(program, &runner.drain_delay, &runner.drain_timeout));
        if installed.router.is_none() {
            findings.extend(callers_tls(facts, program, runner.listen_tls_cert.is_some()));
        }
    }
    if let (Some(router), Some(runner)) = (router, runner) {
        let differing = differing(&facts.namespace, router, runner);
        if differing.is_empty() && findings.iter().all(|finding| finding.fix.is_empty()) {
            findings.push(Finding::ok("flags", "those of routers and runners agree"));
        }
        findings.extend(differing);
    }
    findings
}

/// The flags of a program that starts with them.
fn read<'a, F>(program: &'a Program<F>, findings: &mut Vec<Finding>) -> Option<&'a F> {
    match &program.flags {
        Ok(flags) => Some(flags),
        Err(error) => {
            let text = format!("Deployment {} does not start: {error}", program.deployment);
            findings.push(Finding::problem("flags", text, "correct its args"));
            None
        }
    }
}

/// The largest message has to be the same all the way.
fn sizes(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "message sizes";
    let installed = &facts.installed;
    let mut hops: Vec<(&str, u64)> =
        installed.callers.iter().map(|caller| (caller.deployment.as_str(), caller.max_message)).collect();
    // One that calls two addresses has one limit.
    hops.dedup();
    let callers = hops.len();
    let size = |size: usize| size as u64;
    if let Some(router) = &installed.router
        && let Ok(flags) = &router.flags
    {
        hops.push((&router.deployment, size(flags.max_request_body_size)));
    }
    if let Some(runner) = &installed.runner
        && let Ok(flags) = &runner.flags
    {
        hops.push((&runner.deployment, size(flags.max_request_body_size)));
    }
    let Some(&(_, largest)) = hops.iter().max_by_key(|(_, size)| *size) else { return Vec::new() };
    if hops.iter().all(|&(_, size)| size == largest) {
        return vec![Finding::ok(CHECK, format!("{} everywhere", shown(largest)))];
    }
    let all: Vec<_> = hops.iter().map(|(name, size)| format!("{name} {}", shown(*size))).collect();
    let fix = format!(
        "--max-request-body-size={largest} on all of them (Porch's controllers: \
             --packagerevisions.max-grpc-message-size; Porch v1.5: --function-runner-grpc-max-message-size)"
    );
    let text = format!("they differ: {}", all.join(", "));
    // Porch's own limit comes first: with a smaller one of its, no call fails that would not.
    let ours_are_largest = hops[callers..].iter().all(|&(_, size)| size == largest);
    vec![if ours_are_largest {
        Finding::warning(CHECK, text, fix)
    } else {
        Finding::problem(CHECK, text, fix)
    }]
}

/// Answers may take what is held to twice the limit.
fn memory<F>(program: &Program<F>, held: Option<usize>) -> Option<Finding> {
    let (limit, held) = (program.memory?, held? as u64);
    let needed = held.saturating_mul(2).saturating_add(BESIDE);
    (limit < needed).then(|| {
        let text = format!(
            "Deployment {} has a memory limit of {} and may hold {} of messages",
            program.deployment,
            shown(limit),
            shown(held.saturating_mul(2))
        );
        let fix = format!("a limit of {} or more, or a smaller --max-inflight-bytes", shown(needed));
        Finding::warning("memory", text, fix)
    })
}

/// SIGKILL must not come while calls are being finished.
fn grace<F>(program: &Program<F>, delay: &GoDuration, timeout: &GoDuration) -> Option<Finding> {
    let drain = std::time::Duration::from(*delay).saturating_add((*timeout).into());
    let grace = u64::try_from(program.grace).unwrap_or_default();
    (drain.as_secs() > grace).then(|| {
        let text = format!(
            "Deployment {} is killed after {grace}s, while it may take {delay} and {timeout} to finish its calls",
            program.deployment
        );
        let fix = format!("terminationGracePeriodSeconds: {}", drain.as_secs() + 25);
        Finding::warning("shutdown", text, fix)
    })
}

/// Porch cannot speak TLS. A mesh that does it in its place cannot be seen; a proxy has another address.
fn callers_tls<F>(facts: &Facts, program: &Program<F>, tls: bool) -> Option<Finding> {
    let mut callers = facts.installed.callers.iter();
    let caller = callers.find(|caller| tls && destination(facts, &caller.address) == Destination::Ours)?;
    let text = format!(
        "{} has --listen-tls-cert, and {} dials in plain text",
        program.deployment, caller.deployment
    );
    let fix = "unless a mesh speaks TLS for Porch: no --listen-tls-*, or a proxy that Porch calls instead";
    Some(Finding::warning("flags", text, fix))
}

fn differing(
    namespace: &str,
    router: &porch_fn_router::Flags,
    runner: &porch_fn_runner::Flags,
) -> Vec<Finding> {
    const CHECK: &str = "flags";
    let mut findings = Vec::new();
    if router.default_image_prefix != runner.default_image_prefix {
        let text = format!(
            "--default-image-prefix differs: routers {:?}, runners {:?}",
            router.default_image_prefix, runner.default_image_prefix
        );
        findings.push(Finding::problem(CHECK, text, "the same on both, as Porch has it"));
    }
    if sorted(&router.allowed_images) != sorted(&runner.allowed_images) {
        let text = "--allowed-images differs between routers and runners";
        findings.push(Finding::warning(CHECK, text, "the same on both: what either refuses is refused"));
    }
    if router.tls_cert.is_some() != runner.tls_cert.is_some() {
        let text = "only one side has --tls-cert: routers and runners cannot talk to each other";
        findings.push(Finding::problem(
            CHECK,
            text,
            "--tls-cert, --tls-key, --tls-client-ca on both, or on neither",
        ));
    }
    if runner.listen_tls_cert.is_some() {
        let text = "the runners have --listen-tls-cert, which is for callers other than routers";
        findings.push(Finding::problem(CHECK, text, "--tls-cert, --tls-key, --tls-client-ca instead"));
    }
    match Target::parse(&runner.peers, 9445) {
        _ if runner.peers.is_empty() => {
            let text = "the runners have no --peers: each takes itself for the owner of every function";
            let fix = format!("--peers={}", router.runners);
            findings.push(Finding::warning(CHECK, text, fix));
        }
        Ok(peers) if place(namespace, &peers) != place(namespace, &router.runners) => {
            let text = format!("--runners is {}, --peers is {}: another ring", router.runners, runner.peers);
            findings.push(Finding::warning(CHECK, text, "the same target on both"));
        }
        // One that cannot be read keeps the runner from starting; its flags say so.
        _ => (),
    }
    findings
}

fn sorted(patterns: &[String]) -> Vec<&String> {
    let mut patterns: Vec<_> = patterns.iter().collect();
    patterns.sort();
    patterns.dedup();
    patterns
}

/// Whether routers or runners ask DNS for the Service of the runners: only there its kind of address counts.
pub(super) fn by_dns(facts: &Facts) -> bool {
    let Facts { namespace, installed, .. } = facts;
    let runners =
        installed.router.as_ref().and_then(|router| Some(router.flags.as_ref().ok()?.runners.clone()));
    let peers = installed.runner.as_ref().and_then(|runner| runner.flags.as_ref().ok());
    let peers = peers.and_then(|flags| Target::parse(&flags.peers, 9445).ok());
    [runners, peers].iter().flatten().any(|target| {
        matches!(target, Target::Dns { .. })
            && place(namespace, target).starts_with(&format!("{SHARDS}.{namespace}:"))
    })
}

/// What a target leads to, however it is looked up by pods of `namespace`.
fn place(namespace: &str, target: &Target) -> String {
    match target {
        Target::Dns { name, .. } => {
            let mut labels = name.host.trim_end_matches('.').split('.');
            let (service, of) = (labels.next().unwrap_or_default(), labels.next().unwrap_or(namespace));
            format!("{service}.{of}:{}", name.port)
        }
        Target::Kubernetes { namespace, service, port } => format!("{service}.{namespace}:{port}"),
        Target::Static(_) => target.to_string(),
    }
}
