//! What a FunctionConfig changes in the template of an image's pods.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PodSecurityContext, ResourceRequirements};
use serde::Serialize;

use crate::field::{Field, FieldError};
use crate::quantity;

/// Most variables, and most sources of variables, of one container. They end up in one object of at most 1 MiB.
const MAX_ENV: usize = 1000;

/// `templateOverrides` of a FunctionConfig. `None` and empty: as the template says. What an override says stands for
/// the template's whole field, `env` excepted, where it is a variable by its name.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodOverrides {
    /// `serviceAccountName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// `securityContext` of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
    /// The template's first container.
    #[serde(skip_serializing_if = "ContainerOverrides::is_empty")]
    pub container: ContainerOverrides,
    /// Whether the resources of `container` are for the container that runs the function, as those
    /// of `--pod-cache-config` are, wherever it is in the template.
    #[serde(skip)]
    pub resources_of_function: bool,
    /// The template's first init container.
    #[serde(skip_serializing_if = "ContainerOverrides::is_empty")]
    pub init_container: ContainerOverrides,
}

/// What differs in one container.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerOverrides {
    /// Variables, in the object's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Sources of variables, in the object's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvFromSource>,
    /// What the container asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
}

// === impl PodOverrides ===

impl PodOverrides {
    /// Whether pods are as the template says.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn parse(overrides: &Field<'_>) -> Result<Self, FieldError> {
        let account = overrides.get("serviceAccountName")?.text()?;
        let context: Option<PodSecurityContext> =
            overrides.get("securityContext")?.read("a pod's securityContext")?;
        Ok(Self {
            service_account: account.filter(|account| !account.is_empty()).map(str::to_owned),
            security_context: context.filter(|context| *context != PodSecurityContext::default()),
            container: ContainerOverrides::parse(&overrides.get("container")?)?,
            resources_of_function: false,
            init_container: ContainerOverrides::parse(&overrides.get("initContainer")?)?,
        })
    }
}

// === impl ContainerOverrides ===

impl ContainerOverrides {
    /// Whether the container is as the template says.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn parse(container: &Field<'_>) -> Result<Self, FieldError> {
        let resources = container.get("resources")?;
        let read: Option<ResourceRequirements> = resources.read("a container's resources")?;
        if let Some(read) = &read {
            quantity::check(read).map_err(|reason| resources.wrong(reason))?;
        }
        Ok(Self {
            env: list(&container.get("env")?, env_var)?,
            env_from: list(&container.get("envFrom")?, env_from)?,
            resources: read.filter(|read| *read != ResourceRequirements::default()),
        })
    }
}

fn list<T>(
    field: &Field<'_>,
    item: impl Fn(&Field<'_>) -> Result<T, FieldError>,
) -> Result<Vec<T>, FieldError> {
    let items = field.items()?;
    if items.len() > MAX_ENV {
        return Err(field.wrong(format!("{} items are more than the {MAX_ENV} that are read", items.len())));
    }
    items.iter().map(item).collect()
}

fn env_var(field: &Field<'_>) -> Result<EnvVar, FieldError> {
    // A missing name would be read as an empty one.
    let name = field.get("name")?;
    if name.text()?.is_none_or(|name| name.is_empty() || name.contains('=')) {
        return Err(name.wrong("write the variable's name, without '='"));
    }
    let read = field.read("an environment variable")?;
    let variable: EnvVar = read.ok_or_else(|| field.wrong("write {name, value} or {name, valueFrom}"))?;
    if variable.value.as_ref().is_some_and(|value| !value.is_empty()) && variable.value_from.is_some() {
        return Err(field.wrong("write either value or valueFrom"));
    }
    Ok(variable)
}

fn env_from(field: &Field<'_>) -> Result<EnvFromSource, FieldError> {
    let read: Option<EnvFromSource> = field.read("a source of environment variables")?;
    read.filter(|source| source.config_map_ref.is_some() != source.secret_ref.is_some())
        .ok_or_else(|| field.wrong("write either configMapRef or secretRef"))
}
