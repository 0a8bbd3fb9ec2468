//! Removes images: those that were unused for longest when the store is full, or those that the
//! user wants to be gone. What a running sandbox uses stays.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use porch_fn_image::Image;
use rustix::fs::{FlockOperation, flock};

use crate::StoreError;
use crate::document::Parsed;
use crate::error::OnDisk as _;
use crate::record::Record;
use crate::run_folder::RunFolder;
use crate::store::{Store, read};

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Number of images.
    pub images: usize,
    /// Size of the blobs and trees that no image needs any more, in bytes.
    pub bytes: u64,
}

/// A record that leads to its documents.
pub(crate) struct Entry {
    path: PathBuf,
    pub(crate) record: Record,
    pub(crate) parsed: Parsed,
    pub(crate) used: SystemTime,
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
    /// Removes images that have not been used for this long and are not in use, and content that
    /// is damaged or that no image needs. Unpacks again what is incomplete.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while other processes use the store all the time.
    pub fn prune(&self, unused_for: Duration) -> Result<Pruned, StoreError> {
        for path in self.files("blobs")? {
            let digest = path.file_name().unwrap_or_default().to_string_lossy().replacen('-', ":", 1);
            if !self.is_intact(&digest, &File::open(&path).on_disk("cannot open", &path)?)? {
                fs::remove_file(&path).on_disk("cannot remove", path)?;
            }
        }
        let lock = self.lock_alone()?.ok_or_else(|| StoreError::Busy(self.folder().to_owned()))?;
        let doomed = self.run_folder_locked(&lock)?;
        let mut images = 0;
        for entry in self.entries()? {
            let is_old = entry.used.elapsed().is_ok_and(|age| age >= unused_for);
            let is_whole = entry.blobs().all(|digest| self.blob_path(digest).exists());
            if (is_old || !is_whole) && is_free(&entry.path)? {
                fs::remove_file(&entry.path).on_disk("cannot remove", entry.path)?;
                images += 1;
            }
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

    /// Removes one image, and what only it needs. Returns whether it was here.
    ///
    /// # Errors
    /// [`StoreError::Busy`], if a sandbox uses the image.
    pub fn remove(&self, image: &Image) -> Result<bool, StoreError> {
        let path = self.record_path(image);
        let lock = self.lock_alone()?.ok_or_else(|| StoreError::Busy(self.folder().to_owned()))?;
        if !path.exists() {
            return Ok(false);
        }
        if !is_free(&path)? {
            return Err(StoreError::Busy(path));
        }
        fs::remove_file(&path).on_disk("cannot remove", path)?;
        let doomed = self.run_folder_locked(&lock)?;
        self.remove_unneeded(&doomed)?;
        // What is doomed is removed without the lock.
        drop(lock);
        Ok(true)
    }

    /// Removes images until the rest fits. A fault is no reason to fail a pull.
    pub(crate) fn collect(&self) {
        let collect = || -> Result<(), StoreError> {
            if self.total()? > self.options().max_bytes
                && let Some(lock) = self.lock_alone()?
            {
                let doomed = self.run_folder_locked(&lock)?;
                let Pruned { images, bytes } = self.collect_locked(&doomed)?;
                drop(lock);
                tracing::info!(images, bytes, "images that were unused for longest are removed");
            }
            Ok(())
        };
        if let Err(error) = collect() {
            tracing::warn!(error = error.to_string(), "images that are not needed cannot be removed");
        }
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
            if is_free(&entry.path)? {
                fs::remove_file(&entry.path).on_disk("cannot remove", entry.path)?;
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

    pub(crate) fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        for path in self.files("images")? {
            let Some(bytes) = read(&path)? else { continue };
            if let Some((record, parsed)) = self.parse(&bytes)? {
                let used =
                    fs::metadata(&path).and_then(|file| file.modified()).on_disk("cannot read", &path)?;
                entries.push(Entry { path, record, parsed, used });
            }
        }
        Ok(entries)
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
