//! The current input for new pods and Services: one template for all images, and the settings and
//! content of each image. The pool compares the recipe of this input with the recipes of existing
//! pods; see [`Blueprint::recipe`].

#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use porch_fn_flags::LogFormat;
use porch_fn_image::Image;
use porch_fn_pool::{ImageContent, ImageKey, PodRecipe, Time, Uid};
use porch_fn_settings::{PodOverrides, Settings};
use tokio::sync::watch;

use super::spec::{self, Extras, PodOrder};
use super::template::{Source, Template};
use crate::pods::configure::Origins;
use crate::settings::CurrentSettings;

/// Prefixes of public images, as in Porch 1.6 and 1.5. Pods of these images get no pull secret.
const PUBLIC: [&str; 2] = ["ghcr.io/kptdev/krm-functions-catalog/", "gcr.io/kpt-fn/"];

/// The template, or the reason why there is none.
pub(crate) type TemplateState = Result<Arc<Template>, NoTemplate>;

/// Why there is no template. The text reaches callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoTemplate {
    /// The template has not been read yet.
    #[error(
        "the template of function pods could not be read yet: check that the runner reaches the API server, and retry"
    )]
    Unread,
    /// The user's template object is missing, and `--template-wait-timeout` has not expired.
    #[error(
        "the template of function pods does not exist yet: apply the objects that --base-pod-template-name and \
         --base-service-template-name name, and retry"
    )]
    Awaited,
    /// The template may be valid, but the FunctionConfigs, which may change it, have not been read
    /// yet.
    #[error(
        "the FunctionConfigs could not be read yet: check that the runner reaches the API server, and retry"
    )]
    FunctionConfigsUnread,
    /// The template is invalid or missing.
    #[error("{0}")]
    Broken(Arc<str>),
}

/// Flags that change every pod.
#[derive(Debug, Clone)]
pub(crate) struct PodFlags {
    /// `--max-request-body-size`.
    pub(crate) max_message: usize,
    /// `--registry-auth-secret-name`, with `--enable-private-registries`.
    pub(crate) pull_secret: Option<String>,
    /// `--log-format`. The pods of the built-in template get it too.
    pub(crate) log_format: LogFormat,
}

/// Immutable: every change creates a new blueprint.
#[derive(Debug)]
pub(crate) struct Blueprint {
    template: TemplateState,
    flags: PodFlags,
    settings: Arc<Settings>,
    config_time: Time,
}

// === impl Blueprint ===

impl Blueprint {
    /// `started` is when this process read its flags. `settings_time` is when the files or
    /// FunctionConfigs behind `settings` last changed. If two runners disagree, the later
    /// configuration wins.
    pub(crate) fn new(
        template: TemplateState,
        flags: PodFlags,
        settings: Arc<Settings>,
        started: Time,
        settings_time: Option<Time>,
    ) -> Self {
        let template_time = template.as_ref().ok().and_then(|template| template.time);
        // All images share one time. A time per image would be lost when the settings of an image
        // are removed, and its new configuration would not get a later time.
        let config_time = template_time.max(settings_time).unwrap_or_default().max(started);
        Self { template, flags, settings, config_time }
    }

    /// Whether all inputs for pods have been read, valid or not.
    pub(crate) fn has_read(&self) -> bool {
        matches!(self.template, Ok(_) | Err(NoTemplate::Broken(_)))
    }

    pub(super) fn pod(&self, order: &PodOrder<'_>) -> Result<Pod, NoTemplate> {
        let template = self.template.as_ref().map_err(Clone::clone)?;
        let image = &order.name.image;
        let extras = Extras {
            recipe: self.recipe(image, order.metadata.content.clone()),
            max_message: self.flags.max_message,
            overrides: self.overrides(image),
            pull_secret: self.pull_secret(image),
            json_log: self.is_json(template),
        };
        Ok(spec::pod(template, order, &extras))
    }

    /// Returns the Service of the pod; `None` without a template.
    pub(crate) fn service(&self, pod_name: &str, pod: &Uid) -> Option<Service> {
        let template = self.template.as_ref().ok()?;
        Some(spec::service(template, pod_name, pod.as_str()))
    }

    /// Whether pods get `--log-format`. Pods of a user's template do not: its wrapper-server may be
    /// another program that refuses the flag.
    fn is_json(&self, template: &Template) -> bool {
        self.flags.log_format == LogFormat::Json && template.source == Source::Inline
    }

    /// The image's overrides of the template.
    fn overrides(&self, image: &ImageKey) -> PodOverrides {
        // The pool's keys are full image references, so they need no prefix.
        Image::parse(image.as_str(), "").map(|image| self.settings.of(&image).overrides).unwrap_or_default()
    }

    fn pull_secret(&self, image: &ImageKey) -> Option<&str> {
        let is_public = PUBLIC.iter().any(|prefix| image.as_str().starts_with(prefix));
        self.flags.pull_secret.as_deref().filter(|_| !is_public)
    }

    /// Returns the recipe of the image's pods: the version and the time of their configuration, and
    /// `content`, which the image's tag refers to.
    pub(crate) fn recipe(&self, image: &ImageKey, content: Option<ImageContent>) -> PodRecipe {
        let Ok(template) = &self.template else {
            // A recipe without a time counts as the oldest configuration, so it replaces no pod.
            return PodRecipe::of("none", None);
        };
        // Contains only what the runner adds to the template's pod. Maps and numbers always
        // serialise in the same way.
        let extra =
            serde_json::to_vec(&(self.flags.max_message, self.pull_secret(image), self.overrides(image)));
        let mut extra = extra.unwrap_or_default();
        // The default adds nothing, so that an upgrade from a version without the flag replaces no
        // pod.
        if self.is_json(template) {
            extra.extend(b"--log-format=json");
        }
        let version = template.version(&extra);
        PodRecipe { content, ..PodRecipe::of(version, Some(self.config_time)) }
    }
}

/// Creates a new blueprint whenever one of its inputs changes, and sends it to `current`. `started` is
/// when this process read its flags.
pub(crate) fn origins(
    flags: PodFlags,
    started: Time,
    current: watch::Sender<Arc<Blueprint>>,
) -> Origins<TemplateState> {
    Box::new(move |CurrentSettings { settings, time, .. }, template| {
        let (template, flags, settings) = (template.clone(), flags.clone(), Arc::clone(settings));
        let blueprint = Arc::new(Blueprint::new(template, flags, settings, started, *time));
        // Published before the pool is notified, so that every later create uses this version.
        current.send_replace(Arc::clone(&blueprint));
        Box::new(move |image, content| blueprint.recipe(image, content))
    })
}
