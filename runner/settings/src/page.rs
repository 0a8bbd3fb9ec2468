//! The page with the values in effect for an image, for `/config` and `porch-fn config`.

use std::fmt::Display;

use k8s_openapi::api::core::v1::EnvVar;
use porch_fn_flags::GoDuration;
use porch_fn_image::Image;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::overrides::ContainerOverrides;
use crate::settings::Settings;
use crate::source::Setting;

/// The values in effect for one image. Fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// Its canonical reference.
    pub image: String,
    /// The settings, one per row.
    pub settings: Vec<Row>,
    /// The values that are set but not used.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Such as `maxPods` or `container.env.HOME`.
    pub setting: String,
    /// A text, a number, or an object.
    pub value: Value,
    /// The value's source, for people.
    pub from: String,
}

/// The page of `image`. Values of environment variables are left out: they may be secret.
pub fn page(settings: &Settings, image: &Image) -> Value {
    let effective = settings.of(image);
    let mut rows = Vec::new();
    let mut row = |name: &str, value: Value, from: &dyn Display| {
        rows.push(Row { setting: name.to_owned(), value, from: from.to_string() });
    };
    row("ttl", json!(GoDuration(effective.ttl.value).to_string()), &effective.ttl.source);
    for (name, Setting { value, source }) in [
        ("maxPods", &effective.max_pods),
        ("minPods", &effective.min_pods),
        ("maxWaitlistLength", &effective.waitlist),
        ("maxConcurrentPerPod", &effective.per_pod),
        ("maxQueue", &effective.queue),
    ] {
        row(name, json!(value), source);
    }
    if let Some(Setting { value, source }) = settings.functions().semantics() {
        row("functionConfigTags", json!(value.to_string()), source);
    }
    if let Some(Setting { value, source }) = &effective.executable {
        row("executable", json!(value.to_string_lossy()), source);
    }

    let (overrides, from) = (&effective.overrides, &effective.overrides_from);
    if let Some(from) = &from.all {
        if let Some(account) = &overrides.service_account {
            row("serviceAccountName", json!(account), from);
        }
        if let Some(context) = &overrides.security_context {
            row("securityContext", json!(context), from);
        }
        variables("container", &overrides.container, |name, value| row(name, value, from));
    }
    if let (Some(from), Some(resources)) = (&from.container_resources, &overrides.container.resources) {
        row("container.resources", json!(resources), from);
    }
    if let Some(from) = &from.all {
        variables("initContainer", &overrides.init_container, |name, value| row(name, value, from));
        if let Some(resources) = &overrides.init_container.resources {
            row("initContainer.resources", json!(resources), from);
        }
    }
    let page = Page { image: image.to_string(), settings: rows, notes: settings.notes(image) };
    // Texts and numbers only: serialising cannot fail.
    serde_json::to_value(&page).unwrap_or_default()
}

fn variables(container: &str, overrides: &ContainerOverrides, mut row: impl FnMut(&str, Value)) {
    for EnvVar { name, value_from, .. } in &overrides.env {
        let shown = value_from.as_ref().map_or_else(|| json!("(not shown)"), |from| json!(from));
        row(&format!("{container}.env.{name}"), shown);
    }
    for (index, source) in overrides.env_from.iter().enumerate() {
        row(&format!("{container}.envFrom[{index}]"), json!(source));
    }
}

#[cfg(test)]
mod tests;
