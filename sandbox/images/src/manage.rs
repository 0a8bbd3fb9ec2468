//! Lists and changes what is here. Removes images that were unused for longest when the store is
//! full, or those that the user wants to be gone. What a running sandbox uses stays.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use porch_fn_image::Image;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::content::is_intact;
use crate::document::{self, Layer, Parsed};
use crate::error::{OnDisk as _, StoreError};
use crate::run_folder::RunFolder;
use crate::store::{Record, Store};

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

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Number of images.
    pub images: usize,
    /// Size of the blobs and trees that no image needs any more, in bytes.
    pub bytes: u64,
}

/// A record that leads to its documents.
struct Entry {
    path: PathBuf,
    record: Record,
    parsed: Parsed,
    used: SystemTime,
}

// === impl Entry ===

impl Entry {
    /// The digests of all blobs that the image needs.
    fn blobs(&self) -> impl Iterator<Item = &str> {
        let layers = self.parsed.layers.iter().map(|layer| &layer.digest);
        [&self.record.manifest, &self.parsed.config].into_iter().chain(layers).map(String::as_str)
    }
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
        for Entry { record, parsed, used, .. } in self.entries()? {
            let Some(bytes) = self.size(&parsed.layers)? else { continue };
            let Record { reference, resolved: digest, manifest, pulled } = record;
            let Parsed { config, layers, .. } = parsed;
            images.push(ImageInfo { reference, digest, manifest, config, bytes, layers, pulled, used });
        }
        images.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(images)
    }

    /// An image and its configuration as JSON. `None`: it is not here.
    ///
    /// # Errors
    /// The disk.
    pub fn inspect(&self, image: &Image) -> Result<Option<(ImageInfo, Value)>, StoreError> {
        let info = self.list()?.into_iter().find(|info| info.reference == image.as_str());
        let Some(info) = info else { return Ok(None) };
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

    /// Removes one image, and what only it needs. Returns whether it was here.
    ///
    /// # Errors
    /// [`StoreError::Busy`], if a sandbox uses the image.
    pub fn remove(&self, image: &Image) -> Result<bool, StoreError> {
        let path = self.record_path(image);
        let lock = self.lock_alone()?;
        if !path.exists() {
            return Ok(false);
        }
        if !remove_free(&path)? {
            return Err(StoreError::Busy(path));
        }
        let doomed = self.run_folder_locked(&lock)?;
        self.remove_unneeded(&doomed)?;
        // What is doomed is removed without the lock.
        drop(lock);
        Ok(true)
    }

    /// Removes images that have not been used for this long and are not in use, and content that
    /// is damaged or that no image needs. Unpacks again what is incomplete.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while other processes use the store all the time.
    pub fn prune(&self, unused_for: Duration) -> Result<Pruned, StoreError> {
        for path in self.files("blobs")? {
            let digest = path.file_name().unwrap_or_default().to_string_lossy().replacen('-', ":", 1);
            if !is_intact(&path, &digest)? {
                fs::remove_file(&path).on_disk("cannot remove", path)?;
            }
        }
        let lock = self.lock_alone()?;
        let doomed = self.run_folder_locked(&lock)?;
        let mut images = 0;
        for entry in self.entries()? {
            let is_old = entry.used.elapsed().is_ok_and(|age| age >= unused_for);
            let is_whole = entry.blobs().all(|digest| self.blob_path(digest).exists());
            images += usize::from((is_old || !is_whole) && remove_free(&entry.path)?);
        }
        let pruned = self.collect_locked(&doomed)?;
        let kept = self.entries()?;
        drop(lock);
        for Entry { record, parsed: Parsed { layers, .. }, .. } in kept {
            let unpacked = (0..layers.len()).try_for_each(|number| self.unpack(&layers, number).map(drop));
            if let Err(error) = unpacked.and_then(|()| self.unpack_plain(&layers).map(drop)) {
                let error = error.to_string();
                tracing::warn!(image = record.reference, error, "an image cannot be unpacked again");
            }
        }
        Ok(Pruned { images: images + pruned.images, ..pruned })
    }

    /// Removes images until the rest fits. A fault is no reason to fail a pull.
    pub(crate) fn collect(&self) {
        match self.collect_now() {
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
        if self.total()? <= self.options().max_bytes {
            return Ok(Pruned::default());
        }
        let lock = self.lock_alone()?;
        let doomed = self.run_folder_locked(&lock)?;
        let pruned = self.collect_locked(&doomed);
        drop(lock);
        pruned
    }

    /// The caller holds the lock alone. Content moves to `doomed`.
    fn collect_locked(&self, doomed: &RunFolder) -> Result<Pruned, StoreError> {
        let mut pruned = Pruned { images: 0, bytes: self.remove_unneeded(doomed)? };
        let mut entries = self.entries()?;
        entries.sort_by_key(|entry| entry.used);
        for entry in entries {
            if self.total()? <= self.options().max_bytes {
                break;
            }
            if remove_free(&entry.path)? {
                pruned.images += 1;
                pruned.bytes += self.remove_unneeded(doomed)?;
            }
        }
        Ok(pruned)
    }

    /// Removes records that lead nowhere, and blobs and trees that no image has. Returns their size.
    fn remove_unneeded(&self, doomed: &RunFolder) -> Result<u64, StoreError> {
        let (mut needed, mut removed) = (HashSet::new(), 0);
        for entry in self.entries()? {
            let trees = self.trees(&entry.parsed.layers)?.unwrap_or_default();
            needed.extend(entry.blobs().map(|digest| self.blob_path(digest)));
            needed.extend(trees.iter().map(|(key, _)| self.tree_path(key)));
            needed.insert(entry.path);
        }
        for path in [self.files("images")?, self.files("blobs")?, self.files("layers")?].concat() {
            if !needed.contains(&path) && is_free(&path)? {
                removed += self.size_of(&path);
                let name = path.file_name().unwrap_or_default();
                fs::rename(&path, doomed.path().join(name)).on_disk("cannot remove", path)?;
            }
        }
        Ok(removed)
    }

    fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        for path in self.files("images")? {
            if let Some((record, parsed)) = self.parse(&path)? {
                let used =
                    fs::metadata(&path).and_then(|file| file.modified()).on_disk("cannot read", &path)?;
                entries.push(Entry { path, record, parsed, used });
            }
        }
        Ok(entries)
    }

    /// Size of an image's layers, unpacked and compressed, in bytes. `None`: a tree is missing.
    pub(crate) fn size(&self, layers: &[Layer]) -> Result<Option<u64>, StoreError> {
        let blobs = layers.iter().map(|layer| layer.size);
        let sum = |trees: Vec<(_, crate::unpack::Size)>| {
            blobs.chain(trees.iter().map(|(_, size)| size.bytes)).fold(0, u64::saturating_add)
        };
        Ok(self.trees(layers)?.map(sum))
    }

    /// Size of all content, in bytes.
    fn total(&self) -> Result<u64, StoreError> {
        let content = [self.files("blobs")?, self.files("layers")?].concat();
        Ok(content.iter().map(|path| self.size_of(path)).fold(0, u64::saturating_add))
    }

    /// Size of a blob or of a tree.
    fn size_of(&self, path: &Path) -> u64 {
        let size = path.file_name().and_then(|name| self.tree(name.to_str()?).ok()?);
        size.map_or_else(|| fs::metadata(path).map_or(0, |file| file.len()), |size| size.bytes)
    }
}

/// Whether no sandbox uses the image or tree. The caller holds the store's lock alone.
fn is_free(path: &Path) -> Result<bool, StoreError> {
    let file = File::open(path).on_disk("cannot open", path)?;
    Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Removes a record, unless a sandbox uses the image.
fn remove_free(record: &Path) -> Result<bool, StoreError> {
    let is_free = is_free(record)?;
    if is_free {
        fs::remove_file(record).on_disk("cannot remove", record)?;
    }
    Ok(is_free)
}
