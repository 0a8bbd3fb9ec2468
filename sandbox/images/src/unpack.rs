//! Unpacks one layer into a folder of its own, in the form that overlayfs stacks.
//!
//! A layer is untrusted. Nothing is written outside the folder: `pathrs` resolves each path below
//! the folder, and follows a symbolic link of the layer only inside it. Devices, pipes, set-id bits
//! and extended attributes are left out. Sizes are limited.
//!
//! A sandbox has one user and no capabilities, so the owners in the layer have no effect: all files
//! get one owner. Files that only root could read in the image are readable there.

mod decompress;
mod entry;
mod folder;
mod guard;
mod sparse;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tar::{Archive, EntryType};

pub use self::decompress::decompressed;
use self::entry::{Step, step};
use self::folder::Folder;
use self::guard::Guard;
use self::sparse::Sparse;
use crate::owner::Owner;

/// Largest headers of one entry, in bytes: long names, attributes, and maps of sparse files.
const MAX_HEADERS: u64 = 1 << 20;

/// Limits of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of entries.
    pub entries: u64,
    /// Unpacked size of all files, in bytes.
    pub bytes: u64,
}

/// What a layer contains and hides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// Unpacked size of all files, in bytes.
    pub bytes: u64,
    /// The names of lower layers that this layer hides.
    pub whiteouts: Vec<PathBuf>,
    /// The folders in which this layer hides everything of lower layers.
    pub opaque: Vec<PathBuf>,
    /// Whether the folder also has overlayfs's own marks for `whiteouts` and `opaque`. If the file
    /// system or the kernel does not allow them, the layers must be merged.
    pub has_marks: bool,
}

/// Why a layer cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// An entry that no well-formed layer has.
    #[error("the entry {name:?} of a layer is refused: {refusal}")]
    Refused {
        /// The entry's name, cut to a limit.
        name: String,
        /// What is wrong with it.
        refusal: Refusal,
    },
    /// A limit.
    #[error("a layer has more than {limit} {unit}: use a smaller image")]
    TooLarge {
        /// The limit.
        limit: u64,
        /// `entries` or `bytes`.
        unit: &'static str,
    },
    /// The layer's stream is malformed or cannot be read.
    #[error("a layer cannot be read: {0}")]
    Read(io::Error),
    /// The folder cannot be written.
    #[error("{name:?} of a layer cannot be written: {source}; --image-dir names another folder")]
    Write {
        /// The entry's name, cut to a limit.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// What is wrong with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts explain the variants")]
pub enum Refusal {
    #[error("its path has `..`")]
    ParentFolder,
    #[error("its name has a NUL")]
    NulInName,
    #[error("it has no name")]
    NoName,
    #[error("its path is longer than Linux allows")]
    TooLong,
    #[error("its whiteout names no file")]
    Whiteout,
    #[error("it is a link without a valid target")]
    LinkTarget,
    #[error("its type is not known")]
    Type,
    #[error("its attributes for a sparse file are malformed")]
    Sparse,
    #[error("its path leads through a file or out of the layer")]
    Path,
}

/// Unpacks the tar stream into `folder`, which is empty. Gives all files to `owner`, if one is
/// given. Reads the stream to its end.
///
/// # Errors
/// [`UnpackError`]. The folder then has a part of the layer and must be removed.
pub fn unpack(
    tar: impl Read,
    folder: BorrowedFd<'_>,
    owner: Option<Owner>,
    limits: Limits,
) -> Result<Contents, UnpackError> {
    let mut folder = Folder::new(folder, owner, limits)?;
    let guard = Guard::default();
    let mut archive = Archive::new(guard.watch(tar));
    let mut entries = archive.entries().map_err(UnpackError::Read)?;
    let mut count = 0;
    loop {
        guard.limit(MAX_HEADERS);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(UnpackError::Read)?;
        guard.lift();
        count += 1;
        if count > limits.entries {
            return Err(UnpackError::TooLarge { limit: limits.entries, unit: "entries" });
        }
        let sparse = Sparse::of(&mut entry).map_err(|refusal| refused(&entry.path_bytes(), refusal))?;
        let other = sparse.as_ref().and_then(|sparse| sparse.name.clone());
        let name = other.unwrap_or_else(|| entry.path_bytes().into_owned());
        let kind = entry.header().entry_type();
        let target = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
        let mode = entry.header().mode().unwrap_or(0o644);
        let modified = entry.header().mtime().unwrap_or_default();
        match step(kind, &name, target.as_deref(), mode).map_err(|refusal| refused(&name, refusal))? {
            Step::Folder { path, mode } => folder.folder(&path, mode),
            Step::File { place, mode } => match sparse {
                Some(sparse) => {
                    let size = sparse.size;
                    let mut data = sparse.expand(&mut entry).map_err(UnpackError::Read)?;
                    folder.file(&place, mode, modified, true, size, &mut data)
                }
                None => {
                    let (size, is_sparse) = (entry.size(), kind == EntryType::GNUSparse);
                    folder.file(&place, mode, modified, is_sparse, size, &mut entry)
                }
            },
            Step::Symlink { place, target } => folder.symlink(&place, &target),
            Step::HardLink { place, target } => folder.hard_link(&place, &target),
            Step::Whiteout(place) => folder.whiteout(&place),
            Step::Opaque(path) => folder.opaque(&path),
            Step::Skip => Ok(()),
        }
        .map_err(|error| error.of(&name))?;
        // Skips the rest of an entry that has data and needs none, which is not part of the
        // headers of the next one.
        io::copy(&mut entry, &mut io::sink()).map_err(UnpackError::Read)?;
    }
    guard.lift();
    // The digest covers the padding behind the last entry, too.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(UnpackError::Read)?;
    Ok(folder.contents)
}

fn refused(name: &[u8], refusal: Refusal) -> UnpackError {
    UnpackError::Refused { name: quoted(name), refusal }
}

/// The name for an error, without control characters.
fn quoted(name: &[u8]) -> String {
    const MAX_QUOTED: usize = 200;
    String::from_utf8_lossy(name).chars().take(MAX_QUOTED).collect()
}
