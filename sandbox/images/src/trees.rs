//! Trees: the files of a layer on top of its parents, in the form that overlayfs stacks. A tree
//! belongs to one chain of layers, because a layer may have another result on other parents.
//!
//! Where no overlay can be mounted for writing, as in a store that lies on an overlay itself, the
//! layers of an image become one plain tree.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::PathBuf;

use porch_fn_registry::sha256;
use rustix::fs::syncfs;

use crate::StoreError;
use crate::child::{Order, run_child};
use crate::document::Layer;
use crate::error::OnDisk as _;
use crate::store::{Store, lease, read};
use crate::unpack::Size;

/// Largest number of entries of an image.
const MAX_ENTRIES: u64 = 1_000_000;

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
    key(&format!("plain {}", chain(layers).concat()))
}

fn key(text: &str) -> String {
    sha256(text.as_bytes())["sha256:".len()..].to_owned()
}

// === impl Size ===

impl Size {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), entries: self.entries + other.entries }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        let entries = self.entries.saturating_sub(other.entries);
        Self { bytes: self.bytes.saturating_sub(other.bytes), entries }
    }
}

// === impl Store ===

impl Store {
    pub(crate) fn tree_path(&self, key: &str) -> PathBuf {
        self.path("layers").join(key)
    }

    /// The folder with a tree's files.
    pub(crate) fn files_of(&self, key: &str) -> PathBuf {
        self.tree_path(key).join("fs")
    }

    /// The size of a tree. `None`: it is not here, or incomplete.
    pub(crate) fn tree(&self, key: &str) -> Result<Option<Size>, StoreError> {
        let size = read(&self.tree_path(key).join("tree.json"))?;
        let size = size.and_then(|size| serde_json::from_slice(&size).ok());
        Ok(size.filter(|_| self.files_of(key).is_dir()))
    }

    /// The keys and sizes of the image's trees, lowest first. Not empty. `None`: one is missing.
    pub(crate) fn trees(&self, layers: &[Layer]) -> Result<Option<Vec<(String, Size)>>, StoreError> {
        for keys in [chain(layers), vec![plain(layers)]] {
            let trees = keys.into_iter().map(|key| Ok(self.tree(&key)?.map(|size| (key, size))));
            let trees = trees.collect::<Result<Option<Vec<_>>, StoreError>>()?;
            if let Some(trees) = trees.filter(|trees| !trees.is_empty()) {
                return Ok(Some(trees));
            }
        }
        Ok(None)
    }

    /// Keeps the trees that are here. The caller holds the store's lock.
    pub(crate) fn lease_trees(&self, layers: &[Layer]) -> Result<Vec<File>, StoreError> {
        let keys = chain(layers).into_iter().chain([plain(layers)]);
        keys.filter_map(|key| lease(&self.tree_path(&key)).transpose()).collect()
    }

    /// Unpacks the layer `number`, if its tree is not here. Its blob and the trees below are here.
    /// Does nothing if the image has a plain tree, or can only have one. Returns a lease.
    pub(crate) fn unpack(&self, layers: &[Layer], number: usize) -> Result<Option<File>, StoreError> {
        if self.tree(&plain(layers))?.is_some() {
            return Ok(None);
        }
        let keys = chain(layers);
        let mut taken = Size::default();
        for below in &keys[..number] {
            let Some(size) = self.tree(below)? else { return Ok(None) };
            taken = taken.plus(size);
        }
        let lock = self.lock()?;
        if self.tree(&keys[number])?.is_some() {
            return lease(&self.tree_path(&keys[number]));
        }
        drop(lock);
        let parents = keys[..number].iter().map(|key| self.files_of(key)).collect();
        self.unpack_as(&keys[number], parents, &layers[number..=number], taken)
    }

    /// Unpacks all layers into one tree, if they have no trees yet. The blobs are here.
    pub(crate) fn unpack_plain(&self, layers: &[Layer]) -> Result<Option<File>, StoreError> {
        match self.trees(layers)? {
            Some(_) => Ok(None),
            None => self.unpack_as(&plain(layers), Vec::new(), layers, Size::default()),
        }
    }

    fn unpack_as(
        &self,
        key: &str,
        parents: Vec<PathBuf>,
        layers: &[Layer],
        taken: Size,
    ) -> Result<Option<File>, StoreError> {
        let folder = self.run_folder()?;
        let (tree, owner) = (folder.path().join("tree"), self.options().owner);
        // Overlayfs shows the mode and owner of the highest layer's folder as those of `/`.
        let fs = tree.join("fs");
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&fs)
            .and_then(|()| owner.map_or(Ok(()), |it| chown(&fs, Some(it.uid), Some(it.gid))))
            .on_disk("cannot write", &fs)?;
        let order = Order {
            folder: folder.path().to_owned(),
            parents,
            layers: layers.iter().map(|layer| (self.blob_path(&layer.digest), layer.clone())).collect(),
            owner,
            limits: Size { bytes: self.options().max_bytes, entries: MAX_ENTRIES }.minus(taken),
        };
        let Some(size) = run_child(&order)? else { return Ok(None) };
        // After a crash of the machine, a name must not lead to content that was never written.
        fs::write(tree.join("tree.json"), serde_json::json!(size).to_string())
            .and_then(|()| Ok(syncfs(File::open(&tree)?)?))
            .on_disk("cannot write", &tree)?;
        let (to, _lock) = (self.tree_path(key), self.lock()?);
        if self.tree(key)?.is_none() {
            // An incomplete one is replaced.
            let _ = fs::rename(&to, folder.path().join("incomplete"));
            match fs::rename(&tree, &to) {
                // Another process was faster.
                Err(_) if self.tree(key)?.is_some() => {}
                renamed => renamed.on_disk("cannot write", &to)?,
            }
        }
        lease(&to)
    }
}
