//! Templates of pods and Services: the runner's own, a ConfigMap of the user's, or the objects of newer Porch.
//!
//! A template that cannot work is refused when it is read, with the point of the contract that it breaks. Found
//! out from a pod it would be a function that never becomes ready.

mod check;
mod inline;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Pod, PodTemplate, PodTemplateSpec, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use porch_fn_pool::Time;
use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::times;

/// The PodTemplate that newer Porch keeps in the function namespace: the default of
/// `--base-pod-template-name`.
pub const BASE_POD_TEMPLATE: &str = "base-pod-template";
/// The ServiceTemplate beside it: the default of `--base-service-template-name`.
pub const BASE_SERVICE_TEMPLATE: &str = "base-service-template";

/// Largest text that is read, in bytes: no ConfigMap holds more.
const MAX_BYTES: usize = 1024 * 1024;

/// What pods and their Services are made from.
///
/// Metadata is labels and annotations and nothing else; the pod has a container of the name that the contract asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Template {
    pub(crate) pod: PodTemplateSpec,
    pub(crate) service: Service,
    pub(crate) source: Source,
    /// Whether the Service is made after newer Porch's ServiceTemplate.
    pub(crate) service_of_object: bool,
    /// When it was last changed; `None` for the one that comes with the runner. Of a ConfigMap it is the reader's
    /// to fill in, with [`changed_at`].
    pub(crate) time: Option<Time>,
    /// What the user should mend although it works.
    pub(crate) warnings: Vec<String>,
}

/// See [`Template::fingerprint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    source: Source,
    hash: u64,
}

/// Where a template comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The runner itself.
    Inline,
    /// The ConfigMap that `--function-pod-template` names.
    ConfigMap,
    /// The object that `--base-pod-template-name` names.
    PodTemplate,
}

/// The text or object at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// `template` in the ConfigMap.
    PodKey,
    /// `serviceTemplate` in the ConfigMap.
    ServiceKey,
    /// The object that `--base-pod-template-name` names.
    PodTemplate,
    /// The object that `--base-service-template-name` names.
    ServiceTemplate,
}

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    /// The ConfigMap says nothing about pods.
    #[error("{part}: the key is missing: put a Pod there, as YAML", part = Part::PodKey)]
    Missing,
    /// Longer than any ConfigMap.
    #[error("{part}: {size} bytes are more than the {MAX_BYTES} that are read")]
    TooLarge {
        /// Where.
        part: Part,
        /// Its length.
        size: usize,
    },
    /// Not YAML, or not of the right shape.
    #[error("{part}: {reason}")]
    Parse {
        /// Where.
        part: Part,
        /// One line, with line and column where there is a text.
        reason: String,
    },
    /// Another kind of object.
    #[error("{part}: its kind is {found:?}: write `apiVersion: v1` and `kind: {expected}`")]
    Kind {
        /// Where.
        part: Part,
        /// What should be there.
        expected: &'static str,
        /// What is there; empty without a kind.
        found: String,
    },
    /// Point 1 of the contract.
    #[error(
        "{part}: no container is named \"function\" (point 1 of the contract): give that name to the \
         container that is to run functions, under spec.containers"
    )]
    NoFunctionContainer {
        /// Where.
        part: Part,
    },
    /// Point 2 of the contract.
    #[error(
        "{part}: container \"function\" has no command, so the function image's own entrypoint would run \
         instead of the wrapper-server (point 2 of the contract): write `command: \
         [/wrapper-server-tools/wrapper-server]`, or where else the wrapper-server is mounted"
    )]
    NoCommand {
        /// Where.
        part: Part,
    },
    /// Point 3 of the contract.
    #[error(
        "{part}: the command of container \"function\" begins with {program:?}, which depends on the \
         image, and the image is replaced by the function's (point 3 of the contract): write the absolute \
         path of a program in a volume mounted there, such as /wrapper-server-tools/wrapper-server"
    )]
    CommandOfImage {
        /// Where.
        part: Part,
        /// The command's first word.
        program: String,
    },
    /// Point 4 of the contract.
    #[error(
        "{part}: the args of container \"function\" hold \"--\", after which everything belongs to the \
         function, so none can be appended (point 4 of the contract): remove it; the runner appends it \
         with the function's entrypoint"
    )]
    ArgsEnded {
        /// Where.
        part: Part,
    },
    /// A Service that leads elsewhere.
    #[error("{part}: a Service of type ExternalName leads to no pod: write `type: ClusterIP`")]
    ExternalName {
        /// Where.
        part: Part,
    },
    /// A Service on another port.
    #[error(
        "{part}: the Service has no TCP port 9446, which is where the runner calls: write `port: 9446` and \
         `targetPort: 9446` under spec.ports"
    )]
    NoPort {
        /// Where.
        part: Part,
    },
}

// === impl Template ===

impl Template {
    /// The runner's own, with the wrapper-server from `wrapper_image`.
    pub(crate) fn inline(wrapper_image: &str) -> Self {
        Self {
            pod: inline::pod(wrapper_image),
            service: inline::service(true),
            source: Source::Inline,
            service_of_object: false,
            time: None,
            warnings: Vec::new(),
        }
    }

    /// From the data of the ConfigMap that `--function-pod-template` names: a Pod under `template` and, if the
    /// documented one will not do, a Service under `serviceTemplate`.
    pub(crate) fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, TemplateError> {
        let mut warnings = Vec::new();
        let text = data.get("template").ok_or(TemplateError::Missing)?;
        let pod: Pod = read::object(Part::PodKey, text, &mut warnings)?;
        let service = match data.get("serviceTemplate") {
            Some(text) => read::object(Part::ServiceKey, text, &mut warnings)?,
            None => inline::service(false),
        };
        let template = Self {
            pod: PodTemplateSpec { metadata: Some(pod.metadata), spec: pod.spec },
            service,
            source: Source::ConfigMap,
            service_of_object: false,
            time: None,
            warnings,
        };
        template.checked(Part::PodKey, Part::ServiceKey)
    }

    /// From newer Porch's objects. Without a ServiceTemplate the Service is the documented one.
    pub(crate) fn from_objects(
        pod_template: &PodTemplate,
        service_template: Option<&Value>,
    ) -> Result<Self, TemplateError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct ServiceTemplate {
            metadata: ObjectMeta,
            template: Option<ServiceTemplateSpec>,
        }

        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct ServiceTemplateSpec {
            metadata: Option<ObjectMeta>,
            spec: Option<ServiceSpec>,
        }

        let mut time = changed_at(&pod_template.metadata);
        let service = match service_template {
            Some(value) => {
                let object = ServiceTemplate::deserialize(value).map_err(|error| TemplateError::Parse {
                    part: Part::ServiceTemplate,
                    reason: error.to_string(),
                })?;
                time = time.max(changed_at(&object.metadata));
                let ServiceTemplateSpec { metadata, spec } = object.template.unwrap_or_default();
                Service { metadata: metadata.unwrap_or_default(), spec, status: None }
            }
            None => inline::service(false),
        };
        let template = Self {
            pod: pod_template.template.clone().unwrap_or_default(),
            service,
            source: Source::PodTemplate,
            service_of_object: service_template.is_some(),
            time,
            warnings: Vec::new(),
        };
        template.checked(Part::PodTemplate, Part::ServiceTemplate)
    }

    /// What pods are made from, condensed. Equal on all runners, and no secret.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut content = serde_json::json!([self.pod, self.service]);
        // The order of fields is not part of what a template says.
        content.sort_all_objects();
        Fingerprint { source: self.source, hash: xxh3_64(content.to_string().as_bytes()) }
    }

    fn checked(mut self, pod: Part, service: Part) -> Result<Self, TemplateError> {
        self.pod.metadata = self.pod.metadata.map(labels_and_annotations);
        self.service.metadata = labels_and_annotations(self.service.metadata);
        self.service.status = None;
        if let Some(spec) = &mut self.service.spec {
            // The address of one Service, in a template made from it; "None" is a choice.
            spec.cluster_ip.take_if(|address| address != "None");
            spec.cluster_ips = None;
        }
        check::pod(pod, &self.pod, &mut self.warnings)?;
        check::service(service, &self.service, &self.pod, &mut self.warnings)?;
        Ok(self)
    }
}

/// When an object was last changed, as far as its metadata tells.
pub(crate) fn changed_at(metadata: &ObjectMeta) -> Option<Time> {
    let changes = metadata.managed_fields.iter().flatten().filter_map(|entry| entry.time.as_ref());
    let times = metadata.creation_timestamp.iter().chain(changes);
    times.filter_map(|time| times::from_timestamp(time.0)).max()
}

/// What of a template's metadata its pods inherit: a name or uid is the object's own.
fn labels_and_annotations(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta { labels: metadata.labels, annotations: metadata.annotations, ..ObjectMeta::default() }
}

// === impl Fingerprint ===

impl Fingerprint {
    /// The version of a pod that is made from the template and `made_with`, whatever else goes into it.
    pub(crate) fn version(self, made_with: &[u8]) -> String {
        let bytes = [&self.hash.to_le_bytes(), made_with].concat();
        format!("{}-{:016x}", self.source, xxh3_64(&bytes))
    }
}

// === impl Source ===

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inline => "inline",
            Self::ConfigMap => "configmap",
            Self::PodTemplate => "podtemplate",
        })
    }
}

// === impl Part ===

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodKey => f.write_str("key template"),
            Self::ServiceKey => f.write_str("key serviceTemplate"),
            Self::PodTemplate => f.write_str("PodTemplate"),
            Self::ServiceTemplate => f.write_str("ServiceTemplate"),
        }
    }
}
