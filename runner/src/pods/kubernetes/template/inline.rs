//! The templates that come with the runner.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, ExecAction, GRPCAction, Lifecycle, LifecycleHandler,
    PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile,
    SecurityContext, Service, ServicePort, ServiceSpec, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::pods::kubernetes::names;

/// Stands where each pod gets its own value. The API server accepts neither as it is.
const PLACEHOLDER: &str = "to-be-replaced";
/// The volume that carries the wrapper-server over into the function's container.
const TOOLS: &str = "wrapper-server-tools";
/// Where both containers see it.
const TOOLS_PATH: &str = "/wrapper-server-tools";
/// The wrapper-server inside its own image. Porch's image has it at this path up to v1.5 and under /home/nonroot
/// since, and knows neither of the two flags: it is for templates of the user's, with an init container.
const WRAPPER: &str = "/wrapper-server/wrapper-server";

/// The wrapper-server is copied by a container that runs beside the function's and not by an init container. After
/// one of those the kubelet synchronises the pod once more before it goes on, which a cold start has no time for.
/// The kubelet starts containers in order and waits for a postStart hook: so the copy is there when `function` starts.
pub(super) fn pod(wrapper_image: &str) -> PodTemplateSpec {
    let safe_to_evict = ("cluster-autoscaler.kubernetes.io/safe-to-evict".to_owned(), "true".to_owned());
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            annotations: Some(BTreeMap::from([safe_to_evict])),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(PodSecurityContext {
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            containers: vec![wrapper(wrapper_image), function()],
            volumes: Some(vec![Volume {
                name: TOOLS.to_owned(),
                empty_dir: Some(EmptyDirVolumeSource::default()),
                ..Volume::default()
            }]),
            ..PodSpec::default()
        }),
    }
}

/// `unready`: the Service leads to its pod before the kubelet has found the pod ready, since the runner asks itself.
pub(super) fn service(unready: bool) -> Service {
    let port = i32::from(names::PORT);
    Service {
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            ports: Some(vec![ServicePort {
                port,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::Int(port)),
                ..ServicePort::default()
            }]),
            publish_not_ready_addresses: unready.then_some(true),
            selector: Some(BTreeMap::from([(names::IMAGE.to_owned(), PLACEHOLDER.to_owned())])),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn wrapper(image: &str) -> Container {
    let copy = vec![WRAPPER.to_owned(), format!("--copy-to={TOOLS_PATH}")];
    Container {
        name: names::WRAPPER_CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        command: Some(vec![WRAPPER.to_owned(), "--idle".to_owned()]),
        lifecycle: Some(Lifecycle {
            post_start: Some(LifecycleHandler {
                exec: Some(ExecAction { command: Some(copy) }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        resources: Some(ResourceRequirements {
            requests: Some(quantities(&[("cpu", "1m"), ("memory", "8Mi")])),
            limits: Some(quantities(&[("memory", "32Mi")])),
            ..ResourceRequirements::default()
        }),
        ..hardened()
    }
}

fn function() -> Container {
    Container {
        name: names::CONTAINER.to_owned(),
        image: Some(PLACEHOLDER.to_owned()),
        command: Some(vec![format!("{TOOLS_PATH}/wrapper-server")]),
        readiness_probe: Some(Probe {
            grpc: Some(GRPCAction { port: i32::from(names::PORT), ..GRPCAction::default() }),
            ..Probe::default()
        }),
        // The function must not change what runs it.
        volume_mounts: Some(vec![VolumeMount { read_only: Some(true), ..tools() }]),
        ..hardened()
    }
}

fn tools() -> VolumeMount {
    VolumeMount { name: TOOLS.to_owned(), mount_path: TOOLS_PATH.to_owned(), ..VolumeMount::default() }
}

/// What both containers have in common.
fn hardened() -> Container {
    Container {
        image_pull_policy: Some("IfNotPresent".to_owned()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        // The end of the log is how a crash is explained: the runner may not read logs.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![tools()]),
        ..Container::default()
    }
}

fn quantities(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    pairs.iter().map(|&(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).collect()
}
