//! Single images of the store: their names, and what is known about them.

use porch_fn_image::Image;

use crate::record::{ImageInfo, Record};
use crate::store::{Store, remove};
use crate::{RunConfig, StoreError};

/// What is known about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// Its row in a list.
    pub info: ImageInfo,
    /// The digest of the manifest for this machine's platform.
    pub manifest: String,
    /// The digests of the layers as they are in the registry, lowest first.
    pub layers: Vec<String>,
    /// How the image wants to be run.
    pub run: RunConfig,
}

// === impl Store ===

impl Store {
    /// What is known about the image. `None`: it is not here.
    ///
    /// # Errors
    /// The disk.
    pub fn inspect(&self, image: &Image) -> Result<Option<Details>, StoreError> {
        let Some(record) = self.record(image)? else { return Ok(None) };
        let info = self.list()?.into_iter().find(|info| info.reference == image.as_str());
        Ok(info.map(|info| Details {
            info,
            manifest: record.manifest,
            layers: record.blobs,
            run: record.run,
        }))
    }

    /// Removes the image. Returns whether it was here.
    ///
    /// # Errors
    /// The disk.
    pub fn remove(&self, image: &Image) -> Result<bool, StoreError> {
        let _lock = self.lock_alone()?.ok_or_else(|| StoreError::Busy(self.folder().to_owned()))?;
        let is_here = self.record(image)?.is_some();
        remove(&self.record_path(image))?;
        self.remove_unneeded()?;
        Ok(is_here)
    }

    /// Gives the image a further name. Returns whether the image is here.
    ///
    /// # Errors
    /// The disk.
    pub fn tag(&self, image: &Image, name: &Image) -> Result<bool, StoreError> {
        let _lock = self.lock()?;
        let Some(record) = self.record(image)? else { return Ok(false) };
        self.save(&self.record_path(name), &Record { reference: name.as_str().to_owned(), ..record })?;
        Ok(true)
    }
}
