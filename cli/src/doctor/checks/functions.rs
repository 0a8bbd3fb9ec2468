//! Checks of the function namespace: the template of function pods, and pods that cannot start.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_runner_config::names::{MANAGED_BY, MANAGER, WRAPPER_CONTAINER};

use super::super::facts::{Facts, TemplateSource, answers};
use super::super::finding::Report;
use super::super::installation::evaluator_of;
use super::super::legacy;
use super::super::workload::name_and_tag;
use super::live;

/// Reasons in a waiting container's status that last until somebody fixes the fault.
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
/// Maximum number of images that are reported because they do not start.
const MAX_IMAGES: usize = 20;

/// Checks the template and wrapper image of function pods.
pub(super) fn template(facts: &Facts, report: &mut Report) {
    let Some(flags) = facts.installed.runner_flags.as_ref().filter(|flags| flags.has_function_pods()) else {
        return;
    };
    let image = &flags.wrapper_server_image;
    if flags.function_pod_template.is_empty() && image.is_empty() {
        return report.problem(
            "the runners have no wrapper image, and do not start",
            "set WRAPPER_SERVER_IMAGE or --wrapper-server-image on the runners",
        );
    }
    let text = match &facts.template {
        TemplateSource::ConfigMap(name, Ok(warnings)) => {
            for text in warnings {
                report.warning(format!("ConfigMap {name}: {text}"), "correct that ConfigMap");
            }
            format!("ConfigMap {name}")
        }
        TemplateSource::ConfigMap(name, Err(error)) => {
            return report.problem(
                format!("ConfigMap {name} of --function-pod-template cannot be used: {error}"),
                "correct that ConfigMap; until then, runners use the last valid one, or start no pods",
            );
        }
        TemplateSource::Object => "Porch's base-pod-template".to_owned(),
        TemplateSource::BuiltIn => {
            let own = facts.installed.runner.as_ref().map_or("", |runner| &runner.image);
            if let ((_, Some(wrapper)), (_, Some(own))) = (name_and_tag(image), name_and_tag(own))
                && wrapper != own
            {
                report.warning(
                    format!("the wrapper image has tag {wrapper}, but the runners' image has tag {own}"),
                    "use images of one version, unless the difference is intended",
                );
            }
            format!("built in, with wrapper image {image}")
        }
        TemplateSource::Unknown(error) => {
            let fix = "check that you may get configmaps and podtemplates";
            return report.unknown(format!("the template cannot be read: {error}"), fix);
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
            let fix =
                format!("check that you may list pods in {namespace}, and the runners' --pod-namespace");
            return report.unknown(error, fix);
        }
    };
    let ours = || pods.iter().filter(|pod| pod.labels().get(MANAGED_BY).is_some_and(|by| by == MANAGER));
    let mut reasons: BTreeMap<_, usize> = BTreeMap::new();
    for reason in ours().filter_map(why_stuck) {
        *reasons.entry(reason).or_default() += 1;
    }
    // Runners delete a pod soon after its start has failed, or cannot create it.
    let images = answers(&facts.routers).flat_map(|(_, answer)| &answer.page.images);
    let failed: BTreeMap<_, _> =
        images.filter_map(|image| Some((&image.info.image, &image.start_error.as_ref()?.text))).collect();
    if reasons.is_empty() && failed.is_empty() {
        report.ok(format!("{} pods, none is stuck", ours().count()));
    }
    for ((reason, fix), count) in reasons {
        report.problem(format!("{count} cannot start: {reason}"), fix);
    }
    for (image, text) in failed.into_iter().take(MAX_IMAGES) {
        let text: String = text.chars().take(MAX_TEXT).collect();
        let fix = "see docs/troubleshooting.md#a-pod-did-not-start-or-was-lost";
        report.problem(format!("{image} does not start: {text}"), fix);
    }
}

/// Returns why a pod cannot start, and the fix.
fn why_stuck(pod: &Pod) -> Option<(String, &'static str)> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten().map(|container| (container, true));
    let main = status.container_statuses.iter().flatten();
    let main = main.map(|container| (container, container.name == WRAPPER_CONTAINER));
    for (container, is_wrapper) in init.chain(main) {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref()?.reason.as_deref());
        let Some(reason) = waiting.filter(|reason| STUCK.contains(reason)) else { continue };
        let fix = match (reason, is_wrapper) {
            ("CrashLoopBackOff", _) => {
                "check the container's log (kubectl logs --previous), its memory limit and the template's command"
            }
            ("CreateContainerConfigError" | "CreateContainerError", _) => {
                "check such a pod with kubectl describe; check the template"
            }
            (_, true) => "check the wrapper image (--wrapper-server-image or template) and its pull secrets",
            (_, false) => "check the image's name and tag, pull secrets, and --enable-private-registries",
        };
        return Some((format!("container {} of {}: {reason}", container.name, container.image), fix));
    }
    let unscheduled = status.conditions.iter().flatten().find(|one| {
        one.type_ == "PodScheduled" && one.status == "False" && one.reason.as_deref() == Some("Unschedulable")
    })?;
    let message: String = unscheduled.message.iter().flat_map(|text| text.chars()).take(MAX_TEXT).collect();
    Some((
        format!("no node has room for them: {message}"),
        "check the pods' requests, quotas and the nodes' room",
    ))
}

/// Reports pods of Porch's evaluators that no running evaluator of this namespace may use. Only
/// --clean-legacy searches for evaluators in other namespaces.
pub(super) fn leftovers(facts: &Facts, report: &mut Report) {
    let pods = facts.function_pods.as_deref().unwrap_or_default();
    let count = legacy::leftovers(pods, &[], &facts.servers).pods.len();
    let mut originals = facts.installed.originals.iter();
    if count > 0 && !originals.any(|original| original.pods > 0 && evaluator_of(original).is_some()) {
        report.info(
            format!("{count} pods of Porch's evaluators in {} are unused", facts.functions),
            format!("list and delete them: porch-fn doctor --clean-legacy -n {}", facts.namespace),
        );
    }
}
