//! What new pods and Services are made from at this moment: one template for all images, resources for some.
//!
//! Its versions are what the pool compares with those of the pods there are; see [`Blueprint::made_from`].

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements, Service};
use porch_fn_pool::{self as pool, ImageKey, PodName, ShardKey, Time, Uid, Version};

use super::spec::{self, PodSpecInput};
use super::template::Template;

/// A template, or why there is none.
pub(super) type TemplateState = Result<Arc<Template>, NoTemplate>;

/// Why there is no template. The text reaches callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoTemplate {
    /// It may still come.
    #[error(
        "the template of function pods could not be read yet: check that the runner reaches the API server, and retry"
    )]
    Unread,
    /// It is broken, or not there.
    #[error("{0}")]
    Broken(Arc<str>),
}

/// Immutable: a change makes a new one.
#[derive(Debug)]
pub(crate) struct Blueprint {
    template: TemplateState,
    max_message: usize,
    resources: HashMap<ImageKey, Resources>,
    made_from: pool::Template,
}

#[derive(Debug)]
struct Resources {
    resources: ResourceRequirements,
    made_from: pool::Template,
}

/// One pod to be made.
pub(super) struct PodOrder<'a> {
    pub(super) object_name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a PodName,
    pub(super) shard_key: &'a ShardKey,
    pub(super) reclaim_after: Time,
    pub(super) entrypoint: &'a [String],
}

impl Blueprint {
    /// `started` is when this process read its flags, and `resources_time` when the file with the resources was written:
    /// of two runners that disagree, the one with the later configuration is right.
    pub(super) fn new(
        template: TemplateState,
        max_message: usize,
        resources: HashMap<ImageKey, ResourceRequirements>,
        started: Time,
        resources_time: Option<Time>,
    ) -> Self {
        let made_from = |resources: Option<&ResourceRequirements>| {
            let Ok(template) = &template else {
                // As the oldest configuration it replaces no pod.
                return pool::Template { version: Version::from("none"), config_time: None };
            };
            // Only the message size: it is all that the runner adds to every pod alike. Maps and numbers
            // serialise in one way only.
            let extra = serde_json::to_vec(&(max_message, resources)).unwrap_or_default();
            // The file's for all images: taking an image's resources away is a later configuration too.
            let time = template.time.max(resources_time).unwrap_or_default().max(started);
            pool::Template { version: Version::from(template.version(&extra)), config_time: Some(time) }
        };
        let made_from_all = made_from(None);
        let resources = resources.into_iter().map(|(image, resources)| {
            let made_from = made_from(Some(&resources));
            (image, Resources { resources, made_from })
        });
        let resources = resources.collect();
        Self { template, max_message, resources, made_from: made_from_all }
    }

    /// The version of pods of all images without resources of their own.
    pub(crate) fn made_from(&self) -> &pool::Template {
        &self.made_from
    }

    /// The version of the image's pods where it differs.
    pub(crate) fn made_otherwise(&self, image: &ImageKey) -> Option<&pool::Template> {
        self.resources.get(image).map(|resources| &resources.made_from)
    }

    /// Whether the template was read, broken or not.
    pub(super) fn has_read(&self) -> bool {
        !matches!(self.template, Err(NoTemplate::Unread))
    }

    pub(super) fn pod(&self, order: &PodOrder<'_>) -> Result<Pod, NoTemplate> {
        let template = self.template.as_ref().map_err(Clone::clone)?;
        let own = self.resources.get(&order.name.image);
        let made_from = own.map_or(&self.made_from, |own| &own.made_from);
        let input = PodSpecInput {
            object_name: order.object_name,
            namespace: order.namespace,
            name: order.name,
            shard_key: order.shard_key.as_str(),
            version: made_from.version.as_str(),
            config_time: made_from.config_time,
            reclaim_after: order.reclaim_after,
            image: order.name.image.as_str(),
            entrypoint: order.entrypoint,
            max_message: self.max_message,
            resources: own.map(|own| &own.resources),
        };
        Ok(spec::pod(template, &input))
    }

    /// `None` without a template.
    pub(super) fn service(&self, pod_name: &str, pod: &Uid, namespace: &str) -> Option<Service> {
        let template = self.template.as_ref().ok()?;
        Some(spec::service(template, pod_name, pod.as_str(), namespace))
    }
}
