//! Removes images: those that were unused for longest when the store is full, or those that the
//! user wants to be gone. What a running sandbox uses stays.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use crate::StoreError;
use crate::document::{MAX_DOCUMENT, Parsed};
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
    pub(crate) path: PathBuf,
    pub(crate) record: Record,
    pub(crate) parsed: Parsed,
    pub(crate) used: SystemTime,
}

// === impl Entry ===

impl Entry {
    /// The digests of all blobs that the image needs.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &str> {
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
    /// [`StoreError::Busy`] while another process uses the store all the time.
    pub fn prune(&self, unused_for: Duration) -> Result<Pruned, StoreError> {
        let mut damaged = Vec::new();
        for path in self.files("blobs")? {
            let Ok(blob) = File::open(&path) else { continue };
            if !self.is_intact(&digest_of(&path), &blob)? {
                damaged.push(path);
            }
        }
        let lock = self.must_lock_alone()?;
        let doomed = self.run_folder_locked(&lock)?;
        for path in damaged {
            // Another process may have replaced it.
            if let Ok(blob) = File::open(&path)
                && !self.is_intact(&digest_of(&path), &blob)?
            {
                fs::remove_file(&path).on_disk("cannot remove", path)?;
            }
        }
        let mut images = 0;
        for entry in self.entries()? {
            let is_old = entry.used.elapsed().is_ok_and(|age| age >= unused_for);
            let is_whole = entry.blobs().all(|digest| self.blob_path(digest).exists());
            if (is_old || !is_whole) && is_free(&entry.path)? {
                fs::remove_file(&entry.path).on_disk("cannot remove", entry.path)?;
                images += 1;
            }
        }
        let collected = self.collect_locked(&doomed)?;
        let kept = self.entries()?;
        drop(lock);
        for Entry { record, parsed: Parsed { layers, .. }, .. } in kept {
            let mut unpacked =
                (0..layers.len()).try_for_each(|number| self.unpack(&layers, number).map(drop));
            unpacked = unpacked.and_then(|()| self.unpack_plain(&layers).map(drop));
            if let Err(error) = unpacked {
                let error = error.to_string();
                tracing::warn!(image = record.reference, error, "an image cannot be unpacked again");
            }
        }
        Ok(Pruned { images: images + collected.images, ..collected })
    }

    /// Removes images until the rest fits. A fault is no reason to fail a pull.
    pub(crate) fn collect_or_warn(&self) -> Result<(), StoreError> {
        let collect = || -> Result<(), StoreError> {
            if self.total()? <= self.options().max_bytes {
                return Ok(());
            }
            let Some(lock) = self.lock_alone()? else { return Ok(()) };
            let doomed = self.run_folder_locked(&lock)?;
            let Pruned { images, bytes } = self.collect_locked(&doomed)?;
            drop(lock);
            tracing::info!(images, bytes, "images that were unused for longest are removed");
            Ok(())
        };
        if let Err(error) = collect() {
            tracing::warn!(error = error.to_string(), "images that are not needed cannot be removed");
        }
        Ok(())
    }

    /// The caller holds the lock alone. Large folders move to `doomed`, which is removed after the
    /// lock was released.
    fn collect_locked(&self, doomed: &RunFolder) -> Result<Pruned, StoreError> {
        let mut pruned = Pruned { images: 0, bytes: self.remove_unneeded(doomed)? };
        let mut total = self.total()?;
        let mut entries = self.entries()?;
        entries.sort_by_key(|entry| entry.used);
        for entry in entries {
            if total <= self.options().max_bytes {
                break;
            }
            if is_free(&entry.path)? {
                fs::remove_file(&entry.path).on_disk("cannot remove", entry.path)?;
                let freed = self.remove_unneeded(doomed)?;
                total = total.saturating_sub(freed);
                pruned.images += 1;
                pruned.bytes += freed;
            }
        }
        Ok(pruned)
    }

    /// Removes one image, and what only it needs.
    pub(crate) fn remove_record(&self, path: &Path) -> Result<bool, StoreError> {
        let lock = self.must_lock_alone()?;
        if !path.exists() {
            return Ok(false);
        }
        if !is_free(path)? {
            return Err(StoreError::Busy(path.to_owned()));
        }
        fs::remove_file(path).on_disk("cannot remove", path)?;
        let doomed = self.run_folder_locked(&lock)?;
        self.remove_unneeded(&doomed)?;
        drop(lock);
        Ok(true)
    }

    /// Removes records that lead nowhere, and blobs and trees that no image has. Returns their size.
    fn remove_unneeded(&self, doomed: &RunFolder) -> Result<u64, StoreError> {
        let entries = self.entries()?;
        let name = |path: &Path| path.file_name().map(ToOwned::to_owned);
        let records: HashSet<_> = entries.iter().filter_map(|entry| name(&entry.path)).collect();
        let blobs = entries.iter().flat_map(Entry::blobs).map(|digest| self.blob_path(digest));
        let blobs: HashSet<_> = blobs.filter_map(|path| name(&path)).collect();
        let mut trees = HashSet::new();
        for entry in &entries {
            let complete = self.trees(&entry.parsed.layers)?.unwrap_or_default();
            trees.extend(complete.into_iter().map(|(key, _)| key.into()));
        }
        let mut removed = 0;
        for (folder, names) in [("images", records), ("blobs", blobs), ("layers", trees)] {
            for path in self.files(folder)? {
                let name = name(&path).unwrap_or_default();
                if names.contains(&name) || !is_free(&path)? {
                    continue;
                }
                removed += if folder == "images" { 0 } else { self.size_of(&path) };
                fs::rename(&path, doomed.path().join(&name)).on_disk("cannot remove", path)?;
            }
        }
        Ok(removed)
    }

    pub(crate) fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        for path in self.files("images")? {
            let Some(bytes) = read(&path, MAX_DOCUMENT)? else { continue };
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
        let content = self.files("blobs")?.into_iter().chain(self.files("layers")?);
        Ok(content.map(|path| self.size_of(&path)).fold(0, u64::saturating_add))
    }

    /// Size of a blob or of a tree.
    fn size_of(&self, path: &Path) -> u64 {
        let size = path.file_name().and_then(|name| self.tree(name.to_str()?).ok()?);
        size.map_or_else(|| fs::metadata(path).map_or(0, |file| file.len()), |size| size.bytes)
    }
}

fn digest_of(blob: &Path) -> String {
    blob.file_name().unwrap_or_default().to_string_lossy().replacen('-', ":", 1)
}

/// Whether no sandbox uses the image or tree. The caller holds the store's lock alone.
fn is_free(path: &Path) -> Result<bool, StoreError> {
    match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        file => {
            Ok(flock(file.on_disk("cannot open", path)?, FlockOperation::NonBlockingLockExclusive).is_ok())
        }
    }
}
