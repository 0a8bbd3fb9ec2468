//! Lists and changes what is here. Removes images that were unused for longest when the store is
//! full, or those that the user wants to be gone. What a running sandbox uses stays.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use porch_fn_image::Image;
use porch_fn_registry::read_json;
use serde_json::Value;

use crate::StoreError;
use crate::content::is_intact;
use crate::run_folder::{RunFolder, move_free};
use crate::store::{ImageInfo, Store};
use crate::trees::tree;

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Number of images.
    pub images: usize,
    /// Size of the blobs and trees that no image needs any more, in bytes.
    pub bytes: u64,
}

// === impl Store ===

impl Store {
    /// The complete images of the store, by name.
    ///
    /// # Errors
    /// The disk.
    pub fn list(&self) -> Result<Vec<ImageInfo>, StoreError> {
        let _lock = self.lock()?;
        let mut images = self.images()?;
        images.retain(|image| image.trees.is_some());
        images.sort_by(|a, b| a.record.reference.cmp(&b.record.reference));
        Ok(images)
    }

    /// An image and its configuration as JSON. `None`: it is not here.
    ///
    /// # Errors
    /// The disk.
    pub fn inspect(&self, image: &Image) -> Result<Option<(ImageInfo, Value)>, StoreError> {
        let _lock = self.lock()?;
        let Some(info) = self.load(image)? else { return Ok(None) };
        let Some(config) = self.blob(&info.config)? else { return Ok(None) };
        Ok(Some((info, read_json(&config, "configuration")?)))
    }

    /// Gives an image another name, too. Returns whether the image is here.
    ///
    /// # Errors
    /// The new name has another digest.
    pub fn tag(&self, image: &Image, name: &Image) -> Result<bool, StoreError> {
        // Keeps the image until its new name is saved.
        let Some(stored) = self.find(image)? else { return Ok(false) };
        self.save(name, stored.image.record.clone())?;
        Ok(true)
    }

    /// Removes one image, and what only it needs. Returns whether it was here.
    ///
    /// # Errors
    /// [`StoreError::Busy`], if a sandbox uses the image.
    pub fn remove(&self, image: &Image) -> Result<bool, StoreError> {
        let path = self.record_path(image);
        self.alone(|doomed| {
            if !path.exists() {
                return Ok(false);
            }
            if !move_free(&path, doomed)? {
                return Err(StoreError::Busy(path));
            }
            self.remove_unneeded(doomed).map(|_| true)
        })
    }

    /// Removes images that have not been used for this long and are not in use, and content that
    /// is damaged or that no image needs. Unpacks again what is incomplete.
    ///
    /// # Errors
    /// The disk.
    pub fn prune(&self, unused_for: Duration) -> Result<Pruned, StoreError> {
        for path in self.files("blobs")? {
            let digest = path.file_name().unwrap_or_default().to_string_lossy().replacen('-', ":", 1);
            let is_damaged = || matches!(is_intact(&path, &digest), Ok(false));
            // Another process may have replaced it meanwhile.
            if is_damaged() {
                self.alone(|doomed| Ok(is_damaged() && move_free(&path, doomed)?))?;
            }
        }
        let (pruned, kept) =
            self.alone(|doomed| Ok((self.remove_images(doomed, unused_for)?, self.images()?)))?;
        for image in kept {
            if let Err(error) = self.unpack_all(&image.layers) {
                let error = error.to_string();
                tracing::warn!(image = image.record.reference, error, "an image cannot be unpacked again");
            }
        }
        Ok(pruned)
    }

    /// Removes images until the rest fits. A fault is no reason to fail a pull.
    pub(crate) async fn collect(&self) {
        match self.blocking(Self::collect_now).await {
            Ok(Pruned { bytes: 0, .. }) => {}
            Ok(Pruned { images, bytes }) => {
                tracing::info!(images, bytes, "images that were unused for longest are removed");
            }
            Err(error) => {
                tracing::warn!(error = error.to_string(), "images that are not needed cannot be removed");
            }
        }
    }

    fn collect_now(&self) -> Result<Pruned, StoreError> {
        if self.is_full()? {
            self.alone(|doomed| self.remove_images(doomed, Duration::MAX))
        } else {
            Ok(Pruned::default())
        }
    }

    /// Does what only one process may do. What it moves to the folder is removed without the lock.
    fn alone<T>(&self, work: impl FnOnce(&RunFolder) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let lock = self.lock_alone()?;
        let doomed = self.run_folder()?;
        let done = work(&doomed);
        drop(lock);
        done
    }

    /// Removes images that have not been used for this long or lack a blob, what no image needs, and
    /// then images until the rest fits.
    fn remove_images(&self, doomed: &RunFolder, unused_for: Duration) -> Result<Pruned, StoreError> {
        let is_old = |image: &ImageInfo| image.used.elapsed().is_ok_and(|age| age >= unused_for);
        let is_whole = |image: &ImageInfo| image.blobs().all(|digest| self.blob_path(digest).exists());
        let is_wanted = |image: &ImageInfo| is_whole(image) && !is_old(image);
        let mut images = self.images()?;
        images.sort_by_cached_key(|image| (is_wanted(image), image.used));
        let mut pruned = Pruned::default();
        for image in images {
            if is_wanted(&image) {
                pruned.bytes += self.remove_unneeded(doomed)?;
                if !self.is_full()? {
                    return Ok(pruned);
                }
            }
            pruned.images += usize::from(move_free(&image.path, doomed)?);
        }
        pruned.bytes += self.remove_unneeded(doomed)?;
        Ok(pruned)
    }

    /// Removes records that lead nowhere, and blobs and trees that no image has. Returns their size.
    fn remove_unneeded(&self, doomed: &RunFolder) -> Result<u64, StoreError> {
        let (mut needed, mut removed) = (HashSet::new(), 0);
        for image in self.images()? {
            needed.extend(image.blobs().map(|digest| self.blob_path(digest)));
            needed.insert(image.path);
            needed.extend(image.trees.into_iter().flatten().map(|(tree, _)| tree));
        }
        for path in [self.files("images")?, self.files("blobs")?, self.files("layers")?].concat() {
            let bytes = size_of(&path);
            if !needed.contains(&path) && move_free(&path, doomed)? {
                removed += bytes;
            }
        }
        Ok(removed)
    }

    /// Whether all content takes more than `--image-max-size`.
    fn is_full(&self) -> Result<bool, StoreError> {
        let content = [self.files("blobs")?, self.files("layers")?].concat();
        let bytes = content.iter().map(|path| size_of(path)).fold(0, u64::saturating_add);
        Ok(bytes > self.max_bytes)
    }
}

/// Size of a record, a blob or a tree.
fn size_of(path: &Path) -> u64 {
    let file_size = || fs::metadata(path).map_or(0, |file| file.len());
    tree(path).map_or_else(file_size, |size| size.bytes)
}
