//! The form of `docker save` before version 25: `manifest.json` names files.

use std::fs::{self, File};

use porch_fn_registry::Hasher;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Archive, CONTAINERD_NAME, name_of, normal, problem};
use crate::content::Hashed;
use crate::document;
use crate::error::{OnDisk as _, StoreError};

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
    /// Adds what the other form has: an index, manifests, and names of files by their digests.
    pub(super) fn convert(&mut self) -> Result<(), StoreError> {
        let images: Vec<WireImage> = document::json("archive", &self.text("manifest.json")?)?;
        let mut entries = Vec::new();
        for image in images {
            let layers = image.layers.iter().map(|layer| self.describe(layer, "layer.v1.tar"));
            let layers = layers.collect::<Result<Vec<_>, _>>()?;
            let config = self.describe(&image.config, "config.v1+json")?;
            self.add("manifest", &json!({"schemaVersion": 2, "config": config, "layers": layers}))?;
            let entry = self.describe("manifest", "manifest.v1+json")?;
            let names: Vec<_> = image.repo_tags.unwrap_or_default().into_iter().flatten().collect();
            let named = |name| {
                let mut entry = entry.clone();
                entry["annotations"] = json!({CONTAINERD_NAME: name});
                entry
            };
            entries.extend(names.iter().map(named));
            entries.extend(names.is_empty().then_some(entry.clone()));
        }
        self.add("index.json", &json!({"manifests": entries}))
    }

    fn add(&mut self, name: &str, document: &Value) -> Result<(), StoreError> {
        let path = self.folder.path().join(format!("added-{}", self.files.len()));
        fs::write(&path, document.to_string()).on_disk("cannot write", &path)?;
        self.files.insert(name.to_owned(), path);
        Ok(())
    }

    /// The descriptor of a file, which gets another name by its digest.
    fn describe(&mut self, name: &str, kind: &str) -> Result<Value, StoreError> {
        let path = self.files.get(&normal(name.as_bytes())).cloned();
        let path = path.ok_or_else(|| problem(format!("it does not have {name:?} as a file")))?;
        let describe = || {
            let file = File::open(&path)?;
            let size = file.metadata()?.len();
            std::io::Result::Ok((Hashed::new(file, Hasher::sha256()).finish()?, size))
        };
        let (digest, size) = describe().on_disk("cannot read", &path)?;
        self.files.insert(name_of(&digest), path);
        let kind = format!("application/vnd.oci.image.{kind}");
        Ok(json!({"mediaType": kind, "digest": digest, "size": size}))
    }
}
