//! What routers and runners need the API server to let them do, as deploy/rights.yaml grants it.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use porch_fn_runner::PodConnect;
use porch_fn_service::discovery::Target;

use super::finding::Finding;
use super::installation::Installation;

const PORCH: &str = "config.porch.kpt.dev";
/// Of runners in the function namespace: group, resource, verbs.
const RUNNERS: &[(&str, &str, &[&str])] = &[
    ("", "pods", &["create", "delete", "get", "list", "watch", "patch"]),
    ("", "services", &["create", "delete", "get", "list", "watch"]),
    ("", "podtemplates", &["get"]),
    (PORCH, "servicetemplates", &["get"]),
    (PORCH, "functionconfigs", &["list", "watch", "patch"]),
    (PORCH, "functionconfigs/status", &["patch"]),
];

/// A right that a program needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Right {
    /// Whose: a service account of the programs' namespace.
    pub(super) account: String,
    /// Where.
    pub(super) namespace: String,
    pub(super) group: &'static str,
    /// With the subresource, if any.
    pub(super) resource: &'static str,
    /// Of which object; empty where it is of all.
    pub(super) name: String,
    pub(super) verb: &'static str,
    /// Whether it is there, once that was asked.
    pub(super) granted: bool,
}

/// What an installation in `namespace` needs.
pub(super) fn needed(installed: &Installation, namespace: &str) -> Vec<Right> {
    let mut rights = Vec::new();
    let mut add = |account: &str, place: &str, group, resource, verbs: &[&'static str], name: &str| {
        rights.extend(verbs.iter().map(|&verb| Right {
            account: account.to_owned(),
            namespace: place.to_owned(),
            group,
            resource,
            name: name.to_owned(),
            verb,
            granted: false,
        }));
    };
    let slices: &[&'static str] = &["get", "list", "watch"];
    if let Some(router) = &installed.router
        && let Ok(flags) = &router.flags
        && let Target::Kubernetes { namespace, .. } = &flags.runners
    {
        add(&router.account, namespace, "discovery.k8s.io", "endpointslices", slices, "");
    }
    if let Some(runner) = &installed.runner
        && let Ok(flags) = &runner.flags
    {
        let account = &runner.account;
        let by_address = flags.pod_connect == PodConnect::PodIp;
        let used = |resource: &str| flags.has_function_pods() && !(by_address && resource == "services");
        for &(group, resource, verbs) in RUNNERS.iter().filter(|(_, resource, _)| used(resource)) {
            add(account, &flags.pod_namespace, group, resource, verbs, "");
        }
        if !flags.function_pod_template.is_empty() {
            let own = if flags.namespace.is_empty() { namespace } else { &flags.namespace };
            add(account, own, "", "configmaps", &["get"], &flags.function_pod_template);
        }
        if flags.enable_private_registries {
            let name = &flags.registry_auth_secret_name;
            add(account, &flags.pod_namespace, "", "secrets", &["create"], "");
            add(account, &flags.pod_namespace, "", "secrets", &["get", "update", "delete"], name);
        }
        if let Ok(Target::Kubernetes { namespace, .. }) = Target::parse(&flags.peers, 9445) {
            add(account, &namespace, "discovery.k8s.io", "endpointslices", slices, "");
        }
    }
    rights
}

// === impl Right ===

impl Right {
    /// The question for the API server. `home` is the service account's namespace.
    pub(super) fn review(&self, home: &str) -> SubjectAccessReview {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let attributes = ResourceAttributes {
            namespace: some(&self.namespace),
            group: some(self.group),
            resource: some(resource),
            subresource: some(subresource),
            name: some(&self.name),
            verb: some(self.verb),
            ..ResourceAttributes::default()
        };
        let groups = ["system:authenticated", "system:serviceaccounts"].map(str::to_owned);
        SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(format!("system:serviceaccount:{home}:{}", self.account)),
                groups: Some(groups.into_iter().chain([format!("system:serviceaccounts:{home}")]).collect()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        }
    }

    /// `verb resource in namespace`.
    fn shown(&self) -> String {
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        format!("{} {}{group} in {}", self.verb, self.resource, self.namespace)
    }
}

/// What is missing.
pub(super) fn check(rights: &Result<Vec<Right>, String>) -> Vec<Finding> {
    const CHECK: &str = "rights";
    let rights = match rights {
        Ok(rights) => rights,
        Err(error) => {
            let fix = "ask somebody who may create subjectaccessreviews, or compare with deploy/rights.yaml";
            return vec![Finding::unknown(CHECK, error.clone(), fix)];
        }
    };
    let missing: Vec<_> = rights.iter().filter(|right| !right.granted).collect();
    if missing.is_empty() {
        let text = match rights.len() {
            0 => "none needed".to_owned(),
            count => format!("all {count} granted"),
        };
        return vec![Finding::ok(CHECK, text)];
    }
    let finding = |right: &&Right| {
        let text = format!("ServiceAccount {} may not {}", right.account, right.shown());
        // Those of deploy/single-runner have another name.
        let fix = "apply rights.yaml of deploy/ or deploy/single-runner, or the component that brings it";
        match right.resource {
            "pods" | "services" | "secrets" | "configmaps" => Finding::problem(CHECK, text, fix),
            // The others are done without, or there is another way.
            _ => Finding::warning(CHECK, text, fix),
        }
    };
    missing.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Deserialize as _;
    use serde_json::Value;

    use super::*;

    const MANIFEST: &str = include_str!("../../../deploy/rights.yaml");

    #[test]
    fn they_are_those_of_the_manifests() {
        let documents: Vec<Value> = MANIFEST
            .split("\n---\n")
            .map(|text| Value::deserialize(serde_saphyr::from_str::<Value>(text).unwrap()).unwrap())
            .collect();
        let role = documents.iter().find(|object| object["kind"] == "Role").unwrap();
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let mut granted = BTreeSet::new();
        for rule in role["rules"].as_array().unwrap() {
            for (resource, verb) in texts(&rule["resources"]).iter().flat_map(|resource| {
                texts(&rule["verbs"]).into_iter().map(move |verb| (resource.clone(), verb))
            }) {
                granted.insert((texts(&rule["apiGroups"]).concat(), resource, verb));
            }
        }
        let known: BTreeSet<_> = RUNNERS
            .iter()
            .flat_map(|&(group, resource, verbs)| {
                verbs.iter().map(move |verb| (group.to_owned(), resource.to_owned(), (*verb).to_owned()))
            })
            .collect();
        assert_eq!(known, granted);
    }

    #[test]
    fn what_is_missing_is_named() {
        let right = |verb, granted| Right {
            account: "runner".to_owned(),
            namespace: "functions".to_owned(),
            group: PORCH,
            resource: "functionconfigs/status",
            name: String::new(),
            verb,
            granted,
        };
        assert_eq!(check(&Ok(vec![right("patch", true)])), [Finding::ok("rights", "all 1 granted")]);
        let found = check(&Ok(vec![right("patch", false), right("get", true)]));
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].text,
            "ServiceAccount runner may not patch functionconfigs/status.config.porch.kpt.dev in functions"
        );
        let attributes = right("patch", false).review("home").spec.resource_attributes.unwrap();
        assert_eq!(attributes.resource.as_deref(), Some("functionconfigs"));
        assert_eq!(attributes.subresource.as_deref(), Some("status"));
    }
}
