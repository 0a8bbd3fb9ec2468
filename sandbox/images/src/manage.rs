//! What a user asks about single images, and changes.

use std::time::SystemTime;

use porch_fn_image::Image;
use serde_json::Value;

use crate::StoreError;
use crate::document::{self, Layer};
use crate::prune::Entry;
use crate::store::Store;

/// An image of the store, for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// The full reference, with its tag or digest.
    pub reference: String,
    /// The digest that the reference had when it was pulled.
    pub digest: String,
    /// The digest of the manifest for this machine's platform.
    pub manifest: String,
    /// The digest of the configuration: what Docker calls the image's ID.
    pub config: String,
    /// Size of its layers, unpacked and compressed, in bytes. Images share layers.
    pub bytes: u64,
    /// The layers, lowest first.
    pub layers: Vec<Layer>,
    /// When it was pulled or imported.
    pub pulled: SystemTime,
    /// When it was last used.
    pub used: SystemTime,
}

// === impl Store ===

impl Store {
    /// The complete images of the store, by name.
    ///
    /// # Errors
    /// The disk.
    pub fn list(&self) -> Result<Vec<ImageInfo>, StoreError> {
        let _lock = self.lock()?;
        let mut images = Vec::new();
        for entry in self.entries()? {
            images.extend(self.info(entry)?);
        }
        images.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(images)
    }

    /// An image and its configuration as JSON. `None`: it is not here.
    ///
    /// # Errors
    /// The disk.
    pub fn inspect(&self, image: &Image) -> Result<Option<(ImageInfo, Value)>, StoreError> {
        let Some(info) = self.list()?.into_iter().find(|info| info.reference == image.as_str()) else {
            return Ok(None);
        };
        let Some(config) = self.blob(&info.config)? else { return Ok(None) };
        Ok(Some((info, document::json("configuration", &config)?)))
    }

    /// Gives an image another name, too. Returns whether the image is here.
    ///
    /// # Errors
    /// The new name has another digest.
    pub fn tag(&self, image: &Image, name: &Image) -> Result<bool, StoreError> {
        // Keeps the image until its new name is saved.
        let stored = self.find(image)?;
        let Some((record, _)) = self.load(image)?.filter(|_| stored.is_some()) else { return Ok(false) };
        self.save(name, record)?;
        Ok(true)
    }

    fn info(&self, entry: Entry) -> Result<Option<ImageInfo>, StoreError> {
        let Entry { record, parsed, used, .. } = entry;
        let blobs = parsed.layers.iter().map(|layer| layer.size);
        let Some(trees) = self.trees(&parsed.layers)? else { return Ok(None) };
        Ok(Some(ImageInfo {
            bytes: blobs.chain(trees.iter().map(|(_, size)| size.bytes)).fold(0, u64::saturating_add),
            reference: record.reference,
            digest: record.resolved,
            manifest: record.manifest,
            config: parsed.config,
            layers: parsed.layers,
            pulled: record.pulled,
            used,
        }))
    }
}
