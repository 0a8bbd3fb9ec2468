//! Checks of the programs' own answers: which runners the routers reach, and whether all programs
//! agree.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::super::facts::{Asked, Facts, MAX_ASKED, answers};
use super::super::finding::{Level, Report};

/// Metric that is 0 if a runner cannot use a source of its configuration.
const VALID: &str = "porch_fn_runner_config_valid";
/// The `source` label of [`VALID`] for the function pod template, from a ConfigMap or from Porch's
/// objects.
const TEMPLATE: &str = "function-pod-template";

/// Reports the pods that doctor could not query, grouped by error.
pub(super) fn unreached<T>(asked: &[Asked<T>], report: &mut Report) {
    let mut failed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for one in asked.iter().take(MAX_ASKED).filter(|one| one.ready) {
        if let Err(error) = &one.answer {
            failed.entry(error).or_default().push(&one.pod);
        }
    }
    for (error, pods) in failed {
        let text = format!("doctor cannot query these ready pods: {}: {error}", pods.join(", "));
        report.unknown(text, "check your rights on pods/portforward, --admin-port, and the pods' logs");
    }
    let (all, beyond) = (asked.len(), asked.len().saturating_sub(MAX_ASKED));
    if beyond > 0 {
        report.unknown(format!("{beyond} of {all} pods were not queried: the limit is {MAX_ASKED}"), "");
    }
}

/// Checks whether each router has found exactly the ready runners.
pub(super) fn discovery(facts: &Facts, report: &mut Report) {
    let ready: Vec<_> = facts.runners.iter().filter(|runner| runner.ready).collect();
    let mut right = 0;
    for (router, answer) in answers(&facts.routers) {
        if let Some(error) = &answer.page.discovery_error {
            let text = format!("router {router} cannot look up its runners: {error}");
            report.problem(text, "check its --runners, the Service's name and the cluster's DNS");
            continue;
        }
        let addresses = answer.page.shards.iter().map(|shard| shard.info.address.parse::<SocketAddr>());
        let hosts = addresses.map(|address| Some(address.ok()?.ip()));
        // A static target may contain host names, which cannot be matched to pods.
        let Some(known) = hosts.collect::<Option<BTreeSet<_>>>() else { continue };
        // A target may list only one IP family, so one matching address of a pod is enough.
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
        report.warning(text, "check its --runners, and the endpoints of that Service");
    }
    if report.is_empty() && right > 0 {
        report.ok(format!("{right} routers have found the {} runners that are ready", ready.len()));
    }
}

/// Reports the state of each runner in each router.
pub(super) fn reachability(facts: &Facts, report: &mut Report) {
    let mut pairs = 0;
    for (router, answer) in answers(&facts.routers) {
        for shard in answer.page.shards.iter().map(|shard| &shard.info) {
            pairs += 1;
            let text =
                format!("for router {router}, runner {} is {}", shard.address, shard.state.replace('_', " "));
            match shard.state.as_str() {
                "healthy" => {}
                "unreachable" => report
                    .problem(text, "check that runner's log, NetworkPolicies for port 9445, and the TLS flags"),
                "ejected" => report.problem(
                    text,
                    "its calls fail or hang: check the router's status page (recent failures) and that runner's log",
                ),
                _ => report.warning(text, "wait: this state is temporary; run doctor again in a minute"),
            }
        }
    }
    if report.is_empty() && pairs > 0 {
        report.ok("every router reaches every runner");
    }
}

/// Checks whether all programs see the same ring.
pub(super) fn ring(facts: &Facts, report: &mut Report) {
    let routers = metric(&facts.routers, "porch_fn_router_ring_hash");
    let hashes = routers.chain(metric(&facts.runners, "porch_fn_runner_ring_hash"));
    // A runner without --peers has no ring and reports 0.
    let hashes = hashes.filter(|(_, hash)| *hash != "0");
    let fix = "compare --runners and --peers; check for a DNS resolver with stale answers";
    same(hashes, "routers and runners see different runners", fix, report);
}

/// Checks that the exec functions are the same on every runner.
pub(super) fn executables(facts: &Facts, report: &mut Report) {
    let hashes = metric(&facts.runners, "porch_fn_runner_exec_config_hash");
    let fix = "set the same --config, --functions and --disable-runtimes on every runner; check for FunctionConfigs \
               with executables that only some of the runners' images have";
    same(hashes, "the exec runtimes are configured differently", fix, report);
}

/// Returns the value of a metric without labels for each pod.
fn metric<'a, T>(asked: &'a [Asked<T>], name: &'static str) -> impl Iterator<Item = (&'a str, &'a str)> {
    answers(asked).filter_map(move |(pod, answer)| Some((pod, value(&answer.metrics, name)?)))
}

/// Reports `ok` if all pods have the same value. Otherwise reports a problem, with the pods grouped
/// by value. Reports nothing for fewer than two pods.
fn same<'a>(values: impl Iterator<Item = (&'a str, &'a str)>, differ: &str, fix: &str, report: &mut Report) {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (pod, value) in values {
        groups.entry(value).or_default().push(pod);
    }
    let groups: Vec<_> = groups.into_values().collect();
    match groups.as_slice() {
        [] => {}
        [pods] if pods.len() < 2 => {}
        [_] => report.ok("the same everywhere"),
        groups => {
            let groups: Vec<_> = groups.iter().map(|pods| pods.join(" ")).collect();
            report.problem(format!("{differ}: {}", groups.join(" | ")), fix);
        }
    }
}

/// Warns if programs have different versions, for example during an upgrade. This is only a
/// warning, because adjacent versions work together.
pub(super) fn versions(facts: &Facts, report: &mut Report) {
    let pages = || answers(&facts.routers).map(|(_, answer)| &answer.page);
    let runners = pages().flat_map(|page| &page.shards).map(|shard| shard.version.as_str());
    let versions = pages().map(|page| page.version.as_str()).chain(runners);
    let versions: BTreeSet<_> = versions.filter(|version| !version.is_empty()).collect();
    let versions: Vec<_> = versions.into_iter().collect();
    match versions.as_slice() {
        [] => {}
        [version] => report.ok(format!("{version} everywhere")),
        _ => report.warning(
            format!("several versions run: {}", versions.join(", ")),
            "finish the upgrade: kubectl rollout status",
        ),
    }
}

/// Returns the configuration sources that a runner cannot use.
fn invalid(metrics: &str) -> impl Iterator<Item = &str> {
    let invalid = values(metrics, VALID).filter(|(_, valid)| *valid == "0");
    invalid.filter_map(|(labels, _)| labels.strip_prefix("source=\"")?.strip_suffix('"'))
}

/// Returns whether a runner cannot use the template of function pods.
pub(super) fn refuses_template(facts: &Facts) -> bool {
    answers(&facts.runners).any(|(_, answer)| invalid(&answer.metrics).any(|source| source == TEMPLATE))
}

/// Reports the configuration that runners cannot use.
pub(super) fn configuration(facts: &Facts, report: &mut Report) {
    let of_objects =
        facts.installed.runner_flags.as_ref().is_some_and(|flags| flags.function_pod_template.is_empty());
    let pages = answers(&facts.runners).map(|(_, answer)| answer.metrics.as_str());
    let pages: Vec<_> = pages.filter(|metrics| !metrics.is_empty()).collect();
    let mut faults: BTreeMap<(Level, String), usize> = BTreeMap::new();
    for metrics in &pages {
        let mut add = |level, fault| *faults.entry((level, fault)).or_default() += 1;
        // The code below reports faulty FunctionConfigs, which have another metric.
        for source in invalid(metrics).filter(|source| *source != "functionconfigs") {
            // Without --function-pod-template, runners read the templates from the objects that
            // newer Porch versions use.
            if source == TEMPLATE && of_objects {
                add(Level::Problem, "base-pod-template or base-service-template cannot be used".to_owned());
            } else {
                add(Level::Problem, format!("--{source} cannot be used"));
            }
        }
        let count = |name| value(metrics, name).filter(|count| *count != "0");
        if let Some(count) = count("porch_fn_runner_function_config_problems") {
            add(Level::Warning, format!("{count} FunctionConfigs have faults"));
        }
        let is_listed = value(metrics, "porch_fn_runner_listed") != Some("0");
        if count("porch_fn_runner_peers").is_some() && !is_listed {
            add(Level::Problem, "it is not among its own --peers, so it owns no function".to_owned());
        }
    }
    if faults.is_empty() && !pages.is_empty() {
        return report.ok("valid on every runner");
    }
    for ((level, fault), count) in faults {
        let fix = "check the runners' logs; porch-fn config IMAGE -n NAMESPACE shows the settings";
        report.add(level, format!("on {count} of {} runners: {fault}", pages.len()), fix);
    }
}

/// Returns the values of metric `name` on a `/metrics` page, each with the text of its labels.
fn values<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        Some((labels, value.trim()))
    })
}

/// Returns the value of a metric without labels.
fn value<'a>(page: &'a str, name: &'a str) -> Option<&'a str> {
    values(page, name).next().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_by_their_full_names() {
        let page = "# TYPE a_b gauge\na_b 12\na_b_c 3\nd{s=\"x\",e=\"} 7\"} 1\nd{s=\"y\"} 0\n# EOF\n";
        assert_eq!((value(page, "a_b"), value(page, "a")), (Some("12"), None));
        assert_eq!(values(page, "d").collect::<Vec<_>>(), [("s=\"x\",e=\"} 7\"", "1"), ("s=\"y\"", "0")]);
    }
}
