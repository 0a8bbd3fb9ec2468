//! Checks of the function namespace: the template of function pods, and pods that cannot start.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_runner::pods::kubernetes::names::{MANAGED_BY, MANAGER, WRAPPER_CONTAINER};

use super::super::facts::{Facts, TemplateSource};
use super::super::finding::Report;
use super::super::legacy;
use super::super::workload::name_and_tag;
use super::live;

/// Waiting reasons of a container that do not pass by themselves.
const STUCK: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "CrashLoopBackOff",
];
/// Maximum length of a text from the cluster, in characters.
const MAX_TEXT: usize = 200;

/// Checks the template and wrapper image of function pods.
pub(super) fn template(facts: &Facts, report: &mut Report) {
    let Some(flags) = facts.runner_flags().filter(|flags| flags.has_function_pods()) else { return };
    let image = &flags.wrapper_server_image;
    if flags.function_pod_template.is_empty() && image.is_empty() {
        return report.problem(
            "the runners have no wrapper image, and do not start",
            "WRAPPER_SERVER_IMAGE or --wrapper-server-image on the runners",
        );
    }
    let text = match &facts.template {
        TemplateSource::ConfigMap(name, Ok(warnings)) => {
            for text in warnings {
                report.warning(format!("ConfigMap {name}: {text}"), "change it there");
            }
            format!("ConfigMap {name}")
        }
        TemplateSource::ConfigMap(name, Err(error)) => {
            return report.problem(
                format!("ConfigMap {name} of --function-pod-template cannot be used: {error}"),
                "correct that ConfigMap; until then the last good one is used, or no pod starts",
            );
        }
        TemplateSource::Object => "Porch's base-pod-template".to_owned(),
        TemplateSource::BuiltIn => {
            let own = facts.installed.runner.as_ref().map_or("", |runner| &runner.image);
            if let ((_, Some(wrapper)), (_, Some(own))) = (name_and_tag(image), name_and_tag(own))
                && wrapper != own
            {
                report.warning(
                    format!("the wrapper image has tag {wrapper}, the runners' has {own}"),
                    "images of one version, unless this is meant",
                );
            }
            format!("built in, with wrapper image {image}")
        }
        TemplateSource::Unknown(error) => {
            let fix = "the rights to get configmaps and podtemplates";
            return report.unknown(format!("it cannot be read: {error}"), fix);
        }
    };
    // The check "configuration" reports a template that runners refuse. This check must not
    // contradict it.
    if report.is_empty() && !live::refuses_template(facts) {
        report.ok(text);
    }
}

/// Reports why our function pods cannot start, each reason once.
pub(super) fn pods(facts: &Facts, report: &mut Report) {
    let namespace = &facts.functions;
    let pods = match &facts.function_pods {
        Ok(pods) => pods,
        Err(error) => {
            let text = format!("the pods of namespace {namespace} cannot be listed: {error}");
            return report.unknown(text, "the right to list pods there; --pod-namespace");
        }
    };
    if facts.more_function_pods {
        let text = format!("only the first {} of namespace {namespace} are looked at", pods.len());
        report.unknown(text, "kubectl get pods there, with a selector");
    }
    let ours = || pods.iter().filter(|pod| pod.labels().get(MANAGED_BY).is_some_and(|by| by == MANAGER));
    let mut reasons: BTreeMap<_, usize> = BTreeMap::new();
    for reason in ours().filter_map(why_stuck) {
        *reasons.entry(reason).or_default() += 1;
    }
    if reasons.is_empty() {
        report.ok(format!("{}, none stuck", ours().count()));
    }
    for ((reason, fix), count) in reasons {
        report.problem(format!("{count} cannot start: {reason}"), fix);
    }
}

/// Returns why a pod cannot start, and the fix.
fn why_stuck(pod: &Pod) -> Option<(String, &'static str)> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten().map(|container| (container, true));
    let main = status.container_statuses.iter().flatten();
    let main = main.map(|container| (container, container.name == WRAPPER_CONTAINER));
    for (container, brings_wrapper) in init.chain(main) {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref()?.reason.as_deref());
        let Some(reason) = waiting.filter(|reason| STUCK.contains(reason)) else { continue };
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

/// Reports pods of Porch's evaluators that no running evaluator of this namespace may use. Only
/// --clean-legacy looks for evaluators in other namespaces.
pub(super) fn leftovers(facts: &Facts, report: &mut Report) {
    let pods = facts.function_pods.as_deref().unwrap_or_default();
    let count = legacy::leftovers(pods, &[], &facts.servers).pods.len();
    if count > 0 && facts.needing_original().is_none() {
        let clean = format!("porch-fn doctor --clean-legacy -n {}", facts.namespace);
        report.info(
            format!("{count} pods of Porch's evaluators in {}", facts.functions),
            format!("{clean} lists those that are dead, and deletes them"),
        );
    }
}
