//! Reads the template where the user keeps it, at the start and then every scan interval: the original's Role lets a
//! runner get its ConfigMap, but not watch it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, PodTemplate};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use tokio::sync::watch;
use tokio::time::sleep;

use super::blueprint::TemplateState;
use super::client::{RequestError, bounded};
use super::template::{BASE_POD_TEMPLATE, BASE_SERVICE_TEMPLATE, Template, TemplateError, changed_at};

/// How often to try while nothing could be read yet.
const FIRST_EVERY: Duration = Duration::from_secs(1);

/// Where the template is kept.
pub(super) enum Origin {
    /// `--function-pod-template`, in the runner's own namespace.
    ConfigMap { client: Client, namespace: String, name: String },
    /// Newer Porch's objects in the function namespace when they are there, else the template that is built in.
    Objects { client: Client, namespace: String, built_in: Option<Arc<Template>> },
}

/// Why there is no template. The text reaches callers.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(
        "there is no ConfigMap {name} in the runner's namespace: create it, or change --function-pod-template"
    )]
    NoConfigMap { name: String },
    #[error("ConfigMap {name} of --function-pod-template: {source}")]
    ConfigMap { name: String, source: TemplateError },
    /// Says itself which of the two objects is meant.
    #[error("in the function namespace, {source}")]
    Objects { source: TemplateError },
    #[error(
        "the runner may not read ConfigMap {name} of --function-pod-template: its Role needs the verb get on \
         configmaps in its own namespace"
    )]
    Forbidden { name: String },
    #[error("there is no template for function pods: set WRAPPER_SERVER_IMAGE or --function-pod-template")]
    Nothing,
    /// Nothing is known; what was known still holds.
    #[error("the template of function pods could not be read yet: the API server does not answer")]
    Request(#[from] RequestError),
}

/// Reads once.
async fn read(origin: &Origin) -> Result<Arc<Template>, ReadError> {
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
        Origin::Objects { client, namespace, built_in } => {
            let pod_templates: Api<PodTemplate> = Api::namespaced(client.clone(), namespace);
            let Some(pod_template) = optional(bounded(pod_templates.get_opt(BASE_POD_TEMPLATE)).await)?
            else {
                return built_in.clone().ok_or(ReadError::Nothing);
            };
            let kind = GroupVersionKind::gvk("config.porch.kpt.dev", "v1alpha1", "ServiceTemplate");
            let resource = ApiResource::from_gvk(&kind);
            let service_templates: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), namespace, &resource);
            let service_template = optional(bounded(service_templates.get_opt(BASE_SERVICE_TEMPLATE)).await)?;
            // What came as JSON is JSON again.
            let service_template = service_template.and_then(|object| serde_json::to_value(object).ok());
            let template = Template::from_objects(&pod_template, service_template.as_ref());
            template.map(Arc::new).map_err(|source| ReadError::Objects { source })
        }
    }
}

/// Who may not look, or whose cluster does not have the kind, has none.
fn optional<T>(found: Result<Option<T>, RequestError>) -> Result<Option<T>, RequestError> {
    match found {
        Err(error) if matches!(error.code(), Some(403 | 404)) => Ok(None),
        found => found,
    }
}

/// Reads for ever, `every` so often. A template that breaks does not replace a good one.
pub(super) async fn follow(origin: Origin, every: Duration, state: watch::Sender<TemplateState>) {
    let mut last_error = String::new();
    loop {
        match read(&origin).await {
            Ok(template) => {
                last_error.clear();
                let known = state.borrow().clone();
                if !known.is_ok_and(|known| same(&known, &template)) {
                    tracing::info!(source = ?template.source, "using the template of function pods");
                    for warning in &template.warnings {
                        tracing::warn!(warning, "the template of function pods");
                    }
                    state.send_modify(|state| *state = Ok(template));
                }
            }
            Err(error) => {
                let text = error.to_string();
                if text != last_error {
                    let kept = state.borrow().is_ok();
                    tracing::error!(%error, kept, "the template of function pods cannot be used");
                    if !kept {
                        state.send_modify(|state| *state = Err(text.as_str().into()));
                    }
                    last_error = text;
                }
            }
        }
        let pause = if state.borrow().is_ok() { every } else { every.min(FIRST_EVERY) };
        sleep(pause).await;
    }
}

fn same(one: &Template, other: &Template) -> bool {
    one.version(&[]) == other.version(&[]) && one.time == other.time
}
