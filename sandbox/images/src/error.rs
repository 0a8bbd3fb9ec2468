//! Errors of the image store.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use porch_fn_registry::RegistryError;

use crate::unpack::UnpackError;

/// Why an image cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The registry.
    #[error("{}", registry_text(.0))]
    Registry(#[from] RegistryError),
    /// A layer.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// A document of the image cannot be used.
    #[error("the image's {what} cannot be used: {reason}")]
    Document {
        /// `manifest`, `image configuration`, `archive`.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The content has another digest than announced.
    #[error(
        "a {what} of the image does not have its digest: its registry, a proxy or the archive changed it"
    )]
    Digest {
        /// `layer`, `manifest`, `image configuration`.
        what: &'static str,
    },
    /// The image needs more room than the store may take.
    #[error("the image needs {needs} MiB, more than --image-max-size of {limit} MiB")]
    TooLarge {
        /// What it needs, in MiB.
        needs: u64,
        /// The limit, in MiB.
        limit: u64,
    },
    /// The image is not in the store.
    #[error("the image is not in {}: run `porch-fn images pull` or `porch-fn images import`", .0.display())]
    Missing(PathBuf),
    /// The folder belongs to another user.
    #[error("{} belongs to user {owner}, and this is user {user}: name another folder with --image-dir, such as a new one in it", .path.display())]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process's user.
        user: u32,
    },
    /// Another process uses the store.
    #[error("another process uses {}: retry when it has ended", .0.display())]
    Busy(PathBuf),
    /// The disk.
    #[error("{what} {}: {source}; --image-dir names another folder", .path.display())]
    Disk {
        /// `cannot write`, for example.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file that is not part of the store, such as an archive.
    #[error("{0}")]
    Stream(io::Error),
}

/// The texts of lookups name flags of runners.
fn registry_text(error: &RegistryError) -> String {
    match error {
        RegistryError::Unreachable => "the image's registry cannot be reached: check the registry and the \
                                       network path to it (proxy, DNS, firewall), and retry; without \
                                       internet, use `porch-fn images import`"
            .to_owned(),
        RegistryError::Platform { platform } => {
            format!("the image is not built for {platform}, this machine's platform: build it for that")
        }
        RegistryError::Untrusted => "the certificate of the image's registry is not trusted: add its CA to \
                                     this machine's certificates, or name a file with it in SSL_CERT_FILE"
            .to_owned(),
        other => other.to_string(),
    }
}

// === impl StoreError ===

impl StoreError {
    pub(crate) fn document(what: &'static str, reason: impl Display) -> Self {
        Self::Document { what, reason: reason.to_string() }
    }
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
