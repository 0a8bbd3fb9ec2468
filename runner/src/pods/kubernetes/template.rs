//! Templates of pods and Services: the built-in one, a ConfigMap of the user's, or the objects of
//! newer Porch.
//!
//! A template that cannot work is refused when it is read, with the point of the contract that it
//! breaks. Without that check its pods would never become ready.

mod contract;
#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodTemplate, PodTemplateSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use porch_fn_pool::Time;
use porch_fn_settings::yaml;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::{names, times};
use contract::{check_pod, check_service};

/// Largest text that is read, in bytes: no ConfigMap holds more.
const MAX_BYTES: usize = 1024 * 1024;
const BUILT_IN_POD: &str = include_str!("template/pod.yaml");
const DOCUMENTED_SERVICE: &str = include_str!("template/service.yaml");

/// What pods and their Services are made from. It keeps the contract, and of metadata it has labels
/// and annotations only.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Template {
    pub(crate) pod: PodTemplateSpec,
    pub(crate) service: Service,
    pub(crate) source: Source,
    /// Whether the Service is made after newer Porch's ServiceTemplate.
    pub(crate) service_of_object: bool,
    /// When it was last changed; `None` for the built-in one. The reader of a ConfigMap sets it, by
    /// [`changed_at`].
    pub(crate) time: Option<Time>,
    /// What the user should fix although it works.
    pub(crate) warnings: Vec<String>,
    /// A hash over `pod` and `service`: equal on all runners, and no secret.
    pub(crate) hash: u64,
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

// === impl Template ===

impl Template {
    /// The built-in one, with the wrapper-server from `wrapper_image`.
    pub(crate) fn built_in(wrapper_image: &str) -> Result<Self, String> {
        let mut pod: PodTemplateSpec = yaml::parse(BUILT_IN_POD)?;
        let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
        for wrapper in containers.filter(|container| container.name == names::WRAPPER_CONTAINER) {
            wrapper.image = Some(wrapper_image.to_owned());
        }
        let mut service: Service = yaml::parse(DOCUMENTED_SERVICE)?;
        if let Some(spec) = &mut service.spec {
            // The runner itself finds out whether the pod serves, before the kubelet does.
            spec.publish_not_ready_addresses = Some(true);
        }
        Self::new(Source::Inline, pod, service, Vec::new())
    }

    /// From the data of the ConfigMap that `--function-pod-template` names: a Pod under `template`
    /// and, unless the documented one will do, a Service under `serviceTemplate`.
    pub(crate) fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut warnings = Vec::new();
        let missing = "key template: the key is missing: put a Pod there, as YAML";
        let pod: Pod = read_object("key template", data.get("template").ok_or(missing)?, &mut warnings)?;
        let service = match data.get("serviceTemplate") {
            Some(text) => read_object("key serviceTemplate", text, &mut warnings)?,
            None => yaml::parse(DOCUMENTED_SERVICE)?,
        };
        let pod = PodTemplateSpec { metadata: Some(pod.metadata), spec: pod.spec };
        Self::new(Source::ConfigMap, pod, service, warnings)
    }

    /// From newer Porch's objects. Without a ServiceTemplate the Service is the documented one.
    pub(crate) fn from_objects(
        pod_template: &PodTemplate,
        service_template: Option<&Value>,
    ) -> Result<Self, String> {
        let mut time = changed_at(&pod_template.metadata);
        let service = match service_template {
            Some(value) => {
                let failed = |error: serde_json::Error| format!("ServiceTemplate: {error}");
                let metadata: Option<ObjectMeta> =
                    Deserialize::deserialize(&value["metadata"]).map_err(failed)?;
                time = time.max(changed_at(&metadata.unwrap_or_default()));
                let service: Option<Service> =
                    Deserialize::deserialize(&value["template"]).map_err(failed)?;
                service.unwrap_or_default()
            }
            None => yaml::parse(DOCUMENTED_SERVICE)?,
        };
        let pod = pod_template.template.clone().unwrap_or_default();
        let template = Self::new(Source::PodTemplate, pod, service, Vec::new())?;
        Ok(Self { time, service_of_object: service_template.is_some(), ..template })
    }

    fn new(
        source: Source,
        mut pod: PodTemplateSpec,
        mut service: Service,
        mut warnings: Vec<String>,
    ) -> Result<Self, String> {
        pod.metadata = pod.metadata.map(labels_and_annotations);
        service.metadata = labels_and_annotations(service.metadata);
        service.status = None;
        if let Some(spec) = &mut service.spec {
            // The address of one Service, in a template made from it; "None" is a choice.
            spec.cluster_ip.take_if(|address| address != "None");
            spec.cluster_ips = None;
        }
        let (pod_part, service_part) = match source {
            Source::ConfigMap => ("key template", "key serviceTemplate"),
            Source::Inline | Source::PodTemplate => ("PodTemplate", "ServiceTemplate"),
        };
        check_pod(pod_part, &pod, &mut warnings)?;
        check_service(service_part, &service, &pod, &mut warnings)?;
        let mut content = serde_json::json!([pod, service]);
        // The order of fields is not part of what a template says.
        content.sort_all_objects();
        let hash = xxh3_64(content.to_string().as_bytes());
        Ok(Self { pod, service, source, service_of_object: false, time: None, warnings, hash })
    }

    /// The version of a pod that is made from the template and `made_with`, whatever else goes into
    /// it.
    pub(crate) fn version(&self, made_with: &[u8]) -> String {
        let bytes = [&self.hash.to_le_bytes(), made_with].concat();
        let source = match self.source {
            Source::Inline => "inline",
            Source::ConfigMap => "configmap",
            Source::PodTemplate => "podtemplate",
        };
        format!("{source}-{:016x}", xxh3_64(&bytes))
    }
}

/// Reads one object of a ConfigMap straight into its type: so a mistake has its line and column,
/// and a plain scalar such as `1.10` is a string where a string belongs. Labels and annotations
/// beside the metadata, as in the documented example, are moved there with a warning.
fn read_object<K>(part: &str, text: &str, warnings: &mut Vec<String>) -> Result<K, String>
where
    K: DeserializeOwned + Resource + Metadata<Ty = ObjectMeta>,
{
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Head {
        kind: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
    }
    if text.len() > MAX_BYTES {
        return Err(format!("{part}: {} bytes are more than the {MAX_BYTES} that are read", text.len()));
    }
    let failed = |reason| format!("{part}: {reason}");
    let head: Head = yaml::parse::<Option<Head>>(text).map_err(failed)?.unwrap_or_default();
    let (kind, expected) = (head.kind.unwrap_or_default(), K::KIND);
    if kind != expected {
        return Err(format!("{part}: its kind is {kind:?}: write `apiVersion: v1` and `kind: {expected}`"));
    }
    let mut object: K = yaml::parse(text).map_err(failed)?;
    let metadata = object.metadata_mut();
    for (field, misplaced, place) in [
        ("labels", head.labels, &mut metadata.labels),
        ("annotations", head.annotations, &mut metadata.annotations),
    ] {
        let Some(mut misplaced) = misplaced else { continue };
        warnings.push(format!(
            "{part}: {field} stand beside metadata and count as if they stood in it: move them under metadata"
        ));
        misplaced.extend(place.take().unwrap_or_default());
        *place = Some(misplaced);
    }
    Ok(object)
}

/// When an object was last changed, as far as its metadata tells.
pub(crate) fn changed_at(metadata: &ObjectMeta) -> Option<Time> {
    let changes = metadata.managed_fields.iter().flatten().filter_map(|entry| entry.time.as_ref());
    let times = metadata.creation_timestamp.iter().chain(changes);
    times.filter_map(|time| times::from_timestamp(time.0)).max()
}

/// What pods inherit of a template's metadata: a name or uid is the object's own.
fn labels_and_annotations(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta { labels: metadata.labels, annotations: metadata.annotations, ..ObjectMeta::default() }
}
