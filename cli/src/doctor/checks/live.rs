//! What the programs say themselves: the runners that routers reach, and whether all agree.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::super::facts::{Asked, Facts, MAX_ASKED, Silence, answers};
use super::super::finding::{Finding, Level};
use super::super::metrics::{label, value, values};

/// The metric of whether a runner can use a source of its configuration.
const VALID: &str = "porch_fn_runner_config_valid";
/// What runners call the template of function pods, wherever it is from.
const TEMPLATE: &str = "function-pod-template";

/// The pods that doctor itself did not reach, by what was in the way.
pub(super) fn unreached<T>(asked: &[Asked<T>]) -> Vec<Finding> {
    let mut silent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for one in asked.iter().filter(|one| one.ready) {
        if let Err(Silence::Failed(error)) = &one.answer {
            silent.entry(error).or_default().push(&one.pod);
        }
    }
    let finding = |(error, pods): (&str, Vec<&str>)| {
        let text = match pods.as_slice() {
            [pod] => format!("pod {pod} is ready, and could not be asked how it is: {error}"),
            pods => format!("{} pods are ready, and could not be asked how they are: {error}", pods.len()),
        };
        Finding::unknown(text, "the rights to get and create pods/portforward; --admin-port; the pods' logs")
    };
    let mut findings: Vec<_> = silent.into_iter().map(finding).collect();
    let beyond = asked.iter().filter(|one| matches!(one.answer, Err(Silence::NotAsked))).count();
    if beyond > 0 {
        let all = asked.len();
        let text = format!(
            "{beyond} of {all} pods were not asked how they are: only the first {MAX_ASKED} by name are"
        );
        findings.push(Finding::unknown(text, ""));
    }
    findings
}

/// Whether each router has found exactly the runners that are ready.
pub(super) fn discovery(facts: &Facts) -> Vec<Finding> {
    let ready: Vec<_> = facts.runners.iter().filter(|runner| runner.ready).collect();
    let mut findings = Vec::new();
    let mut right = 0;
    for (router, answer) in answers(&facts.routers) {
        if let Some(error) = &answer.page.discovery_error {
            let text = format!("router {router} cannot look up its runners: {error}");
            let fix = "its --runners; the Service's name and the cluster's DNS";
            findings.push(Finding::problem(text, fix));
            continue;
        }
        let hosts = answer.page.shards.iter().map(|shard| host(&shard.info.address).parse::<IpAddr>());
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
            [] => format!("router {router} knows {} runners, and {} are ready", known.len(), ready.len()),
            _ => format!("router {router} does not know of {}", unknown.join(", ")),
        };
        findings.push(Finding::warning(text, "its --runners, and the endpoints of the Service in it"));
    }
    if findings.is_empty() && right > 0 {
        let text = format!("{right} routers have found the {} runners that are ready", ready.len());
        findings.push(Finding::ok(text));
    }
    findings
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host.trim_matches(['[', ']']))
}

/// What each router says of each runner.
pub(super) fn reachability(facts: &Facts) -> Vec<Finding> {
    let pairs = answers(&facts.routers)
        .flat_map(|(router, answer)| answer.page.shards.iter().map(move |shard| (router, &shard.info)));
    let pairs: Vec<_> = pairs.collect();
    let unhealthy = pairs.iter().filter(|(_, shard)| shard.state != "healthy");
    let findings: Vec<_> = unhealthy
        .map(|(router, shard)| {
            let text =
                format!("to router {router} runner {} is {}", shard.address, shard.state.replace('_', " "));
            match shard.state.as_str() {
                "unreachable" => Finding::problem(
                    text,
                    "that runner's log; NetworkPolicies between them on port 9445; TLS flags",
                ),
                "ejected" => Finding::problem(
                    text,
                    "its calls fail or hang: the status page's recent failures, and that runner's log",
                ),
                _ => Finding::warning(text, "this passes by itself; look again in a minute"),
            }
        })
        .collect();
    if findings.is_empty() && !pairs.is_empty() {
        return vec![Finding::ok("every router reaches every runner")];
    }
    findings
}

/// Whether all see the same ring.
pub(super) fn ring(facts: &Facts) -> Vec<Finding> {
    let routers = metric(&facts.routers, "porch_fn_router_ring_hash");
    let hashes = routers.chain(metric(&facts.runners, "porch_fn_runner_ring_hash"));
    // A runner without --peers has none.
    let hashes = hashes.filter(|(_, hash)| *hash != "0").collect();
    let fix = "--runners and --peers differ, or a resolver answers of old";
    same(hashes, "routers and runners see different runners", fix)
}

/// Exec functions must be the same on every runner.
pub(super) fn executables(facts: &Facts) -> Vec<Finding> {
    let hashes = metric(&facts.runners, "porch_fn_runner_exec_config_hash").collect();
    let fix = "the same --config and --functions, and --disable-runtimes, on every runner; FunctionConfigs that name \
               executables which only some images have";
    same(hashes, "the exec runtimes are configured differently", fix)
}

/// A metric without labels, by pod.
fn metric<'a, T>(asked: &'a [Asked<T>], name: &'static str) -> impl Iterator<Item = (&'a str, &'a str)> {
    answers(asked).filter_map(move |(pod, answer)| Some((pod, value(&answer.metrics, name)?)))
}

/// `Ok` when all pods have the same value, a problem that names the groups otherwise; nothing for fewer than two.
fn same(values: Vec<(&str, &str)>, differ: &str, fix: &str) -> Vec<Finding> {
    let count = values.len();
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (pod, value) in values {
        groups.entry(value).or_default().push(pod);
    }
    if groups.len() > 1 {
        let groups: Vec<_> = groups.values().map(|pods| pods.join(" ")).collect();
        return vec![Finding::problem(format!("{differ}: {}", groups.join(" | ")), fix)];
    }
    if count > 1 { vec![Finding::ok("the same everywhere")] } else { vec![] }
}

/// Neighbouring versions work together; more than one at a time is an upgrade.
pub(super) fn versions(facts: &Facts) -> Vec<Finding> {
    let pages = || answers(&facts.routers).map(|(_, answer)| &answer.page);
    let runners = pages().flat_map(|page| &page.shards).map(|shard| shard.version.as_str());
    let versions = pages().map(|page| page.version.as_str()).chain(runners);
    let versions: BTreeSet<_> = versions.filter(|version| !version.is_empty()).collect();
    let versions: Vec<_> = versions.into_iter().collect();
    match versions.as_slice() {
        [] => vec![],
        [version] => vec![Finding::ok(format!("{version} everywhere"))],
        _ => {
            let text = format!("several at once: {}", versions.join(", "));
            vec![Finding::warning(text, "an upgrade that has not ended: kubectl rollout status")]
        }
    }
}

/// The sources of its configuration that a runner cannot use.
fn invalid(metrics: &str) -> impl Iterator<Item = &str> {
    let invalid = values(metrics, VALID).filter(|(_, valid)| *valid == "0");
    invalid.map(|(labels, _)| label(labels, "source").unwrap_or_default())
}

/// Whether a runner cannot use the template of function pods.
pub(super) fn refuses_template(facts: &Facts) -> bool {
    answers(&facts.runners).any(|(_, answer)| invalid(&answer.metrics).any(|source| source == TEMPLATE))
}

/// What runners cannot use of their configuration.
pub(super) fn configuration(facts: &Facts) -> Vec<Finding> {
    let of_objects = facts.runner_flags().is_some_and(|flags| flags.function_pod_template.is_empty());
    let fault = |source: &str| match source {
        // Without the flag it stands for the objects that a newer Porch has.
        TEMPLATE if of_objects => "base-pod-template or base-service-template cannot be used".to_owned(),
        _ => format!("--{source} cannot be used"),
    };
    let pages = answers(&facts.runners).map(|(_, answer)| answer.metrics.as_str());
    let pages: Vec<_> = pages.filter(|metrics| !metrics.is_empty()).collect();
    let mut faults: BTreeMap<(Level, String), usize> = BTreeMap::new();
    for metrics in &pages {
        // The number of FunctionConfigs with faults is a metric of its own.
        let invalid = invalid(metrics).filter(|source| *source != "functionconfigs");
        let mut found: Vec<_> = invalid.map(|source| (Level::Problem, fault(source))).collect();
        let count = |name| value(metrics, name).filter(|count| *count != "0");
        if let Some(count) = count("porch_fn_runner_function_config_problems") {
            found.push((Level::Warning, format!("{count} FunctionConfigs have faults")));
        }
        let is_listed = value(metrics, "porch_fn_runner_listed") != Some("0");
        if count("porch_fn_runner_peers").is_some() && !is_listed {
            found.push((Level::Problem, "not found among its --peers: it owns nothing".to_owned()));
        }
        for fault in found {
            *faults.entry(fault).or_default() += 1;
        }
    }
    if faults.is_empty() && !pages.is_empty() {
        return vec![Finding::ok("valid on every runner")];
    }
    let finding = |((level, fault), count): ((Level, String), usize)| {
        let fix = "the runners' logs say what is wrong; porch-fn config IMAGE -n NAMESPACE shows what holds";
        Finding::new(level, format!("on {count} of {} runners: {fault}", pages.len()), fix)
    };
    faults.into_iter().map(finding).collect()
}
