//! The page with the values in effect for an image, for `/config` and `porch-fn config`.

use std::fmt::Display;

use porch_fn_flags::GoDuration;
use porch_fn_image::Image;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::settings::{Effective, Settings};
use crate::source::Setting;

/// The values in effect for one image. Fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// The image's canonical reference.
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
        ("maxConcurrentPerPod", &settings.flags.per_pod),
        ("maxQueue", &settings.flags.queue),
    ] {
        row(name, json!(value), source);
    }
    if let Some(Setting { value, source }) = &settings.functions.semantics {
        row("functionConfigTags", json!(value.to_string()), source);
    }
    if let Some(Setting { value, source }) = &effective.executable {
        row("executable", json!(value.to_string_lossy()), source);
    }

    let Effective { overrides, overrides_from, resources_from, .. } = &effective;
    if let (Some(from), Some(account)) = (overrides_from, &overrides.service_account) {
        row("serviceAccountName", json!(account), from);
    }
    if let (Some(from), Some(context)) = (overrides_from, &overrides.security_context) {
        row("securityContext", json!(context), from);
    }
    for (name, container, resources_from) in [
        ("container", &overrides.container, resources_from),
        ("initContainer", &overrides.init_container, overrides_from),
    ] {
        if let Some(from) = overrides_from {
            for variable in &container.env {
                let value = variable.value_from.as_ref().map_or_else(|| json!("(not shown)"), |it| json!(it));
                row(&format!("{name}.env.{}", variable.name), value, from);
            }
            for (index, source) in container.env_from.iter().enumerate() {
                row(&format!("{name}.envFrom[{index}]"), json!(source), from);
            }
        }
        if let (Some(from), Some(resources)) = (resources_from, &container.resources) {
            row(&format!("{name}.resources"), json!(resources), from);
        }
    }
    let page = Page { image: image.to_string(), settings: rows, notes: settings.notes(image) };
    // The page has only texts and JSON values, so serialising cannot fail.
    serde_json::to_value(&page).unwrap_or_default()
}

#[cfg(test)]
mod tests;
