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
use crate::content::read;
use crate::document::Layer;
use crate::error::OnDisk as _;
use crate::store::{Store, lease};
use crate::unpack::Size;

/// Largest number of entries of an image.
const MAX_ENTRIES: u64 = 1_000_000;

/// The keys and sizes of an image's trees, lowest first. Not empty.
pub(crate) type Trees = Vec<(String, Size)>;

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
    /// What is left of these limits.
    pub(crate) fn minus(self, taken: Self) -> Self {
        let entries = self.entries.saturating_sub(taken.entries);
        Self { bytes: self.bytes.saturating_sub(taken.bytes), entries }
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
    pub(crate) fn tree(&self, key: &str) -> Option<Size> {
        let size = read(&self.tree_path(key).join("tree.json")).ok()??;
        serde_json::from_slice(&size).ok().filter(|_| self.files_of(key).is_dir())
    }

    /// The trees of an image with these layers. `None`: one is missing.
    pub(crate) fn trees(&self, layers: &[Layer]) -> Option<Trees> {
        let found = |keys: Vec<String>| {
            let trees = keys.into_iter().map(|key| self.tree(&key).map(|size| (key, size)));
            trees.collect::<Option<Trees>>().filter(|trees| !trees.is_empty())
        };
        found(chain(layers)).or_else(|| found(vec![plain(layers)]))
    }

    /// Unpacks all layers, if they have no trees yet. The blobs are here. Returns leases.
    pub(crate) fn unpack_all(&self, layers: &[Layer]) -> Result<Vec<File>, StoreError> {
        let numbers = 0..layers.len();
        let trees = numbers.filter_map(|number| self.unpack(layers, number).transpose());
        let mut leases = trees.collect::<Result<Vec<_>, _>>()?;
        if self.trees(layers).is_none() {
            leases.extend(self.unpack_as(&plain(layers), Vec::new(), layers, self.limits())?);
        }
        Ok(leases)
    }

    /// Unpacks the layer `number`, if its tree is not here. Its blob and the trees below are here.
    /// Does nothing if the image has a plain tree, or can only have one. Returns a lease.
    pub(crate) fn unpack(&self, layers: &[Layer], number: usize) -> Result<Option<File>, StoreError> {
        let keys = chain(layers);
        let lock = self.lock()?;
        for key in [&plain(layers), &keys[number]] {
            if self.tree(key).is_some() {
                return lease(&self.tree_path(key));
            }
        }
        drop(lock);
        let parents = keys[..number].iter();
        let Some(sizes) = parents.clone().map(|key| self.tree(key)).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let limits = sizes.into_iter().fold(self.limits(), Size::minus);
        let parents = parents.map(|key| self.files_of(key)).collect();
        self.unpack_as(&keys[number], parents, &layers[number..=number], limits)
    }

    /// The limits of one image.
    fn limits(&self) -> Size {
        Size { bytes: self.options().max_bytes, entries: MAX_ENTRIES }
    }

    fn unpack_as(
        &self,
        key: &str,
        parents: Vec<PathBuf>,
        layers: &[Layer],
        limits: Size,
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
        let layers = layers.iter().map(|layer| (self.blob_path(&layer.digest), layer.clone())).collect();
        let order = Order { folder: folder.path().to_owned(), parents, layers, owner, limits };
        let Some(size) = run_child(&order)? else { return Ok(None) };
        // After a crash of the machine, a name must not lead to content that was never written.
        fs::write(tree.join("tree.json"), serde_json::json!(size).to_string())
            .and_then(|()| Ok(syncfs(File::open(&tree)?)?))
            .on_disk("cannot write", &tree)?;
        let (to, _lock) = (self.tree_path(key), self.lock()?);
        if self.tree(key).is_none() {
            // An incomplete one is replaced.
            let _ = fs::rename(&to, folder.path().join("incomplete"));
            match fs::rename(&tree, &to) {
                // Another process was faster.
                Err(_) if self.tree(key).is_some() => {}
                renamed => renamed.on_disk("cannot write", &to)?,
            }
        }
        lease(&to)
    }
}
