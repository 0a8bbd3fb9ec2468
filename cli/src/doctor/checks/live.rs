//! What the programs say themselves: whom they reach, and whether they agree.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::super::facts::{Asked, Facts, Silence};
use super::super::finding::{Finding, Level};
use super::super::gather::MAX_ASKED;
use super::super::metrics::{label, value, values};

/// What runners call the template of function pods, wherever it is from.
const TEMPLATE: &str = "function-pod-template";

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = reached("routers", &facts.routers);
    findings.extend(reached("runners", &facts.runners));
    findings.extend(discovery(facts));
    findings.extend(reachability(facts));
    findings.extend(ring(facts));
    findings.extend(executables(facts));
    findings.extend(versions(facts));
    findings.extend(configuration(facts));
    findings
}

/// Whom the doctor itself did not reach, by what was in the way.
fn reached<T>(check: &'static str, asked: &[Asked<T>]) -> Vec<Finding> {
    let mut silent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut beyond = 0;
    for one in asked {
        match &one.answer {
            Err(Silence::Failed(error)) if one.ready => silent.entry(error).or_default().push(&one.pod),
            Err(Silence::NotAsked) => beyond += 1,
            _ => (),
        }
    }
    let finding = |(error, pods): (&str, Vec<&str>)| {
        let text = match pods.as_slice() {
            [pod] => format!("pod {pod} is ready, and could not be asked how it is: {error}"),
            pods => format!("{} pods are ready, and could not be asked how they are: {error}", pods.len()),
        };
        Finding::unknown(
            check,
            text,
            "the rights to get and create pods/portforward; --admin-port; the pods' logs",
        )
    };
    let mut findings: Vec<_> = silent.into_iter().map(finding).collect();
    if beyond > 0 {
        let all = asked.len();
        let text = format!(
            "{beyond} of {all} pods were not asked how they are: only the first {MAX_ASKED} by name are"
        );
        findings.push(Finding::unknown(check, text, ""));
    }
    findings
}

/// Whether each router has found exactly the runners that are ready.
fn discovery(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "discovery";
    let ready: Vec<_> = facts.runners.iter().filter(|runner| runner.ready).collect();
    let mut findings = Vec::new();
    let mut right = 0;
    for router in &facts.routers {
        let Ok(answer) = &router.answer else { continue };
        if let Some(error) = &answer.status.discovery_error {
            let text = format!("router {} cannot look up its runners: {error}", router.pod);
            findings.push(Finding::problem(
                CHECK,
                text,
                "its --runners; the Service's name and the cluster's DNS",
            ));
            continue;
        }
        let hosts = answer.status.shards.iter().map(|shard| host(&shard.info.address).parse::<IpAddr>());
        // A static target may have names, which do not say whose they are.
        let Ok(known) = hosts.collect::<Result<BTreeSet<_>, _>>() else { continue };
        // Of a pod's addresses a target has those of its own families.
        let unknown = ready.iter().filter(|runner| runner.ips.iter().all(|ip| !known.contains(ip)));
        let unknown: Vec<_> = unknown.map(|runner| runner.pod.as_str()).collect();
        let is_runner = |ip: &IpAddr| ready.iter().any(|runner| runner.ips.contains(ip));
        let text = match unknown.as_slice() {
            [] if known.iter().all(is_runner) => {
                right += 1;
                continue;
            }
            [] => {
                format!("router {} knows {} runners, and {} are ready", router.pod, known.len(), ready.len())
            }
            _ => format!("router {} does not know of {}", router.pod, unknown.join(", ")),
        };
        let fix = "its --runners, and the endpoints of the Service in it";
        findings.push(Finding::warning(CHECK, text, fix));
    }
    if findings.is_empty() && right > 0 {
        let text = format!("{right} routers have found the {} runners that are ready", ready.len());
        findings.push(Finding::ok(CHECK, text));
    }
    findings
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host.trim_matches(['[', ']']))
}

/// What each router says of each runner.
fn reachability(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "reachability";
    let mut findings = Vec::new();
    let mut well = 0;
    for router in &facts.routers {
        let Ok(answer) = &router.answer else { continue };
        for shard in answer.status.shards.iter().map(|shard| &shard.info) {
            let text = || format!("to router {} runner {} is {}", router.pod, shard.address, shard.state);
            match shard.state.as_str() {
                "well" => well += 1,
                "unreachable" => {
                    let fix = "that runner's log; NetworkPolicies between them on port 9445; TLS flags";
                    findings.push(Finding::problem(CHECK, text(), fix));
                }
                "passed over" => {
                    let fix =
                        "its calls fail or hang: the status page's recent failures, and that runner's log";
                    findings.push(Finding::problem(CHECK, text(), fix));
                }
                _ => findings.push(Finding::warning(
                    CHECK,
                    text(),
                    "this passes by itself; look again in a minute",
                )),
            }
        }
    }
    if findings.is_empty() && well > 0 {
        findings.push(Finding::ok(CHECK, "every router reaches every runner"));
    }
    findings
}

/// Whether all see the same ring.
fn ring(facts: &Facts) -> Option<Finding> {
    let routers = facts.routers.iter().filter_map(|one| {
        Some((one.pod.as_str(), value(&one.answer.as_ref().ok()?.metrics, "porch_fn_router_ring_hash")?))
    });
    let runners = facts.runners.iter().filter_map(|one| {
        Some((one.pod.as_str(), value(&one.answer.as_ref().ok()?.metrics, "porch_fn_runner_ring_hash")?))
    });
    // A runner without --peers has none.
    let hashes: Vec<_> = routers.chain(runners).filter(|(_, hash)| *hash != "0").collect();
    disagreement(
        "ring",
        &hashes,
        "routers and runners see different runners",
        "--runners and --peers differ, \
        or a resolver answers of old",
    )
}

/// Exec functions must be the same on every runner.
fn executables(facts: &Facts) -> Option<Finding> {
    let hashes: Vec<_> = facts
        .runners
        .iter()
        .filter_map(|one| {
            Some((
                one.pod.as_str(),
                value(&one.answer.as_ref().ok()?.metrics, "porch_fn_runner_exec_config_hash")?,
            ))
        })
        .collect();
    let fix = "the same --config and --functions, and --disable-runtimes, on every runner; FunctionConfigs that name \
               executables which only some images have";
    disagreement("executables", &hashes, "the exec runtimes are configured differently", fix)
}

/// `Ok` when all have the same value, a problem that names the groups otherwise; nothing for fewer than two.
fn disagreement(check: &'static str, of: &[(&str, &str)], differ: &str, fix: &str) -> Option<Finding> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (pod, hash) in of {
        groups.entry(hash).or_default().push(pod);
    }
    match groups.len() {
        0 => None,
        1 => (of.len() > 1).then(|| Finding::ok(check, "the same everywhere")),
        _ => {
            let groups: Vec<_> = groups.values().map(|pods| pods.join(" ")).collect();
            Some(Finding::problem(check, format!("{differ}: {}", groups.join(" | ")), fix))
        }
    }
}

/// Neighbouring versions work together; more than one at a time is an upgrade.
fn versions(facts: &Facts) -> Option<Finding> {
    let answers = || facts.routers.iter().filter_map(|router| router.answer.as_ref().ok());
    let routers = answers().map(|answer| answer.status.version.as_str());
    let runners = answers().flat_map(|answer| &answer.status.shards).map(|shard| shard.version.as_str());
    let versions: BTreeSet<_> = routers.chain(runners).filter(|version| !version.is_empty()).collect();
    let all: Vec<_> = versions.into_iter().collect();
    match all.as_slice() {
        [] => None,
        [version] => Some(Finding::ok("versions", format!("{version} everywhere"))),
        _ => {
            let text = format!("several at once: {}", all.join(", "));
            Some(Finding::warning("versions", text, "an upgrade that has not ended: kubectl rollout status"))
        }
    }
}

/// Whether a runner cannot use the template of function pods.
pub(super) fn refuses_template(facts: &Facts) -> bool {
    let mut answers = facts.runners.iter().filter_map(|runner| runner.answer.as_ref().ok());
    answers.any(|answer| {
        values(&answer.metrics, "porch_fn_runner_config_valid")
            .any(|(labels, valid)| valid == "0" && label(labels, "source") == Some(TEMPLATE))
    })
}

/// What runners cannot use of their configuration.
fn configuration(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "configuration";
    let mut faults: BTreeMap<(Level, String), usize> = BTreeMap::new();
    let mut asked = 0;
    let flags = facts.installed.runner.as_ref().and_then(|runner| runner.flags.as_ref().ok());
    let of_objects = flags.is_some_and(|flags| flags.function_pod_template.is_empty());
    for runner in &facts.runners {
        let Ok(answer) = &runner.answer else { continue };
        if answer.metrics.is_empty() {
            continue;
        }
        asked += 1;
        for (labels, valid) in values(&answer.metrics, "porch_fn_runner_config_valid") {
            let source = label(labels, "source").unwrap_or_default();
            // Of FunctionConfigs the number of those with faults is told below.
            if valid == "0" && source != "functionconfigs" {
                let fault = match source {
                    // Without the flag it stands for the objects that a newer Porch has.
                    TEMPLATE if of_objects => {
                        "base-pod-template or base-service-template cannot be used".to_owned()
                    }
                    _ => format!("--{source} cannot be used"),
                };
                *faults.entry((Level::Problem, fault)).or_default() += 1;
            }
        }
        match value(&answer.metrics, "porch_fn_runner_function_config_problems") {
            None | Some("0") => (),
            Some(count) => {
                let fault = format!("{count} FunctionConfigs have faults");
                *faults.entry((Level::Warning, fault)).or_default() += 1;
            }
        }
        let metric = |name| value(&answer.metrics, name);
        let has_peers = metric("porch_fn_runner_peers").is_some_and(|count| count != "0");
        if has_peers && metric("porch_fn_runner_listed") == Some("0") {
            let fault = "not found among its --peers: it owns nothing".to_owned();
            *faults.entry((Level::Problem, fault)).or_default() += 1;
        }
    }
    if faults.is_empty() {
        return if asked > 0 { vec![Finding::ok(CHECK, "valid on every runner")] } else { Vec::new() };
    }
    let finding = |((level, fault), count): ((Level, String), usize)| {
        let fix = "the runners' logs say what is wrong; porch-fn config IMAGE -n NAMESPACE shows what holds"
            .to_owned();
        Finding { check: CHECK, level, text: format!("on {count} of {asked} runners: {fault}"), fix }
    };
    faults.into_iter().map(finding).collect()
}
