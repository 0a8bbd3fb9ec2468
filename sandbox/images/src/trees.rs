//! Trees: the files of a layer on top of its parents, in the form that overlayfs stacks. A tree
//! belongs to one chain of layers, because a layer may have another result on other parents.
//!
//! Where no overlay can be mounted for writing, as in a store that lies on an overlay itself, the
//! layers of an image become one plain tree.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use porch_fn_registry::sha256;
use rustix::fs::syncfs;

use crate::StoreError;
use crate::child::{Answer, Order, run_child};
use crate::document::Layer;
use crate::error::OnDisk as _;
use crate::run_folder::RunFolder;
use crate::store::{Store, lease, read};
use crate::unpack::Size;

/// Largest number of entries of an image.
const MAX_ENTRIES: u64 = 1_000_000;
/// Largest `tree.json`, in bytes.
const MAX_TREE: u64 = 1 << 10;

/// The keys of the trees of these layers, lowest first. A key stands for the contents of the layer
/// and of its parents, as they are in the registry and unpacked.
fn chain(layers: &[Layer]) -> Vec<String> {
    let mut parent = String::new();
    let keys = layers.iter().map(|layer| {
        parent = key(&format!("{parent} {} {}", layer.digest, layer.diff_id));
        parent.clone()
    });
    keys.collect()
}

/// The key of the plain tree.
fn plain(layers: &[Layer]) -> String {
    key(&format!("plain {}", chain(layers).last().map_or("", String::as_str)))
}

fn key(text: &str) -> String {
    sha256(text.as_bytes())["sha256:".len()..].to_owned()
}

// === impl Store ===

impl Store {
    pub(crate) fn tree_path(&self, key: &str) -> PathBuf {
        self.path("layers").join(key)
    }

    /// The size of a tree. `None`: it is not here, or incomplete.
    pub(crate) fn tree(&self, key: &str) -> Result<Option<Size>, StoreError> {
        let path = self.tree_path(key);
        let size = read(&path.join("tree.json"), MAX_TREE)?;
        Ok(size.and_then(|size| serde_json::from_slice(&size).ok()).filter(|_| path.join("fs").is_dir()))
    }

    /// The keys and sizes of the image's trees, lowest first. Not empty. `None`: one is missing.
    pub(crate) fn trees(&self, layers: &[Layer]) -> Result<Option<Vec<(String, Size)>>, StoreError> {
        for keys in [chain(layers), vec![plain(layers)]] {
            let (mut trees, number) = (Vec::new(), keys.len());
            for key in keys {
                trees.extend(self.tree(&key)?.map(|size| (key, size)));
            }
            if trees.len() == number && number > 0 {
                return Ok(Some(trees));
            }
        }
        Ok(None)
    }

    /// The folder with a tree's files.
    pub(crate) fn files_of(&self, key: &str) -> PathBuf {
        self.tree_path(key).join("fs")
    }

    /// Keeps the trees that are here.
    pub(crate) fn lease_trees(&self, layers: &[Layer]) -> Result<Vec<File>, StoreError> {
        let keys = chain(layers).into_iter().chain([plain(layers)]);
        let mut leases = Vec::new();
        for key in keys {
            leases.extend(lease(&self.tree_path(&key))?);
        }
        Ok(leases)
    }

    /// Unpacks the layer `number`, if its tree is not here. Its blob and the trees below are here.
    /// Does nothing if only [`Store::unpack_plain`] can. Returns a lease.
    pub(crate) fn unpack(&self, layers: &[Layer], number: usize) -> Result<Option<File>, StoreError> {
        let keys = chain(layers);
        let mut taken = Size::default();
        for below in &keys[..number] {
            let Some(size) = self.tree(below)? else { return Ok(None) };
            taken.bytes = taken.bytes.saturating_add(size.bytes);
            taken.entries = taken.entries.saturating_add(size.entries);
        }
        let lock = self.lock()?;
        if self.tree(&keys[number])?.is_some() || self.has_no_overlay.load(Ordering::Relaxed) {
            return lease(&self.tree_path(&keys[number]));
        }
        drop(lock);
        let parents = keys[..number].iter().map(|key| self.files_of(key)).collect();
        self.unpack_as(&keys[number], parents, &layers[number..=number], taken)
    }

    /// Unpacks all layers into one tree, if they have no trees yet. The blobs are here.
    pub(crate) fn unpack_plain(&self, layers: &[Layer]) -> Result<Option<File>, StoreError> {
        if self.trees(layers)?.is_some() {
            return Ok(None);
        }
        self.unpack_as(&plain(layers), Vec::new(), layers, Size::default())
    }

    fn unpack_as(
        &self,
        key: &str,
        parents: Vec<PathBuf>,
        layers: &[Layer],
        taken: Size,
    ) -> Result<Option<File>, StoreError> {
        let folder = self.run_folder()?;
        let tree = folder.path().join("tree");
        let fs = tree.join("fs");
        // Overlayfs shows the mode and owner of the highest layer's folder as those of `/`.
        DirBuilder::new()
            .mode(0o700)
            .create(&tree)
            .and_then(|()| DirBuilder::new().mode(0o755).create(&fs))
            .on_disk("cannot write", &fs)?;
        let options = self.options();
        if let Some(owner) = options.owner {
            chown(&fs, Some(owner.uid), Some(owner.gid)).on_disk("cannot write", &fs)?;
        }
        let order = Order {
            folder: folder.path().to_owned(),
            parents,
            layers: layers.iter().map(|layer| (self.blob_path(&layer.digest), layer.clone())).collect(),
            owner: options.owner,
            limits: Size {
                bytes: options.max_bytes.saturating_sub(taken.bytes),
                entries: MAX_ENTRIES.saturating_sub(taken.entries),
            },
        };
        match run_child(&order)? {
            Answer::Unpacked(size) => self.publish(&folder, key, size).map(Some),
            Answer::Failed(text) => Err(StoreError::Layer(text)),
            Answer::Damaged(path) => Err(StoreError::Damaged(path)),
            Answer::NoOverlay(reason) => {
                tracing::debug!(reason, "the layers become one plain tree");
                self.has_no_overlay.store(true, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Gives a complete tree its final name. An incomplete one with the same name is replaced.
    fn publish(&self, folder: &RunFolder, key: &str, size: Size) -> Result<File, StoreError> {
        let (from, to) = (folder.path().join("tree"), self.tree_path(key));
        let size = serde_json::to_vec(&size).map_err(|error| StoreError::document("tree", error))?;
        let open = |path: &PathBuf| File::open(path).on_disk("cannot read", path);
        // After a crash of the machine, a name must not lead to content that was never written.
        fs::write(from.join("tree.json"), size)
            .and_then(|()| Ok(syncfs(File::open(&from)?)?))
            .on_disk("cannot write", &from)?;
        let _lock = self.lock()?;
        if self.tree(key)?.is_none() {
            match fs::rename(&to, folder.path().join("incomplete")) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                renamed => renamed.on_disk("cannot replace", &to)?,
            }
            match fs::rename(&from, &to) {
                // Another process was faster.
                Err(_) if self.tree(key)?.is_some() => {}
                renamed => renamed.on_disk("cannot write", &to)?,
            }
        }
        lease(&to)?.map_or_else(|| open(&to), Ok)
    }
}
