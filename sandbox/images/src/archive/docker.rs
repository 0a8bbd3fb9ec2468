//! The form of `docker save` before version 25: `manifest.json` names files.

use std::str::FromStr as _;

use oci_spec::image::{Descriptor, Digest, ImageManifestBuilder, MediaType, SCHEMA_VERSION};
use serde::Deserialize;

use super::{Archive, Found};
use crate::StoreError;

/// An image of `manifest.json`.
/// <https://github.com/moby/moby/blob/master/image/spec/spec.md#combined-image-json--filesystem-changeset-format>
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

// === impl Archive ===

impl Archive {
    pub(super) fn docker(&self) -> Result<Vec<Found>, StoreError> {
        let problem = |reason| StoreError::document("archive", reason);
        let Some(bytes) = self.document("manifest.json")? else {
            return Err(problem(
                "it has neither index.json nor manifest.json: save it with `docker save`".to_owned(),
            ));
        };
        let images: Vec<WireImage> =
            serde_json::from_slice(&bytes).map_err(|error| problem(format!("manifest.json: {error}")))?;
        images.into_iter().map(|image| self.docker_image(image)).collect()
    }

    /// Such archives have no manifest, so one is made from what they have.
    fn docker_image(&self, image: WireImage) -> Result<Found, StoreError> {
        let describe = |name: &str, kind: MediaType| {
            let name = super::normal(name.as_bytes());
            let file = self.files.get(&name);
            let file =
                file.ok_or_else(|| StoreError::document("archive", format!("it does not have {name}")))?;
            let digest =
                Digest::from_str(&file.digest).map_err(|error| StoreError::document("archive", error))?;
            Ok::<_, StoreError>(Descriptor::new(kind, file.size, digest))
        };
        let config = describe(&image.config, MediaType::ImageConfig)?;
        let layers: Result<Vec<_>, _> =
            image.layers.iter().map(|layer| describe(layer, MediaType::ImageLayer)).collect();
        let manifest = ImageManifestBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageManifest)
            .config(config)
            .layers(layers?)
            .build()
            .map_err(|error| StoreError::document("archive", error))?;
        let manifest =
            serde_json::to_vec(&manifest).map_err(|error| StoreError::document("archive", error))?;
        Ok(Found { names: image.repo_tags.unwrap_or_default(), manifest })
    }
}
