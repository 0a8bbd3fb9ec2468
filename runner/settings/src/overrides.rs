//! The changes that a FunctionConfig makes to the template of an image's pods.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PodSecurityContext, ResourceRequirements};
use serde::{Deserialize, Serialize};

use crate::field::FieldError;
use crate::quantity;

/// A container may have this many variables, and this many sources of variables. All are stored in
/// one object of at most 1 MiB.
const MAX_ENV: usize = 1000;

/// `templateOverrides` of a FunctionConfig. `None` and empty keep the template's value. An override
/// replaces the template's whole field; `env` replaces variables of the same name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct PodOverrides {
    /// `serviceAccountName`.
    #[serde(rename(deserialize = "serviceAccountName"), skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// `securityContext` of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
    /// For the template's first container; in the built-in template, for the container that runs
    /// the function.
    #[serde(skip_serializing_if = "ContainerOverrides::is_empty")]
    pub container: ContainerOverrides,
    /// If true, the resources of `container` apply to the container that runs the function, which
    /// need not be the first one. True for resources from `--pod-cache-config`.
    #[serde(skip)]
    pub resources_of_function: bool,
    /// For the template's first init container; in the built-in template, for the container with
    /// the wrapper-server.
    #[serde(skip_serializing_if = "ContainerOverrides::is_empty")]
    pub init_container: ContainerOverrides,
}

/// The overrides of one container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct ContainerOverrides {
    /// Variables, in the object's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Sources of variables, in the object's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvFromSource>,
    /// The container's requests and limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
}

// === impl PodOverrides ===

impl PodOverrides {
    /// Whether nothing differs from the template.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the overrides at `path`. Empty fields become `None`.
    pub(crate) fn check(&mut self, path: &str) -> Result<(), FieldError> {
        self.service_account.take_if(|account| account.is_empty());
        self.security_context.take_if(|context| *context == PodSecurityContext::default());
        self.container.check(&format!("{path}.container"))?;
        self.init_container.check(&format!("{path}.initContainer"))
    }
}

// === impl ContainerOverrides ===

impl ContainerOverrides {
    /// Whether nothing differs from the template.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn check(&mut self, path: &str) -> Result<(), FieldError> {
        let wrong = |field: String, reason: String| Err(FieldError::new(format!("{path}.{field}"), reason));
        for (field, items) in [("env", self.env.len()), ("envFrom", self.env_from.len())] {
            if items > MAX_ENV {
                return wrong(field.to_owned(), format!("write at most {MAX_ENV} items, not {items}"));
            }
        }
        for (index, variable) in self.env.iter().enumerate() {
            // serde reads a missing name as an empty one.
            if variable.name.is_empty() || variable.name.contains('=') {
                return wrong(format!("env[{index}].name"), "write the variable's name, without '='".into());
            }
            if variable.value.as_deref().is_some_and(|value| !value.is_empty())
                && variable.value_from.is_some()
            {
                return wrong(format!("env[{index}]"), "write either value or valueFrom".into());
            }
        }
        for (index, source) in self.env_from.iter().enumerate() {
            if source.config_map_ref.is_some() == source.secret_ref.is_some() {
                return wrong(format!("envFrom[{index}]"), "write either configMapRef or secretRef".into());
            }
        }
        self.resources.take_if(|resources| *resources == ResourceRequirements::default());
        if let Some(Err(reason)) = self.resources.as_ref().map(quantity::check) {
            return wrong("resources".to_owned(), reason);
        }
        Ok(())
    }
}
