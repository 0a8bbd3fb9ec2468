//! The function namespace: what pods are made from, and what keeps them from starting.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use porch_fn_runner::pods::kubernetes::names::{MANAGED_BY, MANAGER, WRAPPER_CONTAINER};

use super::super::facts::{Facts, Template};
use super::super::finding::{Finding, Level};
use super::super::legacy;
use super::live;

/// Why a container waits, where waiting longer does not help.
const STUCK: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "CrashLoopBackOff",
];
/// Longest text of the cluster's that is told, in characters.
const MAX_TEXT: usize = 200;

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = template(facts);
    if live::refuses_template(facts) {
        // "configuration" says so: what the doctor has read must not say the contrary.
        findings.retain(|finding| finding.level != Level::Ok);
    }
    match &facts.function_pods {
        Err(error) => {
            let text = format!("the pods of namespace {} cannot be listed: {error}", facts.functions);
            findings.push(Finding::unknown(
                "function pods",
                text,
                "the right to list pods there; --pod-namespace",
            ));
        }
        Ok(pods) => {
            if facts.more_function_pods {
                let text =
                    format!("only the first {} of namespace {} are looked at", pods.len(), facts.functions);
                findings.push(Finding::unknown(
                    "function pods",
                    text,
                    "kubectl get pods there, with a selector",
                ));
            }
            findings.extend(stuck(pods));
            findings.extend(left(facts, pods));
        }
    }
    findings
}

/// Where the wrapper-server in function pods comes from.
fn template(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "pod template";
    let Some(Ok(flags)) = facts.installed.runner.as_ref().map(|runner| &runner.flags) else {
        return Vec::new();
    };
    if !flags.has_function_pods() {
        return Vec::new();
    }
    if flags.function_pod_template.is_empty() && flags.wrapper_server_image.is_empty() {
        let text = "the runners are told of no wrapper image, and do not start";
        let fix = "WRAPPER_SERVER_IMAGE or --wrapper-server-image on the runners";
        return vec![Finding::problem(CHECK, text, fix)];
    }
    match &facts.template {
        Template::ConfigMap(name, Ok(warnings)) if warnings.is_empty() => {
            vec![Finding::ok(CHECK, format!("ConfigMap {name}"))]
        }
        Template::ConfigMap(name, Ok(warnings)) => {
            let finding = |text: &String| {
                Finding::warning(CHECK, format!("ConfigMap {name}: {text}"), "change it there")
            };
            warnings.iter().map(finding).collect()
        }
        Template::ConfigMap(name, Err(error)) => {
            let text = format!("ConfigMap {name} of --function-pod-template cannot be used: {error}");
            vec![Finding::problem(
                CHECK,
                text,
                "correct that ConfigMap; until then the last good one is used, or no pod starts",
            )]
        }
        Template::Object => vec![Finding::ok(CHECK, "Porch's base-pod-template")],
        Template::BuiltIn => {
            let image = &flags.wrapper_server_image;
            let own = facts.installed.runner.as_ref().map(|runner| runner.image.as_str()).unwrap_or_default();
            match (tag(image), tag(own)) {
                (Some(wrapper), Some(own)) if wrapper != own => {
                    let text = format!("the wrapper image has tag {wrapper}, the runners' has {own}");
                    vec![Finding::warning(CHECK, text, "images of one version, unless this is meant")]
                }
                _ => vec![Finding::ok(CHECK, format!("built in, with wrapper image {image}"))],
            }
        }
        Template::Unknown(error) => {
            let text = format!("it cannot be read: {error}");
            vec![Finding::unknown(CHECK, text, "the rights to get configmaps and podtemplates")]
        }
    }
}

fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or(image);
    let (_, tag) = name.rsplit_once(':')?;
    (!tag.contains('/')).then_some(tag)
}

/// What keeps pods of ours from starting, each reason once.
fn stuck(pods: &[Pod]) -> Vec<Finding> {
    const CHECK: &str = "function pods";
    let ours = || pods.iter().filter(|pod| labelled(pod, MANAGED_BY) == Some(MANAGER));
    let mut reasons: BTreeMap<(String, &'static str), usize> = BTreeMap::new();
    for pod in ours() {
        if let Some(reason) = why_stuck(pod) {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    if reasons.is_empty() {
        return vec![Finding::ok(CHECK, format!("{}, none stuck", ours().count()))];
    }
    let finding = |((reason, fix), count): ((String, &str), usize)| {
        Finding::problem(CHECK, format!("{count} cannot start: {reason}"), fix)
    };
    reasons.into_iter().map(finding).collect()
}

/// The reason and what helps.
fn why_stuck(pod: &Pod) -> Option<(String, &'static str)> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten().map(|container| (container, true));
    let main = status.container_statuses.iter().flatten();
    let main = main.map(|container| (container, container.name == WRAPPER_CONTAINER));
    for (container, brings_wrapper) in init.chain(main) {
        let Some(waiting) = container.state.as_ref().and_then(|state| state.waiting.as_ref()) else {
            continue;
        };
        let reason = waiting.reason.as_deref().unwrap_or_default();
        if !STUCK.contains(&reason) {
            continue;
        }
        let fix = match (reason, brings_wrapper) {
            ("CrashLoopBackOff", _) => {
                "kubectl logs --previous of that container; its memory limit; the template's command"
            }
            ("CreateContainerConfigError" | "CreateContainerError", _) => {
                "kubectl describe of such a pod; the template"
            }
            (_, true) => "the wrapper image, of --wrapper-server-image or the template, and who may pull it",
            (_, false) => "the image's name and tag; pull secrets; --enable-private-registries",
        };
        return Some((format!("container {} of {}: {reason}", container.name, container.image), fix));
    }
    let unscheduled = status.conditions.iter().flatten().find(|one| {
        one.type_ == "PodScheduled" && one.status == "False" && one.reason.as_deref() == Some("Unschedulable")
    })?;
    let message: String = unscheduled.message.iter().flat_map(|text| text.chars()).take(MAX_TEXT).collect();
    Some((format!("no node takes them: {message}"), "the pods' requests, quotas, and room on the nodes"))
}

fn labelled<'a>(pod: &'a Pod, label: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(label).map(String::as_str)
}

/// Pods of Porch's evaluators, unless one of this namespace that runs may use them. One of another namespace may: only
/// --clean-legacy looks for it.
fn left(facts: &Facts, pods: &[Pod]) -> Option<Finding> {
    if facts.installed.originals.iter().any(|original| original.pods > 0 && original.starts_pods) {
        return None;
    }
    let count = legacy::leftovers(pods, &[], &facts.servers).pods.len();
    (count > 0).then(|| {
        let text = format!("{count} pods of Porch's evaluators in {}", facts.functions);
        let fix = format!(
            "porch-fn doctor --clean-legacy -n {} lists those that are dead, and deletes them",
            facts.namespace
        );
        Finding::info("leftovers", text, fix)
    })
}
