//! The rights that the manifests in deploy/ grant. Tests can remove some of these rights.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::rbac::v1::{PolicyRule, Role};
use serde_json::Value;

/// The folder of the manifests.
pub const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
/// The manifest with the rights of the base.
pub const BASE: &str = "rights.yaml";
/// The rights that a pod template in a ConfigMap needs.
pub const POD_TEMPLATE: &str = "components/pod-template/rights.yaml";
/// The rights that credentials for registries need.
pub const PRIVATE_REGISTRIES: &str = "components/private-registries/rights.yaml";
/// The rights of the single runner, which replaces Porch's own function runner.
pub const SINGLE_RUNNER: &str = "single-runner/rights.yaml";
/// The namespace of function pods in the manifests.
pub const FUNCTIONS: &str = "porch-fn-system";
/// The runners' own namespace in the manifests.
pub const HOME: &str = "porch-system";

/// A permission for one verb and one resource, such as `get pods` or
/// `patch functionconfigs.config.porch.kpt.dev/status`. A permission for one object ends with the
/// object's name: `get secrets auth-secret`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right(String);

#[derive(Debug, Clone)]
pub struct Roles(pub Vec<Role>);

/// All objects in a YAML file.
pub fn objects(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The first object of a YAML file of deploy/.
pub fn manifest(path: &str) -> Value {
    objects(&Path::new(DEPLOY).join(path)).remove(0)
}

/// The elements of a list; none if it is missing.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The words of a text that begin with `prefix`. A word consists of the characters that metric and
/// flag names may have.
pub fn words<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let part = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    text.split(|c| !part(c)).filter(|word| word.starts_with(prefix)).collect()
}

// === impl Roles ===

impl Roles {
    /// The Roles in these files of deploy/.
    pub fn of(files: &[&str]) -> Self {
        let mut roles = Vec::new();
        for file in files {
            let mut there = objects(&PathBuf::from(DEPLOY).join(file));
            there.retain(|object| object["kind"] == "Role");
            assert!(!there.is_empty(), "{file} has a Role");
            roles.extend(there.into_iter().map(|role| serde_json::from_value(role).expect("a Role")));
        }
        Self(roles)
    }

    /// Removes these verbs of these resources.
    #[must_use]
    pub fn without(mut self, missing: &[(&str, &str)]) -> Self {
        for (verb, resource) in missing {
            let mut taken = 0;
            for rule in self.0.iter_mut().flat_map(|role| role.rules.iter_mut().flatten()) {
                if rule.resources.iter().flatten().any(|of| of == resource) {
                    taken += rule.verbs.len();
                    rule.verbs.retain(|other| other != verb);
                    taken -= rule.verbs.len();
                }
            }
            assert_eq!(taken, 1, "{verb} of {resource} is granted once");
        }
        for role in &mut self.0 {
            role.rules.get_or_insert_default().retain(|rule| !rule.verbs.is_empty());
        }
        self
    }

    /// The rules in one namespace.
    pub fn rules(&self, namespace: &str) -> Vec<PolicyRule> {
        let here = self.0.iter().filter(|role| role.metadata.namespace.as_deref() == Some(namespace));
        here.flat_map(|role| role.rules.iter().flatten().cloned()).collect()
    }

    pub fn rights(&self) -> BTreeSet<Right> {
        let rules = self.0.iter().flat_map(|role| role.rules.iter().flatten());
        rules.flat_map(rights).collect()
    }
}

fn rights(rule: &PolicyRule) -> Vec<Right> {
    let mut all = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            let (kind, part) =
                resource.split_once('/').map_or((&**resource, None), |(kind, part)| (kind, Some(part)));
            let mut resource = kind.to_owned();
            if !group.is_empty() {
                resource = format!("{resource}.{group}");
            }
            if let Some(part) = part {
                resource = format!("{resource}/{part}");
            }
            for verb in &rule.verbs {
                let names = rule.resource_names.as_deref().unwrap_or_default();
                if names.is_empty() {
                    all.push(Right(format!("{verb} {resource}")));
                }
                all.extend(names.iter().map(|name| Right(format!("{verb} {resource} {name}"))));
            }
        }
    }
    // A Role cannot grant non-resource URLs.
    assert!(rule.non_resource_urls.is_none() && !all.is_empty(), "{rule:?}");
    all
}

// === impl Right ===

impl Right {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The same permission for all objects of the resource.
    #[must_use]
    pub fn of_all(&self) -> Self {
        let words: Vec<_> = self.0.split(' ').take(2).collect();
        Self(words.join(" "))
    }

    /// The verb and the resource as a rule of a Role has them: without the API group.
    pub fn as_in_rule(&self) -> (&str, String) {
        let mut words = self.0.split(' ');
        let (verb, resource) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (kind, part) =
            resource.split_once('/').map_or((resource, None), |(kind, part)| (kind, Some(part)));
        let kind = kind.split_once('.').map_or(kind, |(kind, _)| kind);
        (verb, part.map_or_else(|| kind.to_owned(), |part| format!("{kind}/{part}")))
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
