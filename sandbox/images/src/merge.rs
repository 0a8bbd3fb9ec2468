//! The layers of an image in one folder, for kernels and file systems where overlayfs cannot stack
//! them. Files are hard links to the files of the layers, so a merged folder takes little room.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use pathrs::Root;
use pathrs::flags::ResolverFlags;
use porch_fn_registry::sha256;
use rustix::fs::{FlockOperation, flock};

use crate::error::OnDisk as _;
use crate::store::{self, Store, publish, remove};
use crate::{StoreError, Stored};

// === impl Store ===

impl Store {
    /// The folder with all files of the image, and with these folders, which sandboxes need. Creates it
    /// when it is needed for the first time.
    ///
    /// # Errors
    /// The disk.
    pub fn merged(&self, stored: &mut Stored, mount_points: &[&str]) -> Result<PathBuf, StoreError> {
        let _lock = self.lock()?;
        let digests: Vec<_> = stored.layers.iter().filter_map(|layer| digest_of(layer)).collect();
        let folder = self.path("merged").join(Self::merged_key(&digests));
        if !folder.exists() {
            let workspace = self.workspace()?;
            let merged = workspace.path().join("merged");
            fs::create_dir(&merged).on_disk("cannot write", &merged)?;
            for (digest, layer) in digests.iter().zip(&stored.layers) {
                let contents = self.contents(digest)?.unwrap_or_default();
                add(&merged, layer, &contents.whiteouts, &contents.opaque).on_disk("cannot merge", layer)?;
            }
            for name in mount_points {
                let point = merged.join(name);
                if fs::symlink_metadata(&point).is_err() {
                    fs::create_dir(&point).on_disk("cannot write", point)?;
                }
            }
            publish(&merged, &folder)?;
        }
        let lease = File::open(&folder).on_disk("cannot open", &folder)?;
        flock(&lease, FlockOperation::LockShared).on_disk("cannot lock", &folder)?;
        stored.leases.push(lease);
        Ok(folder)
    }

    /// The name of the folder for these layers.
    pub(crate) fn merged_key(layers: &[String]) -> String {
        sha256(layers.join("\n").as_bytes())["sha256:".len()..][..32].to_owned()
    }
}

/// The digest of a layer by the path of its files.
fn digest_of(layer: &Path) -> Option<String> {
    Some(store::digest_of(layer.parent()?.file_name()?.to_str()?))
}

/// Adds a layer to the layers below it.
fn add(merged: &Path, layer: &Path, whiteouts: &[PathBuf], opaque: &[PathBuf]) -> io::Result<()> {
    // A link of a lower layer leads nowhere: overlayfs does not follow it either.
    let root = Root::open(merged).map_err(io::Error::other)?.with_resolver_flags(ResolverFlags::NO_SYMLINKS);
    for hidden in whiteouts {
        // It is often missing: a layer may hide what no lower layer has.
        let _ = root.remove_all(hidden);
    }
    for folder in opaque {
        if root.resolve(folder).is_ok() {
            for entry in fs::read_dir(merged.join(folder))? {
                remove(&entry?.path()).map_err(io::Error::other)?;
            }
        }
    }
    copy(layer, merged)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let (entry, to) = {
            let entry = entry?;
            let to = to.join(entry.file_name());
            (entry, to)
        };
        let kind = entry.file_type()?;
        let existing = fs::symlink_metadata(&to).ok();
        if kind.is_char_device() {
            // Overlayfs's mark for a whiteout, which is applied already.
            continue;
        }
        if kind.is_dir() {
            if existing.as_ref().is_some_and(|existing| !existing.is_dir()) {
                fs::remove_file(&to)?;
            }
            if existing.is_none_or(|existing| !existing.is_dir()) {
                fs::create_dir(&to)?;
            }
            let metadata = entry.metadata()?;
            fs::set_permissions(&to, fs::Permissions::from_mode(metadata.permissions().mode()))?;
            copy(&entry.path(), &to)?;
        } else {
            if existing.is_some() {
                remove(&to).map_err(io::Error::other)?;
            }
            fs::hard_link(entry.path(), &to)?;
        }
    }
    Ok(())
}
