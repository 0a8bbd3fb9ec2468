//! The page that says what holds for an image, for `/config` and `porch-fn config`.

use std::fmt::Display;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar};
use porch_fn_image::Image;
use porch_fn_service::flags::GoDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::overrides::ContainerOverrides;
use crate::settings::Settings;
use crate::source::{Setting, Source};

/// What holds for one image. Fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// Its canonical reference.
    pub image: String,
    /// One by one.
    pub settings: Vec<Row>,
    /// What is written and does not count.
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
    /// Where it is written, for people.
    pub from: String,
}

/// The page of `image`. Values of environment variables are left out: they may be secret.
pub fn page(settings: &Settings, image: &Image) -> Value {
    let page = Page::new(settings, image);
    // Texts and numbers only: serialising cannot fail.
    serde_json::to_value(&page).unwrap_or_default()
}

impl Page {
    /// See [`page`].
    pub fn new(settings: &Settings, image: &Image) -> Self {
        let effective = settings.of(image);
        let semantics = settings.functions().semantics();
        let ttl = Setting::new(GoDuration(effective.ttl.value).to_string(), effective.ttl.source);
        let mut rows = vec![
            row("ttl", &ttl),
            row("maxPods", &effective.max_pods),
            row("minPods", &effective.min_pods),
            row("maxWaitlistLength", &effective.waitlist),
            row("maxConcurrentPerPod", &effective.per_pod),
            row("maxQueue", &effective.queue),
        ];
        rows.extend(
            semantics
                .map(|semantics| of("functionConfigTags", json!(semantics.value.name()), &semantics.source)),
        );
        if let Some(Setting { value, source }) = effective.executable {
            rows.push(row("executable", &Setting::new(value.to_string_lossy(), source)));
        }

        let (overrides, from) = (&effective.overrides, &effective.overrides_from);
        if let Some(from) = &from.all {
            rows.extend(
                overrides.service_account.iter().map(|name| of("serviceAccountName", json!(name), from)),
            );
            let context = overrides.security_context.iter();
            rows.extend(context.map(|context| of("securityContext", json!(context), from)));
            rows.extend(variables("container", &overrides.container, from));
        }
        if let (Some(from), Some(resources)) = (&from.container_resources, &overrides.container.resources) {
            rows.push(of("container.resources", json!(resources), from));
        }
        if let Some(from) = &from.all {
            rows.extend(variables("initContainer", &overrides.init_container, from));
            let resources = overrides.init_container.resources.iter();
            rows.extend(resources.map(|resources| of("initContainer.resources", json!(resources), from)));
        }
        Self { image: image.to_string(), settings: rows, notes: effective.notes }
    }
}

fn row<T: Serialize>(name: &str, setting: &Setting<T>) -> Row {
    of(name, json!(setting.value), &setting.source)
}

fn of(name: &str, value: Value, from: &impl Display) -> Row {
    Row { setting: name.to_owned(), value, from: from.to_string() }
}

fn variables(container: &str, overrides: &ContainerOverrides, from: &Source) -> Vec<Row> {
    let named = overrides
        .env
        .iter()
        .map(|variable| of(&format!("{container}.env.{}", variable.name), json!(shown(variable)), from));
    let sources = overrides.env_from.iter().enumerate().map(|(index, source)| {
        of(&format!("{container}.envFrom[{index}]"), json!(shown_source(source)), from)
    });
    named.chain(sources).collect()
}

/// Where a variable's value is, but never the value.
fn shown(variable: &EnvVar) -> String {
    let Some(from) = &variable.value_from else { return "(not shown)".to_owned() };
    if let Some(key) = &from.secret_key_ref {
        return format!("secretKeyRef {} key {}", key.name, key.key);
    }
    if let Some(key) = &from.config_map_key_ref {
        return format!("configMapKeyRef {} key {}", key.name, key.key);
    }
    if let Some(field) = &from.field_ref {
        return format!("fieldRef {}", field.field_path);
    }
    if let Some(field) = &from.resource_field_ref {
        return format!("resourceFieldRef {}", field.resource);
    }
    "valueFrom".to_owned()
}

fn shown_source(source: &EnvFromSource) -> String {
    let (kind, name) = match (&source.secret_ref, &source.config_map_ref) {
        (Some(secret), _) => ("secretRef", secret.name.as_str()),
        (None, Some(map)) => ("configMapRef", map.name.as_str()),
        (None, None) => ("nothing", ""),
    };
    match source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        Some(prefix) => format!("{kind} {name} prefix {prefix}"),
        None => format!("{kind} {name}"),
    }
}

#[cfg(test)]
mod tests;
