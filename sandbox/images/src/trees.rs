//! Trees: the files of a layer on top of its parents, in the form that overlayfs stacks. A tree
//! belongs to one chain of layers, because a layer may have another result on other parents.
//!
//! Where no overlay can be mounted for writing, as in a store that lies on an overlay itself, the
//! layers of an image become one plain tree.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use porch_fn_registry::{Layer, sha256};
use rustix::fs::syncfs;
use walkdir::WalkDir;

use crate::StoreError;
use crate::child::{Order, run_child};
use crate::content::read;
use crate::error::OnDisk as _;
use crate::run_folder::move_free;
use crate::store::{FILES, Store, Trees, lease};
use crate::unpack::Size;

/// Largest number of entries of an image.
const MAX_ENTRIES: u64 = 1_000_000;

/// The file with the size of a tree. A tree without it is incomplete.
const SIZE: &str = "tree.json";

/// The size of a tree. `None`: it is not here, or incomplete.
pub(crate) fn tree(path: &Path) -> Option<Size> {
    let size = read(&path.join(SIZE)).ok()??;
    serde_json::from_slice(&size).ok().filter(|_| path.join(FILES).is_dir())
}

/// Whether a tree is as it was made. The kernel notes when a file was changed, and nobody can set that
/// time.
fn is_whole(path: &Path) -> bool {
    let changed = |file: &Path| fs::symlink_metadata(file).map(|file| (file.ctime(), file.ctime_nsec())).ok();
    let made = changed(&path.join(SIZE));
    let mut files = WalkDir::new(path.join(FILES)).into_iter();
    tree(path).is_some() && files.all(|file| file.is_ok_and(|file| changed(file.path()) <= made))
}

// === impl Size ===

impl Size {
    /// What is left of these limits.
    pub(crate) fn minus(self, taken: Self) -> Self {
        let entries = self.entries.saturating_sub(taken.entries);
        Self { bytes: self.bytes.saturating_sub(taken.bytes), entries }
    }
}

// === impl Store ===

impl Store {
    /// The paths of the trees of these layers, lowest first, and that of the plain tree. A name
    /// stands for the contents of a layer and of its parents, as they are in the registry and
    /// unpacked.
    fn tree_paths(&self, layers: &[Layer]) -> (Vec<PathBuf>, PathBuf) {
        let key = |text: &str| sha256(text.as_bytes())["sha256:".len()..].to_owned();
        let mut keys: Vec<String> = Vec::new();
        for Layer { digest, diff_id, .. } in layers {
            let parent = keys.last().map_or("", String::as_str);
            keys.push(key(&format!("{parent} {digest} {diff_id}")));
        }
        let plain = key(&format!("plain {}", keys.concat()));
        let path = |key| self.path("layers").join(key);
        (keys.iter().map(path).collect(), path(&plain))
    }

    /// The trees of an image with these layers. `None`: one is missing.
    pub(crate) fn trees(&self, layers: &[Layer]) -> Option<Trees> {
        let (chain, plain) = self.tree_paths(layers);
        let found = |paths: Vec<PathBuf>| {
            let trees = paths.into_iter().map(|path| tree(&path).map(|size| (path, size)));
            trees.collect::<Option<Trees>>().filter(|trees| !trees.is_empty())
        };
        found(chain).or_else(|| found(vec![plain]))
    }

    /// Unpacks all layers, if they have no trees yet. The blobs are here. Returns leases.
    pub(crate) fn unpack_all(&self, layers: &[Layer]) -> Result<Vec<File>, StoreError> {
        let trees = (0..layers.len()).filter_map(|number| self.unpack(layers, number).transpose());
        let mut leases = trees.collect::<Result<Vec<_>, _>>()?;
        if self.trees(layers).is_none() {
            leases.extend(self.unpack_as(&self.tree_paths(layers).1, &[], layers)?);
        }
        Ok(leases)
    }

    /// Unpacks the layer `number`, if its tree is not here. Its blob and the trees below are here.
    /// Does nothing if the image has a plain tree, or can only have one. Returns a lease.
    pub(crate) fn unpack(&self, layers: &[Layer], number: usize) -> Result<Option<File>, StoreError> {
        let (chain, plain) = self.tree_paths(layers);
        for path in [&plain, &chain[number]] {
            let lock = self.lock()?;
            let kept = lease(path)?;
            drop(lock);
            if is_whole(path) {
                return Ok(kept);
            }
        }
        self.unpack_as(&chain[number], &chain[..number], &layers[number..=number])
    }

    /// Makes a tree of layers on top of the trees below. `None`: one of those is missing, or the
    /// machine refuses an overlay of them.
    fn unpack_as(&self, to: &Path, below: &[PathBuf], layers: &[Layer]) -> Result<Option<File>, StoreError> {
        let sizes = below.iter().map(|path| tree(path)).collect::<Option<Vec<_>>>();
        let Some(sizes) = sizes else { return Ok(None) };
        let blobs = layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.size));
        let limits = Size { bytes: self.max_bytes.saturating_sub(blobs), entries: MAX_ENTRIES };
        let folder = self.run_folder()?;
        let made = folder.path().join("tree");
        let order = Order {
            folder: folder.path().to_owned(),
            tree: made.join(FILES),
            parents: below.iter().map(|path| path.join(FILES)).collect(),
            layers: layers.iter().map(|layer| (self.blob_path(&layer.digest), layer.clone())).collect(),
            limits: sizes.into_iter().fold(limits, Size::minus),
        };
        let Some(size) = run_child(&order)? else { return Ok(None) };
        // After a crash of the machine, a name must not lead to content that was never written.
        fs::write(made.join(SIZE), serde_json::json!(size).to_string())
            .and_then(|()| Ok(syncfs(File::open(&made)?)?))
            .on_disk("cannot write", &made)?;
        let _lock = self.lock()?;
        if !is_whole(to) {
            // An incomplete or damaged one is replaced, unless a sandbox uses it.
            let is_kept = to.exists() && !move_free(to, &folder)?;
            match fs::rename(&made, to) {
                // Or another process was faster.
                Err(_) if is_kept || is_whole(to) => {}
                renamed => renamed.on_disk("cannot write", to)?,
            }
        }
        lease(to)
    }
}
