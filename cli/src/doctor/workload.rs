//! A Deployment in the form that the checks need. Kubernetes' defaults are filled in, and command
//! lines are parsed like Go and the kubelet do. Pure functions without I/O.

use std::collections::BTreeMap;

use clap::Parser;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, EnvVar};
use kube::ResourceExt;

/// Placeholder for a value that the Deployment takes from another object.
pub(super) const ELSEWHERE: &str = "(from elsewhere)";
/// Variable with a program's own namespace. Default: the namespace of its pod.
const OWN_NAMESPACE: &str = "POD_NAMESPACE";
/// Program that doctor assumes for a container without a command, because doctor does not read
/// images. Porch's images run this program.
pub(super) const SERVER: &str = "server";

/// A Deployment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Workload {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Desired number of pods.
    pub(super) replicas: i32,
    /// Number of ready pods.
    pub(super) ready: i32,
    /// The larger of desired and existing pods. Terminating pods are not counted.
    pub(super) pods: i32,
    /// Labels by which the Deployment selects its pods.
    pub(super) selector: BTreeMap<String, String>,
    /// Labels of the pods. A Service selects the pods by these labels.
    pub(super) labels: BTreeMap<String, String>,
    /// The pods' service account.
    pub(super) account: String,
    /// Termination grace period of the pods, in seconds.
    pub(super) grace: i64,
    pub(super) containers: Vec<Container>,
}

/// A container and its command line.
#[derive(Debug, Clone)]
pub(super) struct Program<'a> {
    pub(super) container: &'a Container,
    /// The program's path and its arguments.
    argv: Vec<&'a str>,
}

// === impl Workload ===

impl From<&Deployment> for Workload {
    fn from(deployment: &Deployment) -> Self {
        let spec = deployment.spec.clone().unwrap_or_default();
        let status = deployment.status.clone().unwrap_or_default();
        let pod = spec.template.spec.unwrap_or_default();
        let replicas = spec.replicas.unwrap_or(1);
        Self {
            namespace: deployment.namespace().unwrap_or_default(),
            name: deployment.name_any(),
            replicas,
            ready: status.ready_replicas.unwrap_or_default(),
            pods: replicas.max(status.replicas.unwrap_or_default()),
            selector: spec.selector.match_labels.unwrap_or_default(),
            labels: spec.template.metadata.and_then(|metadata| metadata.labels).unwrap_or_default(),
            account: pod.service_account_name.unwrap_or_else(|| "default".to_owned()),
            grace: pod.termination_grace_period_seconds.unwrap_or(30),
            containers: pod.containers,
        }
    }
}

impl Workload {
    pub(super) fn programs(&self) -> impl Iterator<Item = Program<'_>> {
        self.containers.iter().map(|container| {
            let of_image = container.command.is_none().then_some(SERVER);
            let given = container.command.iter().chain(&container.args).flatten().map(String::as_str);
            Program { container, argv: of_image.into_iter().chain(given).collect() }
        })
    }
}

// === impl Program ===

impl<'a> Program<'a> {
    /// Returns the last part of the program's path.
    pub(super) fn name(&self) -> &'a str {
        self.argv.first().and_then(|path| path.rsplit('/').next()).unwrap_or_default()
    }

    /// Returns the last part of the container's image, without tag and digest.
    pub(super) fn image_name(&self) -> &'a str {
        name_and_tag(self.container.image.as_deref().unwrap_or_default()).0
    }

    /// Returns the value of a Go flag: `-x=v`, `--x=v` or `--x v`. If a flag is repeated,
    /// Go uses the last value.
    pub(super) fn flag(&self, name: &str) -> Option<&'a str> {
        self.argv.iter().enumerate().rev().find_map(|(index, arg)| {
            let rest = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'))?.strip_prefix(name)?;
            match rest.strip_prefix('=') {
                Some(value) => Some(value),
                None if rest.is_empty() => self.argv.get(index + 1).copied(),
                None => None,
            }
        })
    }

    /// Returns the value of an environment variable, or [`ELSEWHERE`] if the Deployment only refers
    /// to it.
    pub(super) fn variable(&self, name: &str) -> Option<&'a str> {
        let variable = self.container.env.iter().flatten().find(|one| one.name == name)?;
        Some(value_here(variable, ELSEWHERE).unwrap_or(ELSEWHERE))
    }

    /// Returns whether `envFrom` takes variables from another object.
    pub(super) fn has_env_from(&self) -> bool {
        self.container.env_from.as_ref().is_some_and(|from| !from.is_empty())
    }

    /// Parses the flags like the program does in a pod of `namespace`: the command line overrides
    /// the environment. The parser would also read the environment of this process, which must have
    /// no effect. So the value of each flag that has a variable is passed on the command line.
    pub(super) fn parse<F: Parser>(&self, namespace: &str) -> Result<F, String> {
        let env = self.container.env.as_deref().unwrap_or_default();
        let known: Vec<_> =
            env.iter().filter_map(|one| Some((one.name.as_str(), value_here(one, namespace)?))).collect();
        let command = F::command();
        let fallbacks = command.get_arguments().filter_map(|arg| {
            let variable = arg.get_env()?.to_str()?;
            let default =
                arg.get_default_values().first().and_then(|value| value.to_str()).unwrap_or_default();
            let is_elsewhere = || self.has_env_from() || env.iter().any(|one| one.name == variable);
            let value = match known.iter().find(|(name, _)| *name == variable) {
                Some((_, value)) => value,
                // The value is not in the Deployment. A flag without a default gets the placeholder
                // if another object may set its variable. In all other cases, and always for the
                // namespace, the default is the best guess.
                None if default.is_empty() && variable != OWN_NAMESPACE && is_elsewhere() => ELSEWHERE,
                None => default,
            };
            Some(format!("--{}={value}", arg.get_long()?))
        });
        // Expands `$(NAME)` like the kubelet.
        let replace = |arg: String, (name, value): &(&str, &str)| arg.replace(&format!("$({name})"), value);
        let given = self.argv.iter().skip(1).map(|arg| known.iter().fold((*arg).to_owned(), replace));
        let args = std::iter::once(self.name().to_owned()).chain(fallbacks).chain(given).map(Into::into);
        porch_fn_flags::parse(args).map_err(|error| error.to_string())
    }
}

/// Returns the last part of an image's name, and its tag.
pub(super) fn name_and_tag(image: &str) -> (&str, Option<&str>) {
    let last = image.split('@').next().and_then(|image| image.rsplit('/').next()).unwrap_or_default();
    last.split_once(':').map_or((last, None), |(name, tag)| (name, Some(tag)))
}

/// Returns the value of a variable if the Deployment contains it.
fn value_here<'a>(variable: &'a EnvVar, namespace: &'a str) -> Option<&'a str> {
    match (&variable.value, &variable.value_from) {
        (Some(value), _) => Some(value),
        (None, None) => Some(""),
        (None, Some(from)) => {
            (from.field_ref.as_ref()?.field_path == "metadata.namespace").then_some(namespace)
        }
    }
}
