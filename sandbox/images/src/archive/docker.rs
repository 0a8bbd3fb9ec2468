//! The form of `docker save` before version 25: `manifest.json` names files.

use serde::Deserialize;
use serde_json::json;

use super::{Archive, Found, problem};
use crate::{StoreError, document};

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
    pub(super) fn docker(&self) -> Result<Vec<Found>, StoreError> {
        let missing = || problem("it has neither index.json nor manifest.json: save it with `docker save`");
        let bytes = self.document("manifest.json")?.ok_or_else(missing)?;
        let images: Vec<WireImage> = document::json("archive", &bytes)?;
        images.into_iter().map(|image| self.docker_image(image)).collect()
    }

    /// Such archives have no manifest, so one is made from what they have.
    fn docker_image(&self, image: WireImage) -> Result<Found, StoreError> {
        let describe = |name: &String, kind: &str| {
            let file = self.files.get(&super::normal(name.as_bytes()));
            let file = file.ok_or_else(|| problem(format!("it does not have {name:?} as a file")))?;
            let kind = format!("application/vnd.oci.image.{kind}");
            Ok::<_, StoreError>(json!({"mediaType": kind, "digest": file.digest, "size": file.size}))
        };
        let layers = image.layers.iter().map(|layer| describe(layer, "layer.v1.tar"));
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": describe(&image.config, "config.v1+json")?,
            "layers": layers.collect::<Result<Vec<_>, _>>()?,
        });
        let names = image.repo_tags.unwrap_or_default().into_iter().flatten().collect();
        Ok(Found { names, index: None, manifest: manifest.to_string().into_bytes() })
    }
}
