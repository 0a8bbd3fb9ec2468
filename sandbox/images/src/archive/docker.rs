//! The form of `docker save` before version 25: `manifest.json` names files.

use std::fs;

use porch_fn_registry::read_json;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Archive, CONTAINERD_NAME, problem};
use crate::content::name_of;
use crate::error::{OnDisk as _, StoreError};
use crate::unpack::clean;

/// An image of `manifest.json`.
/// <https://github.com/moby/moby/blob/master/image/spec/spec.md#combined-image-json--filesystem-changeset-format>
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireImage {
    config: String,
    repo_tags: Option<Vec<Option<String>>>,
    layers: Vec<String>,
}

// === impl Archive ===

impl Archive {
    /// Adds what the other form has: an index and manifests.
    pub(super) fn convert(&mut self) -> Result<(), StoreError> {
        let images: Vec<WireImage> = read_json(&self.named("manifest.json")?, "archive")?;
        let mut entries = Vec::new();
        for image in images {
            let layers = image.layers.iter().map(|layer| self.describe(layer, "layer.v1.tar"));
            let layers = layers.collect::<Result<Vec<_>, _>>()?;
            let config = self.describe(&image.config, "config.v1+json")?;
            self.write("manifest", &json!({"schemaVersion": 2, "config": config, "layers": layers}))?;
            let entry = self.describe("manifest", "manifest.v1+json")?;
            let mut names = image.repo_tags.unwrap_or_default();
            // One entry for each name, or one without.
            names.resize(names.len().max(1), None);
            for name in names {
                let mut entry = entry.clone();
                entry["annotations"] = json!({CONTAINERD_NAME: name});
                entries.push(entry);
            }
        }
        self.write("index.json", &json!({"manifests": entries}))
    }

    fn write(&mut self, name: &str, document: &Value) -> Result<(), StoreError> {
        let added = self.add(name.into(), document.to_string().as_bytes());
        added.on_disk("cannot write", self.folder.path())
    }

    /// The descriptor of a file.
    fn describe(&self, name: &str, kind: &str) -> Result<Value, StoreError> {
        let digest = clean(name.as_bytes()).ok().and_then(|name| self.digests.get(&name));
        let digest = digest.ok_or_else(|| problem(format!("it does not have {name:?} as a file")))?;
        let path = self.folder.path().join(name_of(digest));
        let size = fs::metadata(&path).on_disk("cannot read", path)?.len();
        let kind = format!("application/vnd.oci.image.{kind}");
        Ok(json!({"mediaType": kind, "digest": digest, "size": size}))
    }
}
