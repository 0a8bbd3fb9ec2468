//! The form of `docker save` before version 25: `manifest.json` names files.

use std::str::FromStr as _;

use oci_spec::image::{Descriptor, Digest, ImageManifestBuilder, MediaType, SCHEMA_VERSION};
use serde::Deserialize;

use super::{Archive, Found, problem};
use crate::StoreError;
use crate::document::json;

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
        let bytes = self.document("manifest.json")?.ok_or_else(|| {
            problem("it has neither index.json nor manifest.json: save it with `docker save`")
        })?;
        let images: Vec<WireImage> = json("archive", &bytes)?;
        images.into_iter().map(|image| self.docker_image(image)).collect()
    }

    /// Such archives have no manifest, so one is made from what they have.
    fn docker_image(&self, image: WireImage) -> Result<Found, StoreError> {
        let describe = |name: &str, kind: MediaType| {
            let file = self.files.get(&super::normal(name.as_bytes()));
            let file = file.ok_or_else(|| problem(format!("it does not have {name:?} as a file")))?;
            Ok::<_, StoreError>(Descriptor::new(
                kind,
                file.size,
                Digest::from_str(&file.digest).map_err(problem)?,
            ))
        };
        let config = describe(&image.config, MediaType::ImageConfig)?;
        let layers = image.layers.iter().map(|layer| describe(layer, MediaType::ImageLayer));
        let manifest = ImageManifestBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageManifest)
            .config(config)
            .layers(layers.collect::<Result<Vec<_>, _>>()?)
            .build()
            .map_err(problem)?;
        let names = image.repo_tags.unwrap_or_default().into_iter().flatten().collect();
        Ok(Found { names, index: None, manifest: serde_json::to_vec(&manifest).map_err(problem)? })
    }
}
