//! An image that is ready to start.

use std::fs::File;
use std::path::{Path, PathBuf};

use porch_fn_image::Image;
use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, flock, futimens};

use crate::error::OnDisk as _;
use crate::store::{Store, open};
use crate::{RunConfig, StoreError};

/// An image of the store. While it exists, also in another process that inherits its files, the
/// image's layers are not removed.
#[derive(Debug)]
pub struct Stored {
    /// How the image wants to be run.
    pub run: RunConfig,
    /// What the reference resolved to when it was pulled.
    pub digest: String,
    /// The folders with the layers' files, lowest first.
    pub(crate) layers: Vec<PathBuf>,
    /// Whether overlayfs can stack the layers. If not, [`Store::merged`] gives one folder.
    pub(crate) stacks: bool,
    #[allow(dead_code, reason = "closing the files ends the lease")]
    pub(crate) leases: Vec<File>,
}

// === impl Stored ===

impl Stored {
    /// The folders to stack, lowest first. Empty if they do not stack.
    pub fn stack(&self) -> Vec<PathBuf> {
        if self.stacks { self.layers.clone() } else { Vec::new() }
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
        let Some(record) = self.record(image)? else { return Ok(None) };
        let mut stored = Stored {
            run: record.run,
            digest: record.resolved,
            layers: Vec::new(),
            stacks: true,
            leases: Vec::new(),
        };
        for layer in &record.layers {
            // The store is a cache: if something was removed by hand, the image is pulled again.
            let (Some(contents), Some(lease)) = (self.contents(layer)?, lease(&self.layer_path(layer))?)
            else {
                return Ok(None);
            };
            stored.stacks &= contents.has_marks;
            stored.layers.push(self.layer_path(layer).join("fs"));
            stored.leases.push(lease);
        }
        // The layers may be another image's, too. This is only of this one.
        let path = self.record_path(image);
        let Some(lease) = lease(&path)? else { return Ok(None) };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let touched = futimens(&lease, &Timestamps { last_access: keep, last_modification: now });
        touched.on_disk("cannot write", path)?;
        stored.leases.push(lease);
        Ok(Some(stored))
    }
}

/// Keeps a layer or a record until the file is closed. The caller holds the store's lock.
fn lease(path: &Path) -> Result<Option<File>, StoreError> {
    let file = open(path)?;
    if let Some(file) = &file {
        flock(file, FlockOperation::LockShared).on_disk("cannot lock", path)?;
    }
    Ok(file)
}
