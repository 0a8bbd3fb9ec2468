//! The contract between a template and the runner. The errors of [`check_pod`] state its four
//! points.

use std::path::Path;

use k8s_openapi::api::core::v1::{PodTemplateSpec, Service};

use crate::names;

/// Checks the contract's four points, in order. `part` names the text or object at fault.
pub(super) fn check_pod(part: &str, pod: &PodTemplateSpec, warnings: &mut Vec<String>) -> Result<(), String> {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let container = containers.find(|container| container.name == names::CONTAINER).ok_or_else(|| {
        format!(
            "{part}: no container is named \"function\" (point 1 of the contract): give that name to the \
             container that runs functions, under spec.containers"
        )
    })?;
    let program = container.command.iter().flatten().next().ok_or_else(|| {
        format!(
            "{part}: container \"function\" has no command, so the function image's own entrypoint would run \
             instead of the wrapper-server (point 2 of the contract): write `command: \
             [/wrapper-server-tools/wrapper-server]`, or the path where the wrapper-server is mounted"
        )
    })?;
    if !program.starts_with('/') {
        return Err(format!(
            "{part}: the command of container \"function\" begins with {program:?}, which depends on the \
             image, and the runner replaces the image with the function's (point 3 of the contract): write the \
             absolute path of a program in a volume that the container mounts, such as /wrapper-server-tools/wrapper-server"
        ));
    }
    let mut mounts = container.volume_mounts.iter().flatten();
    if !mounts.any(|mount| Path::new(program).starts_with(&mount.mount_path)) {
        warnings.push(format!(
            "{part}: {program:?}, the command of container \"function\", is in no volume that the \
             container mounts: function images without this program cannot start"
        ));
    }
    if container.args.iter().flatten().any(|arg| arg == "--") {
        return Err(format!(
            "{part}: the args of container \"function\" contain \"--\", after which all args belong to the \
             function, so the runner cannot append args (point 4 of the contract): remove it; the runner \
             appends it with the function's entrypoint"
        ));
    }
    Ok(())
}

/// Checks that a Service of this template would select a pod of this template.
pub(super) fn check_service(
    part: &str,
    service: &Service,
    pod: &PodTemplateSpec,
    warnings: &mut Vec<String>,
) -> Result<(), String> {
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
        return Err(format!(
            "{part}: a Service of type ExternalName selects no pods: write `type: ClusterIP`"
        ));
    }
    let mut ports = spec.iter().flat_map(|spec| &spec.ports).flatten();
    let is_tcp = |protocol: &Option<String>| protocol.as_deref().unwrap_or("TCP") == "TCP";
    if !ports.any(|port| port.port == i32::from(names::PORT) && is_tcp(&port.protocol)) {
        return Err(format!(
            "{part}: the Service has no TCP port 9446, which the runner calls: write `port: 9446` and \
             `targetPort: 9446` under spec.ports"
        ));
    }
    let labels = pod.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    for (key, value) in spec.iter().flat_map(|spec| &spec.selector).flatten() {
        let is_ours = key == names::IMAGE || (key == names::MANAGED_BY && value == names::MANAGER);
        if !is_ours && labels.and_then(|labels| labels.get(key)) != Some(value) {
            warnings.push(format!(
                "{part}: the selector needs the label {key}={value:?}, which the pod template does not have: unless \
                 something else labels the pods, the Service selects no pods"
            ));
        }
    }
    Ok(())
}
