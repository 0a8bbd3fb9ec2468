//! Applies one layer to a folder that has the layers below it: an overlay of them, or a plain folder.
//! The result is that of `umoci unpack`.
//!
//! A layer is untrusted. Nothing is written outside the folder: `resolve` follows links only inside
//! it. Devices, pipes, set-id bits and extended attributes are left out. Sizes are limited.
//!
//! A sandbox has one user and no capabilities, so the owners in the layer have no effect: all files
//! belong to the user of this process. Files that only root could read in the image are readable.

mod decompress;
mod entry;
mod folder;
mod guard;
mod resolve;
mod sparse;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::os::fd::BorrowedFd;

use rustix::fs::Timespec;
use serde::{Deserialize, Serialize};
use tar::{Archive, Entry, EntryType};

pub use self::decompress::decompressed;
use self::entry::{Step, step};
use self::folder::{Data, Folder};
pub(crate) use self::guard::Guard;
use self::sparse::Sparse;

/// Limits of one image, or what one layer takes of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Bytes of the tar stream, and 4 KiB for each file, folder and link.
    pub bytes: u64,
    /// Number of entries, or of files, folders and links if they are more.
    pub entries: u64,
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
    /// The limit of bytes.
    #[error("the image's files need more than --image-max-size: use a smaller image")]
    TooLarge,
    /// The limit of entries.
    #[error("the image has more than {0} files: use a smaller image")]
    TooMany(u64),
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
    #[error("its name has a NUL")]
    NulInName,
    #[error("it has no name")]
    NoName,
    #[error("its path is longer than Linux allows, or deeper than 256 folders")]
    TooLong,
    #[error("its whiteout names no file")]
    Whiteout,
    #[error("it is a link without a valid target")]
    LinkTarget,
    #[error("its type is not known")]
    Type,
    #[error("its type has no data, but its header announces some: other programs read other files")]
    Data,
    #[error("its attributes for a sparse file are malformed")]
    Sparse,
    #[error("its path leads through a file, or through too many links")]
    Path,
}

/// Applies the tar stream to `folder`. Reads the stream to its end. Returns what the layer takes of
/// the limits.
///
/// # Errors
/// [`UnpackError`]. The folder then has a part of the layer and must be removed.
pub fn unpack(tar: impl Read, folder: BorrowedFd<'_>, limits: Size) -> Result<Size, UnpackError> {
    let guard = Guard::new(limits.bytes);
    let mut folder = Folder::new(folder, guard.clone());
    let mut archive = Archive::new(guard.watch(tar));
    let mut entries = archive.entries().map_err(read_error)?;
    let mut count = 0;
    while let Some(entry) = entries.next() {
        let mut entry = entry.map_err(read_error)?;
        guard.expect_data();
        apply(&mut folder, &mut entry)?;
        // Skips data that was not needed. It is not part of the headers of the next entry.
        io::copy(&mut entry, &mut io::sink()).map_err(read_error)?;
        guard.expect_headers();
        count = (count + 1).max(folder.paths());
        if count > limits.entries {
            return Err(UnpackError::TooMany(limits.entries));
        }
    }
    let mut rest = archive.into_inner();
    // Go's tools refuse such an archive; others go on behind the block.
    let mut block = Vec::new();
    (&mut rest).take(512).read_to_end(&mut block).map_err(read_error)?;
    if block.iter().any(|byte| *byte != 0) {
        return Err(UnpackError::Read(io::Error::other("there is data behind a single block of zeros")));
    }
    // The digest covers the padding behind the end, too.
    io::copy(&mut rest, &mut io::sink()).map_err(read_error)?;
    Ok(Size { bytes: guard.used(), entries: count })
}

fn apply<R: Read>(folder: &mut Folder<'_>, entry: &mut Entry<'_, R>) -> Result<(), UnpackError> {
    let sparse = Sparse::of(entry).map_err(|refusal| refused(&entry.path_bytes(), refusal))?;
    let other = sparse.as_ref().and_then(|sparse| sparse.name.clone());
    let name = other.unwrap_or_else(|| entry.path_bytes().into_owned());
    let modified = modified(entry);
    let header = entry.header();
    let mut kind = header.entry_type();
    // A trailing slash is a folder in archives older than POSIX.
    if kind == EntryType::Regular && header.as_old().linkflag == [0] && name.ends_with(b"/") {
        kind = EntryType::Directory;
    }
    let has_data = matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse);
    if !has_data && entry.size() > 0 && kind != EntryType::XGlobalHeader {
        return Err(refused(&name, Refusal::Data));
    }
    let target = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
    let mode = entry.header().mode().unwrap_or(0o644);
    match step(kind, &name, target.as_deref(), mode).map_err(|refusal| refused(&name, refusal))? {
        Step::Folder { place, mode } => folder.folder(place.as_ref(), mode),
        Step::File { place, mode } => match sparse {
            Some(sparse) => {
                let size = sparse.size;
                let stream = sparse.expand(entry).map_err(UnpackError::Read)?;
                folder.file(&place, Data { stream, size, is_sparse: true, mode, modified })
            }
            None => {
                let (size, is_sparse) = (entry.size(), kind == EntryType::GNUSparse);
                folder.file(&place, Data { stream: entry, size, is_sparse, mode, modified })
            }
        },
        Step::Symlink { place, target } => folder.symlink(&place, &target),
        Step::HardLink { place, target } => folder.hard_link(&place, &target),
        Step::Whiteout(place) => folder.whiteout(&place),
        Step::Opaque(path) => folder.opaque(&path),
        Step::Nothing(place) => folder.nothing(&place),
        Step::Skip => Ok(()),
    }
    .map_err(|error| error.of(&name))
}

/// The time of an entry. Its attributes may have a more exact one than its header.
fn modified<R: Read>(entry: &mut Entry<'_, R>) -> Timespec {
    let exact = entry.pax_extensions().ok().flatten().and_then(|attributes| {
        let mtime = attributes.flatten().filter(|attribute| attribute.key_bytes() == b"mtime").last()?;
        let (seconds, fraction) = mtime.value().ok()?.split_once('.').unwrap_or((mtime.value().ok()?, ""));
        let nanoseconds = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
        Some(Timespec { tv_sec: seconds.parse().ok()?, tv_nsec: nanoseconds })
    });
    let seconds = || i64::try_from(entry.header().mtime().unwrap_or_default()).unwrap_or_default();
    exact.unwrap_or_else(|| Timespec { tv_sec: seconds(), tv_nsec: 0 })
}

fn read_error(error: io::Error) -> UnpackError {
    if error.kind() == io::ErrorKind::FileTooLarge { UnpackError::TooLarge } else { UnpackError::Read(error) }
}

fn refused(name: &[u8], refusal: Refusal) -> UnpackError {
    UnpackError::Refused { name: quoted(name), refusal }
}

/// The name for an error, which shows control characters as escapes.
fn quoted(name: &[u8]) -> String {
    const MAX_QUOTED: usize = 200;
    String::from_utf8_lossy(name).chars().take(MAX_QUOTED).collect()
}
