//! The API server rights that routers and runners need. deploy/rights.yaml grants the same rights.
//! Pure functions without I/O.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use porch_fn_discovery::Target;
use porch_fn_runner_config::PodConnect;

use super::finding::{Level, Report};
use super::installation::Installation;
use crate::porch_config::GROUP as PORCH;

/// Rights of runners in the function namespace: group, resource, verbs.
const RUNNERS: &[(&str, &str, &[&str])] = &[
    ("", "pods", &["create", "delete", "get", "list", "watch", "patch"]),
    ("", "services", &["create", "delete", "get", "list", "watch"]),
    ("", "podtemplates", &["get"]),
    (PORCH, "servicetemplates", &["get"]),
    (PORCH, "functionconfigs", &["list", "watch", "patch"]),
    (PORCH, "functionconfigs/status", &["patch"]),
];
/// Rights of programs that find runners through EndpointSlices.
const SLICES: (&str, &str, &[&str]) = ("discovery.k8s.io", "endpointslices", &["get", "list", "watch"]);

/// A right that a program needs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Right {
    /// The request that asks the API server whether the right is granted.
    pub(super) review: SubjectAccessReview,
    /// Severity and text of the finding if the right is missing.
    missing: (Level, String),
    /// Whether the right is granted. False until the API server has answered.
    pub(super) granted: bool,
}

/// Returns the rights that an installation in namespace `home` needs.
pub(super) fn needed(installed: &Installation, home: &str) -> Vec<Right> {
    let mut rights = Vec::new();
    let mut add = |account: &str, namespace: &str, (group, resource, verbs): (_, _, &[_]), name: &str| {
        let of_verb = |verb: &&_| right(home, account, namespace, (group, resource, verb), name);
        rights.extend(verbs.iter().map(of_verb));
    };
    if let (Some(router), Some(flags)) = (&installed.router, &installed.router_flags)
        && let Target::Kubernetes { namespace, .. } = &flags.runners
    {
        add(&router.workload.account, namespace, SLICES, "");
    }
    if let (Some(runner), Some(flags)) = (&installed.runner, &installed.runner_flags) {
        let (account, functions) = (&runner.workload.account, &flags.pod_namespace);
        let needs_services = flags.pod_connect != PodConnect::PodIp;
        let of_pods = RUNNERS.iter().filter(|_| flags.has_function_pods());
        for &right in of_pods.filter(|(_, resource, _)| needs_services || *resource != "services") {
            add(account, functions, right, "");
        }
        if !flags.function_pod_template.is_empty() {
            let own = if flags.namespace.is_empty() { home } else { &flags.namespace };
            add(account, own, ("", "configmaps", &["get"]), &flags.function_pod_template);
        }
        if flags.enable_private_registries {
            add(account, functions, ("", "secrets", &["create"]), "");
            let verbs = ("", "secrets", ["get", "update", "delete"].as_slice());
            add(account, functions, verbs, &flags.registry_auth_secret_name);
        }
        if let Ok(Target::Kubernetes { namespace, .. }) = Target::parse(&flags.peers, 9445) {
            add(account, &namespace, SLICES, "");
        }
    }
    rights
}

/// Returns the right of a service account in `home` to a verb on `RESOURCE` or
/// `RESOURCE/SUBRESOURCE`. An empty `name` means all objects.
fn right(
    home: &str,
    account: &str,
    namespace: &str,
    (group, resource, verb): (&str, &str, &str),
    name: &str,
) -> Right {
    let level = match resource {
        "pods" | "services" | "secrets" | "configmaps" => Level::Problem,
        // Without the other rights, the programs still work or use an alternative.
        _ => Level::Warning,
    };
    let full = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    let text = format!("ServiceAccount {account} may not {verb} {full} in {namespace}");
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    // The API server treats an empty field like a missing one.
    let given = |text: &str| Some(text.to_owned());
    let wanted = ResourceAttributes {
        namespace: given(namespace),
        group: given(group),
        resource: given(resource),
        subresource: given(subresource),
        name: given(name),
        verb: given(verb),
        ..ResourceAttributes::default()
    };
    let groups = ["system:authenticated", "system:serviceaccounts"].map(str::to_owned);
    let spec = SubjectAccessReviewSpec {
        user: Some(format!("system:serviceaccount:{home}:{account}")),
        groups: Some(groups.into_iter().chain([format!("system:serviceaccounts:{home}")]).collect()),
        resource_attributes: Some(wanted),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    Right { review, missing: (level, text), granted: false }
}

/// Reports the missing rights.
pub(super) fn check(rights: &Result<Vec<Right>, String>, report: &mut Report) {
    let rights = match rights {
        Ok(rights) => rights,
        Err(error) => {
            let fix = "ask somebody who may create subjectaccessreviews to run this, or compare with deploy/rights.yaml";
            return report.unknown(error, fix);
        }
    };
    for Right { missing: (level, text), .. } in rights.iter().filter(|right| !right.granted) {
        // The fix names files, because the Roles have different names in deploy/ and
        // deploy/single-runner.
        let fix = "apply rights.yaml of deploy/ or deploy/single-runner, or the component that has the right";
        report.add(*level, text, fix);
    }
    match rights.len() {
        0 => report.ok("none needed"),
        count if report.is_empty() => report.ok(format!("all {count} granted")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    const MANIFEST: &str = include_str!("../../../deploy/rights.yaml");

    #[test]
    fn the_table_equals_the_manifests_role() {
        let documents: Vec<Value> = serde_saphyr::from_multiple(MANIFEST).unwrap();
        let role = documents.iter().find(|object| object["kind"] == "Role").unwrap();
        let all = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap() };
        let mut granted = BTreeSet::new();
        for rule in role["rules"].as_array().unwrap() {
            for resource in all(&rule["resources"]) {
                let group = all(&rule["apiGroups"]).concat();
                granted.extend(all(&rule["verbs"]).iter().map(|verb| format!("{verb} {resource}.{group}")));
            }
        }
        let known = RUNNERS.iter().flat_map(|(group, resource, verbs)| {
            verbs.iter().map(move |verb| format!("{verb} {resource}.{group}"))
        });
        assert_eq!(known.collect::<BTreeSet<_>>(), granted);
    }

    #[test]
    fn missing_rights_are_reported() {
        let resource = (PORCH, "functionconfigs/status", "patch");
        let missing = right("home", "runner", "functions", resource, "");
        let attributes = missing.review.spec.resource_attributes.clone().unwrap();
        assert_eq!(attributes.resource.as_deref(), Some("functionconfigs"));
        assert_eq!(attributes.subresource.as_deref(), Some("status"));
        let granted = Right { granted: true, ..missing.clone() };
        let texts = [vec![granted.clone()], vec![missing, granted]].map(|rights| {
            let mut report = Report::new("rights");
            check(&Ok(rights), &mut report);
            report.findings.into_iter().map(|finding| finding.text).collect::<String>()
        });
        let missing =
            "ServiceAccount runner may not patch functionconfigs/status.config.porch.kpt.dev in functions";
        assert_eq!(texts, ["all 1 granted", missing]);
    }
}
