//! Removes images: those that were unused for longest when the store is full, or those that the
//! user wants to be gone. What a running sandbox uses stays.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use crate::StoreError;
use crate::error::OnDisk as _;
use crate::record::{ImageInfo, Record};
use crate::store::{Lock, Store, digest_of, file_name, open, remove};

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Number of images.
    pub images: usize,
    /// Size of the blobs and layers that no image needs any more, in bytes.
    pub bytes: u64,
}

/// A record and its file.
struct Entry {
    path: PathBuf,
    record: Record,
    used: SystemTime,
}

// === impl Store ===

impl Store {
    /// The images of the store, by name.
    ///
    /// # Errors
    /// The disk.
    pub fn list(&self) -> Result<Vec<ImageInfo>, StoreError> {
        let _lock = self.lock()?;
        let info = |Entry { record, used, .. }: Entry| ImageInfo {
            bytes: self.size(record.all_blobs(), record.layers.iter().map(String::as_str)),
            reference: record.reference,
            digest: record.resolved,
            pulled: record.pulled,
            used,
        };
        let mut images: Vec<_> = self.entries()?.into_iter().map(info).collect();
        images.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(images)
    }

    /// Removes images that have not been used for this long and are not in use, and content that
    /// no image needs.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while another process pulls or starts images.
    pub fn prune(&self, unused_for: Duration) -> Result<Pruned, StoreError> {
        let lock = self.lock_alone()?.ok_or_else(|| StoreError::Busy(self.folder().to_owned()))?;
        let mut images = 0;
        for entry in self.entries()? {
            let is_old = entry.used.elapsed().is_ok_and(|age| age >= unused_for);
            if is_old && is_free(&entry.path)? {
                remove(&entry.path)?;
                images += 1;
            }
        }
        let collected = self.collect_locked(&lock)?;
        Ok(Pruned { images: images + collected.images, ..collected })
    }

    /// Removes images until the rest fits. Does nothing while other processes pull or start images.
    pub(crate) fn collect(&self) -> Result<(), StoreError> {
        if self.total()? > self.options().max_bytes
            && let Some(lock) = self.lock_alone()?
        {
            let Pruned { images, bytes } = self.collect_locked(&lock)?;
            tracing::info!(images, bytes, "images that were unused for longest are removed");
        }
        Ok(())
    }

    fn collect_locked(&self, _: &Lock) -> Result<Pruned, StoreError> {
        let mut pruned = Pruned { images: 0, bytes: self.remove_unneeded()? };
        let mut total = self.total()?;
        let mut entries = self.entries()?;
        entries.sort_by_key(|entry| entry.used);
        for entry in entries {
            if total <= self.options().max_bytes {
                break;
            }
            if is_free(&entry.path)? {
                remove(&entry.path)?;
                let freed = self.remove_unneeded()?;
                total -= freed;
                pruned.images += 1;
                pruned.bytes += freed;
            }
        }
        Ok(pruned)
    }

    /// Removes blobs and layers that no image has. Returns their size.
    pub(crate) fn remove_unneeded(&self) -> Result<u64, StoreError> {
        let entries = self.entries()?;
        let records = || entries.iter().map(|entry| &entry.record);
        let blobs = records().flat_map(Record::all_blobs).map(file_name).collect();
        let layers = records().flat_map(|record| &record.layers).map(|layer| file_name(layer)).collect();
        let merged = records().map(|record| Self::merged_key(&record.layers)).collect();
        // Files of merged folders are those of layers.
        self.retain("merged", &merged, |_, _| 0)?;
        Ok(self.retain("blobs", &blobs, Self::blob_size)?
            + self.retain("layers", &layers, Self::layer_size)?)
    }

    /// Removes all but these names. Returns the size of what was removed.
    fn retain(
        &self,
        folder: &str,
        names: &HashSet<String>,
        size: impl Fn(&Self, &str) -> u64,
    ) -> Result<u64, StoreError> {
        let mut removed = 0;
        for path in self.files(folder)? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !names.contains(name) && is_free(&path)? {
                removed += size(self, &digest_of(name));
                // Renamed first, so that nothing with a final name is ever incomplete.
                let workspace = self.workspace()?;
                let doomed = workspace.path().join("removed");
                fs::rename(&path, &doomed).on_disk("cannot remove", &path)?;
                remove(&doomed)?;
            }
        }
        Ok(removed)
    }

    fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        for path in self.files("images")? {
            let read = || -> std::io::Result<_> { Ok((fs::read(&path)?, fs::metadata(&path)?.modified()?)) };
            let (bytes, used) = read().on_disk("cannot read", &path)?;
            if let Ok(record) = serde_json::from_slice(&bytes) {
                entries.push(Entry { path, record, used });
            }
        }
        Ok(entries)
    }

    /// Size of all content, in bytes.
    fn total(&self) -> Result<u64, StoreError> {
        let digests = |folder| -> Result<Vec<String>, StoreError> {
            let digest = |path: PathBuf| Some(digest_of(path.file_name()?.to_str()?));
            Ok(self.files(folder)?.into_iter().filter_map(digest).collect())
        };
        let (blobs, layers) = (digests("blobs")?, digests("layers")?);
        Ok(self.size(blobs.iter().map(String::as_str), layers.iter().map(String::as_str)))
    }

    fn size<'a>(&self, blobs: impl Iterator<Item = &'a str>, layers: impl Iterator<Item = &'a str>) -> u64 {
        let blobs: u64 = blobs.map(|digest| self.blob_size(digest)).sum();
        blobs + layers.map(|digest| self.layer_size(digest)).sum::<u64>()
    }

    fn blob_size(&self, digest: &str) -> u64 {
        fs::metadata(self.blob_path(digest)).map_or(0, |file| file.len())
    }

    fn layer_size(&self, digest: &str) -> u64 {
        self.contents(digest).ok().flatten().map_or(0, |contents| contents.bytes)
    }
}

/// Whether no sandbox uses the image or layer. The caller holds the store's lock alone.
fn is_free(path: &Path) -> Result<bool, StoreError> {
    let Some(file) = open(path)? else { return Ok(true) };
    Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}
