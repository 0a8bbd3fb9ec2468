//! Templates of pods and Services: the built-in template, a user's ConfigMap, or the objects of
//! newer Porch.
//!
//! When the runner reads a template, it checks the contract in `template/contract.rs`. It refuses
//! an invalid template, and names the violated point of the contract. Pods of such a template would
//! never become ready.

mod contract;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodTemplate, PodTemplateSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use kube::api::DynamicObject;
use porch_fn_pool::Time;
use porch_fn_settings::yaml;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use crate::{names, times};
use contract::{check_pod, check_service};

const BUILT_IN_POD: &str = include_str!("template/pod.yaml");
const DOCUMENTED_SERVICE: &str = include_str!("template/service.yaml");

/// A template of pods and their Services. It fulfils the contract. Its metadata has only labels and
/// annotations.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// The pod, without what the runner adds for a function.
    pub pod: PodTemplateSpec,
    /// The pod's Service.
    pub service: Service,
    /// Where the template comes from.
    pub source: Source,
    /// Whether the Service comes from newer Porch's ServiceTemplate.
    pub service_of_object: bool,
    /// When the template last changed; `None` for the built-in template.
    /// [`Template::from_config_map`] leaves it `None`, and the caller sets it.
    pub time: Option<Time>,
    /// Problems that the user should fix although the template works.
    pub warnings: Vec<String>,
    /// A hash of `pod` and `service`, equal on all runners. It does not disclose their content.
    pub hash: u64,
}

/// Where a template comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The built-in template.
    Inline,
    /// The ConfigMap that `--function-pod-template` names.
    ConfigMap,
    /// The object that `--base-pod-template-name` names.
    PodTemplate,
}

// === impl Template ===

impl Template {
    /// The built-in template, with the wrapper-server from `wrapper_image`.
    pub fn built_in(wrapper_image: &str) -> Result<Self, String> {
        let mut pod: PodTemplateSpec = yaml::parse(BUILT_IN_POD)?;
        let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
        for wrapper in containers.filter(|container| container.name == names::WRAPPER_CONTAINER) {
            wrapper.image = Some(wrapper_image.to_owned());
        }
        let mut service: Service = yaml::parse(DOCUMENTED_SERVICE)?;
        if let Some(spec) = &mut service.spec {
            // Do not wait until the kubelet reports the pod as ready: the runner's own probe
            // detects earlier that the pod serves.
            spec.publish_not_ready_addresses = Some(true);
        }
        Self::new(Source::Inline, pod, service, Vec::new())
    }

    /// Parses the data of the ConfigMap that `--function-pod-template` names: a Pod under
    /// `template` and optionally a Service under `serviceTemplate`. Without that key it uses the
    /// documented Service.
    pub fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut warnings = Vec::new();
        let missing = "the ConfigMap has no key template: add this key with a Pod in YAML";
        let pod: Pod = read_object("key template", data.get("template").ok_or(missing)?, &mut warnings)?;
        let service = match data.get("serviceTemplate") {
            Some(text) => read_object("key serviceTemplate", text, &mut warnings)?,
            None => yaml::parse(DOCUMENTED_SERVICE)?,
        };
        let pod = PodTemplateSpec { metadata: Some(pod.metadata), spec: pod.spec };
        Self::new(Source::ConfigMap, pod, service, warnings)
    }

    /// Reads newer Porch's objects. Without a ServiceTemplate it uses the documented Service.
    pub fn from_objects(
        pod_template: &PodTemplate,
        service_template: Option<&DynamicObject>,
    ) -> Result<Self, String> {
        let mut time = changed_at(&pod_template.metadata);
        let service = match service_template {
            Some(DynamicObject { metadata, data, .. }) => {
                time = time.max(changed_at(metadata));
                let service: Option<Service> = Deserialize::deserialize(&data["template"])
                    .map_err(|error| format!("ServiceTemplate: {error}"))?;
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
            // Removes an address copied from an existing Service. "None" is a valid setting and
            // stays.
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
        // The hash must not depend on the order of fields.
        content.sort_all_objects();
        let hash = xxh3_64(content.to_string().as_bytes());
        Ok(Self { pod, service, source, service_of_object: false, time: None, warnings, hash })
    }

    /// Returns the version of a pod: the source of its template, and a hash of everything that the
    /// pod is made from. `made_with` are the bytes of the inputs other than the template.
    pub fn version(&self, made_with: &[u8]) -> String {
        let bytes = [&self.hash.to_le_bytes(), made_with].concat();
        let source = match self.source {
            Source::Inline => "inline",
            Source::ConfigMap => "configmap",
            Source::PodTemplate => "podtemplate",
        };
        format!("{source}-{:016x}", xxh3_64(&bytes))
    }
}

/// Parses one object of a ConfigMap directly into its type. So an error names the line and column,
/// and a string field accepts a plain scalar such as `1.10`. Porch's documented example has
/// annotations beside `metadata`. Labels and annotations there are moved into `metadata`, with a
/// warning.
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
            "{part}: {field} are beside metadata and are used as if they were in it: move them under metadata"
        ));
        misplaced.extend(place.take().unwrap_or_default());
        *place = Some(misplaced);
    }
    Ok(object)
}

/// The time of the object's last change, if its metadata has one.
pub fn changed_at(metadata: &ObjectMeta) -> Option<Time> {
    let changes = metadata.managed_fields.iter().flatten().filter_map(|entry| entry.time.as_ref());
    let times = metadata.creation_timestamp.iter().chain(changes);
    times.filter_map(|time| times::from_timestamp(time.0)).max()
}

/// Keeps the part of a template's metadata that pods inherit. A name or UID belongs only to the
/// template.
fn labels_and_annotations(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta { labels: metadata.labels, annotations: metadata.annotations, ..ObjectMeta::default() }
}
