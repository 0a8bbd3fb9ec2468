//! Errors of the image store.

use std::io;
use std::path::PathBuf;

use porch_fn_registry::RegistryError;

/// Why an image cannot be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts explain the fields")]
pub enum StoreError {
    /// The registry, or a document of the image.
    #[error("{}", .0.on_own_machine())]
    Registry(#[from] RegistryError),
    /// An archive cannot be used.
    #[error("the image's archive cannot be used: {0}")]
    Archive(String),
    /// A layer, manifest or configuration has another digest or size than announced.
    #[error("content of the image does not have digest {0}: its registry, a proxy or the archive changed it")]
    Digest(String),
    /// The reference names another digest than the image has.
    #[error(
        "the name {name:?} has another digest than the image, {digest}: remove the digest from the name, or \
         get the image that has it"
    )]
    Pinned { name: String, digest: String },
    /// The image needs more room than the store may take.
    #[error("the image needs {needs} MiB, more than --image-max-size of {limit} MiB")]
    TooLarge { needs: u64, limit: u64 },
    /// The image is not in the store.
    #[error("the image is not here: see porch-fn images list, pull and import")]
    Missing,
    /// Content of the store was changed.
    #[error("{} is damaged: repair the image with `porch-fn images pull` or `porch-fn images import`", .0.display())]
    Damaged(PathBuf),
    /// The folder belongs to another user.
    #[error("{} belongs to user {owner}, and this is user {user}: name another folder with --image-dir, such as a new one in it", .path.display())]
    Owner { path: PathBuf, owner: u32, user: u32 },
    /// Other users can write to the folder.
    #[error("other users can write to {path}: forbid it with `chmod go-w {path}`, or name another folder with --image-dir", path = .0.display())]
    Writable(PathBuf),
    /// Another process uses the store.
    #[error("another process uses {}: retry when it has ended", .0.display())]
    Busy(PathBuf),
    /// The disk.
    #[error("{what} {}: {source}; --image-dir names another folder", .path.display())]
    Disk { what: &'static str, path: PathBuf, source: io::Error },
    /// A file that is not part of the store, such as an archive, or the process that unpacks a layer.
    #[error("{0}")]
    Other(io::Error),
}

/// Names the file and the operation of an error of the disk.
pub(crate) trait OnDisk<T> {
    fn on_disk(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T, StoreError>;
}

impl<T, E: Into<io::Error>> OnDisk<T> for Result<T, E> {
    fn on_disk(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T, StoreError> {
        self.map_err(|error| StoreError::Disk { what, path: path.into(), source: error.into() })
    }
}
