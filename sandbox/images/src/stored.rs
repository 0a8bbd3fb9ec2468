//! An image that is ready to start.

use std::fs::File;
use std::path::PathBuf;

use porch_fn_image::Image;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};

use crate::error::OnDisk as _;
use crate::store::{Store, lease};
use crate::{RunConfig, StoreError};

/// An image of the store. While it exists, also in another process that inherits its files, the
/// image's trees are not removed.
#[derive(Debug)]
pub struct Stored {
    /// How the image wants to be run.
    pub run: RunConfig,
    /// What the reference resolved to when it was pulled.
    pub digest: String,
    layers: Vec<PathBuf>,
    #[allow(dead_code, reason = "closing the files ends the lease")]
    leases: Vec<File>,
}

// === impl Stored ===

impl Stored {
    /// The folders to stack, lowest first. Not empty.
    pub fn stack(&self) -> Vec<PathBuf> {
        self.layers.clone()
    }
}

// === impl Store ===

impl Store {
    /// Returns the image, if it is here and complete, and notes that it is used now.
    ///
    /// # Errors
    /// The disk.
    pub fn find(&self, image: &Image) -> Result<Option<Stored>, StoreError> {
        let _lock = self.lock()?;
        let Some((record, parsed)) = self.load(image)? else { return Ok(None) };
        let Some(trees) = self.trees(&parsed.layers)? else { return Ok(None) };
        for layer in &parsed.layers {
            // The image could not be exported, or unpacked again.
            if self.lease_blob(layer)?.is_none() {
                return Ok(None);
            }
        }
        let mut leases = Vec::new();
        for (key, _) in &trees {
            leases.extend(lease(&self.tree_path(key))?);
        }
        // The trees may be another image's, too. This is only of this one.
        let path = self.record_path(image);
        let Some(lease) = lease(&path)? else { return Ok(None) };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let touched = futimens(&lease, &Timestamps { last_access: keep, last_modification: now });
        touched.on_disk("cannot write", path)?;
        leases.push(lease);
        let layers = trees.iter().map(|(key, _)| self.files_of(key)).collect();
        Ok(Some(Stored { run: parsed.run, digest: record.resolved, layers, leases }))
    }
}
