//! Reads the template where the user keeps it, at the start and then every scan interval: the original's Role lets a
//! runner get its ConfigMap, but not watch it.

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
use super::template::{BASE_POD_TEMPLATE, Source, Template, TemplateError, changed_at};
use crate::clock::now;
use crate::metrics::Metrics;

/// How often to try while nothing could be read yet.
const FIRST_EVERY: Duration = Duration::from_secs(1);

/// Logged when Porch's objects may be there, and the runner is not allowed to look.
const NO_POD_TEMPLATES: &str = "the runner may not read the PodTemplate in the function namespace, and makes pods from the template \
                                that is built in: to have it used, grant the runner's service account get on podtemplates there";
const NO_SERVICE_TEMPLATES: &str = "the runner may not read the ServiceTemplate in the function namespace, and makes Services without \
                                    it: to have it used, grant the runner's service account get on servicetemplates (API group \
                                    config.porch.kpt.dev) there";
/// Logged when the user has named an object that is not there.
const NO_NAMED_TEMPLATE: &str = "there is no PodTemplate of the name that --base-pod-template-name gives in the function namespace: pods \
                                 are made from the template that is built in";

/// What the metric calls it.
const SOURCE: &str = "function-pod-template";

/// Where the template is kept.
pub(super) enum Origin {
    /// `--function-pod-template`, in the runner's own namespace.
    ConfigMap { client: Client, namespace: String, name: String },
    /// Newer Porch's objects in the function namespace when they are there, else the template that
    /// is built in, if that may be used; not before `awaited_until`.
    Objects {
        client: Client,
        namespace: String,
        names: ObjectNames,
        built_in: Option<Arc<Template>>,
        awaited_until: Instant,
    },
}

/// Newer Porch's objects: `--base-pod-template-name` and `--base-service-template-name`.
#[derive(Debug, Clone)]
pub(crate) struct ObjectNames {
    pub(crate) pod: String,
    pub(crate) service: String,
}

/// Why nothing was read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(
        "there is no ConfigMap {name} in the runner's namespace: create it, or change --function-pod-template"
    )]
    NoConfigMap { name: String },
    #[error("ConfigMap {name} of --function-pod-template: {source}")]
    ConfigMap { name: String, source: TemplateError },
    /// Says itself which of the two objects is meant.
    #[error("PodTemplate {pod} and ServiceTemplate {service} of the function namespace: {source}",
        pod = names.pod, service = names.service)]
    Objects { names: ObjectNames, source: TemplateError },
    #[error(
        "there is no {kind} {name} in the function namespace, and --skip-template-creation allows no other template: \
         create it, or change --base-pod-template-name and --base-service-template-name"
    )]
    NoObject { kind: &'static str, name: String },
    #[error(
        "the runner may not read {kind} {name}, and --skip-template-creation allows no other template: its Role needs \
         the verb get on {resource} in the function namespace"
    )]
    ForbiddenObject { kind: &'static str, name: String, resource: &'static str },
    /// It may come yet.
    #[error("there is no {kind} {name} in the function namespace yet")]
    Awaited { kind: &'static str, name: String },
    #[error(
        "the runner may not read ConfigMap {name} of --function-pod-template: its Role needs the verb get on \
         configmaps in its own namespace"
    )]
    Forbidden { name: String },
    /// Nothing is known; what was known still holds.
    #[error("the API server does not say")]
    Request(#[from] RequestError),
}

/// Reads once. `known` is what was read before.
async fn read(origin: &Origin, known: Option<&Template>) -> Result<Arc<Template>, ReadError> {
    match origin {
        Origin::ConfigMap { client, namespace, name } => {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let found = bounded(api.get_opt(name)).await.map_err(|error| match error.code() {
                Some(403) => ReadError::Forbidden { name: name.clone() },
                _ => error.into(),
            })?;
            let config_map = found.ok_or_else(|| ReadError::NoConfigMap { name: name.clone() })?;
            let mut template = Template::from_config_map(&config_map.data.unwrap_or_default())
                .map_err(|source| ReadError::ConfigMap { name: name.clone(), source })?;
            template.time = changed_at(&config_map.metadata);
            Ok(Arc::new(template))
        }
        Origin::Objects { client, namespace, names, built_in, awaited_until } => {
            // What was there once is not waited for.
            let awaited = known.is_none() && Instant::now() < *awaited_until;
            let missing = |kind, name: &str| match (awaited, name.to_owned()) {
                (true, name) => ReadError::Awaited { kind, name },
                (false, name) => ReadError::NoObject { kind, name },
            };
            let pod_templates: Api<PodTemplate> = Api::namespaced(client.clone(), namespace);
            // Whoever was never allowed to look has none; one who was has lost the right, not the template.
            let was_allowed = known.is_some_and(|known| known.source == Source::PodTemplate);
            let pod_template = match bounded(pod_templates.get_opt(&names.pod)).await {
                Err(error) if error.code() == Some(403) && !was_allowed => {
                    let (kind, name, resource) = ("PodTemplate", names.pod.clone(), "podtemplates");
                    let forbidden = ReadError::ForbiddenObject { kind, name, resource };
                    return built_in_with(built_in.as_ref(), Some(NO_POD_TEMPLATES)).ok_or(forbidden);
                }
                found => found?,
            };
            let Some(pod_template) = pod_template else {
                let warning = (names.pod != BASE_POD_TEMPLATE).then_some(NO_NAMED_TEMPLATE);
                let built_in = built_in_with(built_in.as_ref().filter(|_| !awaited), warning);
                return built_in.ok_or_else(|| missing("PodTemplate", &names.pod));
            };
            let kind = GroupVersionKind::gvk("config.porch.kpt.dev", "v1alpha1", "ServiceTemplate");
            let resource = ApiResource::from_gvk(&kind);
            let service_templates: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), namespace, &resource);
            let mut warning = None;
            // Here too: what was there is not gone because of one answer that does not say so.
            let was_there = known.is_some_and(|known| known.service_of_object);
            let service_template = match bounded(service_templates.get_opt(&names.service)).await {
                // A cluster that does not know the kind answers a 404 of its own.
                Err(error)
                    if error.code() == Some(404)
                        && (!was_there
                            || has_no_such_kind(client, &resource.api_version, &resource.plural).await) =>
                {
                    None
                }
                Err(error) if error.code() == Some(403) && !was_there => {
                    if built_in.is_none() {
                        let (kind, name) = ("ServiceTemplate", names.service.clone());
                        return Err(ReadError::ForbiddenObject { kind, name, resource: "servicetemplates" });
                    }
                    warning = Some(NO_SERVICE_TEMPLATES.to_owned());
                    None
                }
                found => found?,
            };
            if service_template.is_none() && warning.is_none() && (awaited || built_in.is_none()) {
                return Err(missing("ServiceTemplate", &names.service));
            }
            // What came as JSON is JSON again.
            let service_template = service_template.and_then(|object| serde_json::to_value(object).ok());
            let mut template = Template::from_objects(&pod_template, service_template.as_ref())
                .map_err(|source| ReadError::Objects { names: names.clone(), source })?;
            template.warnings.extend(warning);
            Ok(Arc::new(template))
        }
    }
}

/// The built-in template, if it may be used, with one more thing to fix.
fn built_in_with(built_in: Option<&Arc<Template>>, warning: Option<&str>) -> Option<Arc<Template>> {
    let mut built_in = Arc::clone(built_in?);
    if let Some(warning) = warning {
        Arc::make_mut(&mut built_in).warnings.push(warning.to_owned());
    }
    Some(built_in)
}

/// Reads for ever, `every` so often. A template that breaks does not replace a good one.
pub(super) async fn follow(
    origin: Origin,
    every: Duration,
    state: watch::Sender<TemplateState>,
    metrics: Arc<Metrics>,
) {
    let mut last_error = String::new();
    loop {
        let known = state.borrow().clone().ok();
        match read(&origin, known.as_deref()).await {
            Ok(template) => {
                last_error.clear();
                metrics.config_valid(SOURCE, true);
                take_up(&state, known.as_deref(), template);
            }
            Err(error @ ReadError::Awaited { .. }) => {
                let text = error.to_string();
                if text != last_error {
                    tracing::info!("{text}: waiting for it, see --template-wait-timeout");
                    last_error = text;
                }
                state.send_if_modified(|state| replace(state, Err(NoTemplate::Awaited)));
            }
            Err(error) => {
                let text = error.to_string();
                let causes = Causes(&error).to_string();
                if causes != last_error {
                    let kept = known.is_some();
                    tracing::error!(error = causes, kept, "the template of function pods cannot be used");
                    last_error = causes;
                }
                if !matches!(error, ReadError::Request(_)) {
                    metrics.config_valid(SOURCE, false);
                }
                // An API server that does not answer says nothing about the template.
                if known.is_none() && !matches!(error, ReadError::Request(_)) {
                    let broken = NoTemplate::Broken(text.into());
                    state.send_if_modified(|state| replace(state, Err(broken)));
                }
            }
        }
        let pause = if state.borrow().is_ok() { every } else { every.min(FIRST_EVERY) };
        sleep(pause).await;
    }
}

fn take_up(state: &watch::Sender<TemplateState>, known: Option<&Template>, mut template: Arc<Template>) {
    if known.is_some_and(|known| known.fingerprint() == template.fingerprint()) {
        return;
    }
    if let Some(known) = known
        && template.time <= known.time
    {
        // The way back to an older template is a later configuration.
        Arc::make_mut(&mut template).time = Some(now());
    }
    tracing::info!(source = ?template.source, "using the template of function pods");
    for warning in &template.warnings {
        tracing::warn!(warning, "the template of function pods");
    }
    state.send_modify(|state| *state = Ok(template));
}

fn replace(state: &mut TemplateState, new: TemplateState) -> bool {
    let differs = match (&*state, &new) {
        (Err(old), Err(new)) => old != new,
        _ => true,
    };
    *state = new;
    differs
}
