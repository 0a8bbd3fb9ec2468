//! The contract between a template and the runner.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec, Service};

use super::{Part, TemplateError};
use crate::pods::kubernetes::names;

/// The contract's four points, in order.
pub(super) fn pod(
    part: Part,
    pod: &PodTemplateSpec,
    warnings: &mut Vec<String>,
) -> Result<(), TemplateError> {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let Some(container) = containers.find(|container| container.name == names::CONTAINER) else {
        return Err(TemplateError::NoFunctionContainer { part });
    };
    let Some(program) = container.command.iter().flatten().next() else {
        return Err(TemplateError::NoCommand { part });
    };
    if !program.starts_with('/') {
        return Err(TemplateError::CommandOfImage { part, program: program.clone() });
    }
    if !mounted(container, program) {
        warnings.push(format!(
            "{part}: {program:?}, the command of container \"function\", is in no volume mounted there: \
             function images without it cannot start"
        ));
    }
    if container.args.iter().flatten().any(|arg| arg == "--") {
        return Err(TemplateError::ArgsEnded { part });
    }
    Ok(())
}

/// Whether a Service of this template would lead to a pod of this template.
pub(super) fn service(
    part: Part,
    service: &Service,
    pod: &PodTemplateSpec,
    warnings: &mut Vec<String>,
) -> Result<(), TemplateError> {
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
        return Err(TemplateError::ExternalName { part });
    }
    let mut ports = spec.iter().flat_map(|spec| &spec.ports).flatten();
    let tcp = |protocol: &Option<String>| protocol.as_deref().unwrap_or("TCP") == "TCP";
    if !ports.any(|port| port.port == i32::from(names::PORT) && tcp(&port.protocol)) {
        return Err(TemplateError::NoPort { part });
    }
    let labels = pod.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    for (key, value) in spec.iter().flat_map(|spec| &spec.selector).flatten() {
        let ours = key == names::IMAGE || (key == names::MANAGED_BY && value == names::MANAGER);
        if !ours && labels.and_then(|labels| labels.get(key)) != Some(value) {
            warnings.push(format!(
                "{part}: the selector asks for {key}={value:?}, which the pod template has not among its \
                 labels: unless something else labels the pods, the Service leads nowhere"
            ));
        }
    }
    Ok(())
}

fn mounted(container: &Container, program: &str) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| Path::new(program).starts_with(&mount.mount_path))
}
