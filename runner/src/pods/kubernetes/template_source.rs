//! Reads the user's template at startup and then every scan interval. The runner does not watch the
//! template: Porch's Role lets a runner get the ConfigMap, but not watch it.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, PodTemplate};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::blueprint::{NoTemplate, TemplateState};
use super::client::{Causes, RequestError, bounded, has_no_such_kind};
use super::template::{Source, Template, changed_at};
use crate::clock::now;
use crate::metrics::Metrics;
use porch_fn_runner_config::BASE_POD_TEMPLATE;

/// Longest pause between reads while the runner has no template.
const FIRST_EVERY: Duration = Duration::from_secs(1);
/// Warnings if Porch's objects may exist, but the runner has no permission to read them.
const NO_POD_TEMPLATES: &str = "the runner may not read the PodTemplate in the function namespace, and uses the built-in template: to \
                                use the PodTemplate, grant the runner's service account get on podtemplates there";
const NO_SERVICE_TEMPLATES: &str = "the runner may not read the ServiceTemplate in the function namespace, and creates Services without \
                                    this template: to use it, grant the runner's service account get on servicetemplates (API group \
                                    config.porch.kpt.dev) there";
/// The warning if the user's PodTemplate does not exist.
const NO_NAMED_TEMPLATE: &str = "the function namespace has no PodTemplate with the name from --base-pod-template-name: the runner uses \
                                 the built-in template";
/// The name of this source in the metric.
const SOURCE: &str = "function-pod-template";

/// Where the template is stored.
#[derive(Debug, Clone)]
pub(crate) enum Templates {
    /// `--function-pod-template`: the name of a ConfigMap in the runner's own namespace.
    ConfigMap(String),
    /// Newer Porch's objects if they exist, else the built-in template.
    Objects {
        /// `--base-pod-template-name`.
        pod: String,
        /// `--base-service-template-name`.
        service: String,
        /// `WRAPPER_SERVER_IMAGE`, for the built-in template; `None` with
        /// `--skip-template-creation`.
        built_in: Option<String>,
        /// `--template-wait-timeout`: how long after startup the runner waits for missing objects.
        wait: Duration,
    },
}

/// Reads the template.
pub(crate) struct TemplateSource {
    pub(crate) client: Client,
    /// The namespace of the ConfigMap or of the objects.
    pub(crate) namespace: String,
    pub(crate) templates: Templates,
    pub(crate) started: Instant,
}

/// Why a read gave no template.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    /// The object is missing, but may still be created.
    #[error("{0}")]
    Awaited(String),
    #[error("{0}")]
    Broken(String),
    /// The request failed; the known template stays.
    #[error("the request to the API server failed")]
    Request(#[from] RequestError),
}

// === impl TemplateSource ===

impl TemplateSource {
    /// Reads forever, at the interval `every`. An invalid template does not replace a valid one.
    pub(crate) async fn follow(
        self,
        every: Duration,
        state: watch::Sender<TemplateState>,
        metrics: Arc<Metrics>,
    ) {
        let mut last_error = String::new();
        loop {
            let known = state.borrow().clone().ok();
            match self.read(known.as_deref()).await {
                Ok(template) => {
                    last_error.clear();
                    metrics.config_valid(SOURCE, true);
                    if let Some(template) = newer(known.as_deref(), template) {
                        state.send_modify(|state| *state = Ok(Arc::new(template)));
                    }
                }
                Err(error) => {
                    let causes = Causes(&error).to_string();
                    if causes != last_error {
                        last_error = causes;
                        report(error, known.is_some(), &state, &metrics);
                    }
                }
            }
            let pause = if state.borrow().is_ok() { every } else { every.min(FIRST_EVERY) };
            sleep(pause).await;
        }
    }

    /// Reads once. `known` is the template that was read before.
    async fn read(&self, known: Option<&Template>) -> Result<Template, ReadError> {
        match &self.templates {
            Templates::ConfigMap(name) => self.read_config_map(name).await,
            Templates::Objects { pod, service, built_in, wait } => {
                // Once the runner has a template, it no longer waits for missing objects.
                let is_awaited = known.is_none() && self.started.elapsed() < *wait;
                self.read_objects([pod, service], built_in.as_deref(), is_awaited, known).await
            }
        }
    }

    async fn read_config_map(&self, name: &str) -> Result<Template, ReadError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = bounded(api.get_opt(name)).await.map_err(|error| match error.code() {
            Some(403) => ReadError::Broken(format!(
                "the runner may not read ConfigMap {name} of --function-pod-template: its Role needs the verb get on \
                 configmaps in its own namespace"
            )),
            _ => error.into(),
        })?;
        let config_map = found.ok_or_else(|| {
            ReadError::Broken(format!(
                "there is no ConfigMap {name} in the runner's namespace: create it, or change --function-pod-template"
            ))
        })?;
        let time = changed_at(&config_map.metadata);
        let template = Template::from_config_map(&config_map.data.unwrap_or_default()).map_err(|reason| {
            ReadError::Broken(format!("ConfigMap {name} of --function-pod-template: {reason}"))
        })?;
        Ok(Template { time, ..template })
    }

    async fn read_objects(
        &self,
        [pod_name, service_name]: [&str; 2],
        built_in: Option<&str>,
        is_awaited: bool,
        known: Option<&Template>,
    ) -> Result<Template, ReadError> {
        let missing = |kind: &str, name: &str| {
            let text = format!("there is no {kind} {name} in the function namespace");
            if is_awaited {
                return ReadError::Awaited(format!("{text} yet"));
            }
            ReadError::Broken(format!(
                "{text}, and with --skip-template-creation the runner uses no other template: create it, or change \
                 --base-pod-template-name and --base-service-template-name"
            ))
        };
        let forbidden = |kind: &str, name: &str, resource: &str| {
            ReadError::Broken(format!(
                "the runner may not read {kind} {name}, and with --skip-template-creation the runner uses no other \
                 template: the runner's Role needs the verb get on {resource} in the function namespace"
            ))
        };
        let pod_templates: Api<PodTemplate> = Api::namespaced(self.client.clone(), &self.namespace);
        // Without permission the runner uses no PodTemplate. But if it has read one earlier, it
        // keeps that one, which may still exist.
        let was_allowed = known.is_some_and(|known| known.source == Source::PodTemplate);
        let pod_template = match bounded(pod_templates.get_opt(pod_name)).await {
            Err(error) if error.code() == Some(403) && !was_allowed => {
                let image = built_in.ok_or_else(|| forbidden("PodTemplate", pod_name, "podtemplates"))?;
                return built_in_template(image, Some(NO_POD_TEMPLATES));
            }
            found => found?,
        };
        let Some(pod_template) = pod_template else {
            let warning = (pod_name != BASE_POD_TEMPLATE).then_some(NO_NAMED_TEMPLATE);
            let image = built_in.filter(|_| !is_awaited);
            return built_in_template(image.ok_or_else(|| missing("PodTemplate", pod_name))?, warning);
        };
        let kind = GroupVersionKind::gvk("config.porch.kpt.dev", "v1alpha1", "ServiceTemplate");
        let resource = ApiResource::from_gvk(&kind);
        let service_templates: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let has_no_kind = || has_no_such_kind(&self.client, &resource.api_version, &resource.plural);
        // Likewise, the runner keeps a ServiceTemplate until an answer clearly shows that it is
        // gone.
        let was_there = known.is_some_and(|known| known.service_of_object);
        let mut warning = None;
        let service_template = match bounded(service_templates.get_opt(service_name)).await {
            // A missing kind is this error; a missing object is `Ok(None)`.
            Err(error) if error.code() == Some(404) && (!was_there || has_no_kind().await) => None,
            Err(error) if error.code() == Some(403) && !was_there => {
                if built_in.is_none() {
                    return Err(forbidden("ServiceTemplate", service_name, "servicetemplates"));
                }
                warning = Some(NO_SERVICE_TEMPLATES.to_owned());
                None
            }
            found => found?,
        };
        if service_template.is_none() && warning.is_none() && (is_awaited || built_in.is_none()) {
            return Err(missing("ServiceTemplate", service_name));
        }
        let mut template =
            Template::from_objects(&pod_template, service_template.as_ref()).map_err(|reason| {
                ReadError::Broken(format!(
                    "PodTemplate {pod_name} and ServiceTemplate {service_name} of the function namespace: {reason}"
                ))
            })?;
        template.warnings.extend(warning);
        Ok(template)
    }
}

/// Logs a new error. If no earlier template is `kept`, also sends to `state` that the template is
/// awaited or broken. A failed request leaves `state` unchanged.
fn report(error: ReadError, kept: bool, state: &watch::Sender<TemplateState>, metrics: &Metrics) {
    if let ReadError::Awaited(text) = error {
        tracing::info!("{text}: waiting for it, see --template-wait-timeout");
        state.send_modify(|state| *state = Err(NoTemplate::Awaited));
        return;
    }
    tracing::error!(error = %Causes(&error), kept, "the template of function pods cannot be used");
    if let ReadError::Broken(text) = error {
        metrics.config_valid(SOURCE, false);
        if !kept {
            state.send_modify(|state| *state = Err(NoTemplate::Broken(text.into())));
        }
    }
}

/// Returns the built-in template with a further warning.
fn built_in_template(wrapper_image: &str, warning: Option<&str>) -> Result<Template, ReadError> {
    let mut template = Template::built_in(wrapper_image).map_err(ReadError::Broken)?;
    template.warnings.extend(warning.map(str::to_owned));
    Ok(template)
}

/// Returns the template, with a newer time, if it differs from `known`.
fn newer(known: Option<&Template>, mut template: Template) -> Option<Template> {
    if let Some(known) = known {
        if (known.source, known.hash) == (template.source, template.hash) {
            return None;
        }
        if template.time <= known.time {
            // The user may have restored an older template. It is in effect from now on, so it
            // needs a newer time than the previous template.
            template.time = Some(now());
        }
    }
    tracing::info!(template = ?template.source, "using the template of function pods");
    for warning in &template.warnings {
        tracing::warn!(error = warning, "the template of function pods should be fixed");
    }
    Some(template)
}
