//! Builds the pod and the Service of a function from a template.
//!
//! In the pod, the runner changes only the function's container. A FunctionConfig may also change
//! the first container and the first init container. Everything else in a template, such as
//! sidecars, belongs to the user.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, LocalObjectReference, ObjectFieldSelector, Pod, PodSecurityContext,
    PodSpec, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use porch_fn_image::{Image, pod_name};
use porch_fn_pool::{PodName, PodRecipe, ShardKey, Time, Uid};
use porch_fn_settings::{ContainerOverrides, PodOverrides};
use serde_json::Value;

use super::names;
use super::template::{Source, Template};
use super::times::format_time;
use crate::pods::images::ImageMetadata;

/// One pod to create.
pub(super) struct PodOrder<'a> {
    /// The result of [`object_name`] for `name`.
    pub(super) object_name: &'a str,
    pub(super) name: &'a PodName,
    pub(super) shard_key: &'a ShardKey,
    pub(super) reclaim_after: Time,
    pub(super) metadata: &'a ImageMetadata,
    /// With `--pod-announce`: the runner's address, and the pod's token.
    pub(super) announce: Option<(&'a str, &'a str)>,
}

/// What flags and settings add to the template's pod.
#[derive(Debug, Clone)]
pub(super) struct Extras<'a> {
    pub(super) recipe: PodRecipe,
    /// Largest message that the wrapper-server accepts, in bytes.
    pub(super) max_message: usize,
    /// These override the template.
    pub(super) overrides: PodOverrides,
    /// A pull secret in addition to those of the template.
    pub(super) pull_secret: Option<&'a str>,
    /// Whether the wrapper-server gets `--log-format=json`.
    pub(super) json_log: bool,
}

/// Builds the pod of `order`.
pub(super) fn pod(template: &Template, order: &PodOrder<'_>, extras: &Extras<'_>) -> Pod {
    let inherited = template.pod.metadata.clone().unwrap_or_default();
    let mut labels = inherited.labels.unwrap_or_default();
    labels.insert(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned());
    labels.insert(names::IMAGE.to_owned(), order.object_name.to_owned());
    let mut spec = template.pod.spec.clone();
    if let Some(spec) = &mut spec {
        patch_pod(spec, template.source, order, extras);
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(order.object_name.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations(inherited.annotations.unwrap_or_default(), order, &extras.recipe)),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// Builds the Service of the pod with that name and UID. Kubernetes deletes it with the pod.
pub(super) fn service(template: &Template, pod_name: &str, pod_uid: &str) -> Service {
    let inherited = template.service.metadata.clone();
    let mut labels = inherited.labels.unwrap_or_default();
    labels.insert(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned());
    let mut spec = template.service.spec.clone().unwrap_or_default();
    // Without this label the Service would also select pods of other functions.
    spec.selector.get_or_insert_default().insert(names::IMAGE.to_owned(), pod_name.to_owned());
    Service {
        metadata: ObjectMeta {
            name: Some(pod_name.to_owned()),
            labels: Some(labels),
            annotations: inherited.annotations,
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod_name.to_owned(),
                uid: pod_uid.to_owned(),
                controller: Some(false),
                block_owner_deletion: Some(false),
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// Longest annotation with an entrypoint, in bytes. All annotations of a pod together may have
/// 256 KiB.
const MAX_ENTRYPOINT: usize = 16 * 1024;

/// Returns the name of the pod and of its Service; `None` if the image is not a valid reference.
pub(super) fn object_name(name: &PodName) -> Option<String> {
    // A canonical reference contains its registry, so no prefix is added.
    let image = Image::parse(name.image.as_str(), "").ok()?;
    Some(pod_name(&image, name.slot, name.past.as_ref().map_or("", Uid::as_str)))
}

fn patch_pod(spec: &mut PodSpec, source: Source, order: &PodOrder<'_>, extras: &Extras<'_>) {
    let overrides = &extras.overrides;
    if let Some(account) = &overrides.service_account {
        spec.service_account_name = Some(account.clone());
        if source == Source::Inline {
            // Users set a service account to get its token in the pod. The built-in template
            // disables the mount of the token, so remove that setting.
            spec.automount_service_account_token = None;
        }
    }
    if let Some(context) = &overrides.security_context {
        let below = spec.security_context.take().unwrap_or_default();
        spec.security_context = Some(merged(&below, context));
    }
    if let Some(secret) = extras.pull_secret {
        let secrets = spec.image_pull_secrets.get_or_insert_default();
        if secrets.iter().all(|known| known.name != secret) {
            secrets.push(LocalObjectReference { name: secret.to_owned() });
        }
    }
    let mut first_overrides = overrides.container.clone();
    let resources = if overrides.resources_of_function { first_overrides.resources.take() } else { None };
    let named = |container: &&mut Container| container.name == names::CONTAINER;
    if let Some(container) = spec.containers.iter_mut().find(named) {
        patch_function(container, order, extras);
        container.resources = resources.or_else(|| container.resources.take());
    }
    let (init, first) = overridden(spec, source);
    if let Some(init) = init {
        patch_container(init, &overrides.init_container);
    }
    if let Some(first) = first {
        patch_container(first, &first_overrides);
    }
}

/// Returns the containers to which templateOverrides' `initContainer` and `container` apply. In a
/// user's template these are the first init container and the first container, as in Porch. The
/// built-in template has no init container: there, `initContainer` applies to the container with
/// the wrapper-server.
fn overridden(spec: &mut PodSpec, source: Source) -> (Option<&mut Container>, Option<&mut Container>) {
    match (source, spec.containers.as_mut_slice()) {
        (Source::Inline, [wrapper, function, ..]) => (Some(wrapper), Some(function)),
        (_, containers) => {
            let init = spec.init_containers.as_mut().and_then(|containers| containers.first_mut());
            (init, containers.first_mut())
        }
    }
}

fn patch_function(container: &mut Container, order: &PodOrder<'_>, extras: &Extras<'_>) {
    let image = &order.name.image;
    container.image = Some(match &order.metadata.content {
        // The tag is only for human readers: the kubelet pulls the image by its digest.
        Some(content) => format!("{image}@{}", content.digest),
        None => image.to_string(),
    });
    let has_policy = container.image_pull_policy.as_deref().is_some_and(|policy| !policy.is_empty());
    if !has_policy && container.image.as_deref().is_some_and(|image| image.contains('@')) {
        // For the tag `latest` the API server's default policy is Always, even with a digest. The
        // content of a digest never changes.
        container.image_pull_policy = Some("IfNotPresent".to_owned());
    }
    if let Some((runner, token)) = order.announce {
        let variable = |name: &str, value: Option<&str>| {
            let value = value.map(str::to_owned);
            EnvVar { name: name.to_owned(), value, value_from: None }
        };
        let mut address = variable(names::ANNOUNCE_ADDRESS, None);
        let field = ObjectFieldSelector { api_version: None, field_path: "status.podIP".to_owned() };
        address.value_from = Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() });
        let to = variable(names::ANNOUNCE_TO, Some(runner));
        let token = variable(names::ANNOUNCE_TOKEN, Some(token));
        container.env.get_or_insert_default().extend([to, token, address]);
    }
    let args = container.args.get_or_insert_default();
    args.extend(["--port".to_owned(), names::PORT.to_string()]);
    args.extend(["--max-request-body-size".to_owned(), extras.max_message.to_string()]);
    args.extend(extras.json_log.then(|| "--log-format=json".to_owned()));
    args.push("--".to_owned());
    // The kubelet would expand $(NAME) in an entrypoint's arguments. It does not expand "$$(NAME)",
    // and passes "$$" on as "$".
    args.extend(order.metadata.entrypoint.iter().map(|arg| arg.replace('$', "$$")));
}

/// An override replaces the template's variable with the same name, at the same position.
fn patch_container(container: &mut Container, overrides: &ContainerOverrides) {
    for variable in &overrides.env {
        let variables = container.env.get_or_insert_default();
        match variables.iter_mut().find(|known| known.name == variable.name) {
            Some(known) => *known = variable.clone(),
            None => variables.push(variable.clone()),
        }
    }
    if !overrides.env_from.is_empty() {
        container.env_from.get_or_insert_default().extend_from_slice(&overrides.env_from);
    }
    if let Some(resources) = &overrides.resources {
        container.resources = Some(resources.clone());
    }
}

/// Returns the fields of `above`, and the fields of `below` that `above` does not set.
fn merged(below: &PodSecurityContext, above: &PodSecurityContext) -> PodSecurityContext {
    let value = |context: &PodSecurityContext| serde_json::to_value(context).unwrap_or_default();
    let mut fields = value(below);
    if let (Value::Object(fields), Value::Object(above_fields)) = (&mut fields, value(above)) {
        fields.extend(above_fields);
    }
    serde_json::from_value(fields).unwrap_or_else(|_| above.clone())
}

fn annotations(
    mut annotations: BTreeMap<String, String>,
    order: &PodOrder<'_>,
    recipe: &PodRecipe,
) -> BTreeMap<String, String> {
    let PodRecipe { version, config_time, content } = recipe;
    let entrypoint = serde_json::to_string(&order.metadata.entrypoint).ok();
    for (key, value) in [
        (names::IMAGE_REFERENCE, Some(order.name.image.to_string())),
        (names::SLOT, Some(order.name.slot.to_string())),
        (names::PAST, order.name.past.as_ref().map(ToString::to_string)),
        (names::SHARD_KEY, Some(order.shard_key.to_string())),
        (names::TEMPLATE_VERSION, Some(version.to_string())),
        (names::CONFIG_TIME, config_time.map(format_time)),
        (names::IMAGE_DIGEST, content.as_ref().map(|content| content.digest.to_string())),
        (names::RESOLVED_AT, content.as_ref().and_then(|content| content.resolved).map(format_time)),
        (names::ENTRYPOINT, entrypoint.filter(|text| text.len() <= MAX_ENTRYPOINT)),
        (names::RECLAIM_AFTER, Some(format_time(order.reclaim_after))),
    ] {
        // The template may be a copy of a function pod, with that pod's annotations. Remove an
        // annotation for which the new pod has no value.
        match value {
            Some(value) => annotations.insert(key.to_owned(), value),
            None => annotations.remove(key),
        };
    }
    annotations
}
