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
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::os::fd::BorrowedFd;

use rustix::fs::Timespec;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tar::{Archive, Entry, EntryType};

pub use self::decompress::decompressed;
use self::entry::{Step, step};
use self::folder::Folder;
pub(crate) use self::guard::Guard;

/// Limits of one image, or what layers take of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Bytes of the tar stream, and 4 KiB for each file, folder and link.
    pub bytes: u64,
    /// Number of entries, or of files, folders and links if they are more.
    pub entries: u64,
}

/// Why a layer cannot be unpacked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts explain the variants")]
pub enum UnpackError {
    #[error("{source} (a layer's entry {name:?})")]
    Entry { name: String, source: Box<UnpackError> },
    #[error("the image's files need more than --image-max-size: use a smaller image")]
    TooLarge,
    #[error("the image has more than {0} files: use a smaller image")]
    TooMany(u64),
    #[error("a layer cannot be read: {0}")]
    Read(io::Error),
    #[error("a file cannot be written: {0}; --image-dir names another folder")]
    Write(io::Error),
    #[error("a name has a NUL")]
    NulInName,
    #[error("a file has no name")]
    NoName,
    #[error("a path is longer than Linux allows, or deeper than 256 folders")]
    TooLong,
    #[error("a whiteout names no file")]
    Whiteout,
    #[error("a link has no valid target")]
    LinkTarget,
    #[error("a file's type is not known")]
    Type,
    #[error("a file's type has no data, but its header announces some: other programs read other files")]
    Data,
    #[error("a file is sparse: build the image without sparse files")]
    Sparse,
    #[error("a path leads through a file, or through too many links")]
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
    let mut entries = archive.entries()?;
    let mut count = 0;
    while let Some(entry) = entries.next() {
        let mut entry = entry?;
        guard.expect_data();
        apply(&mut folder, &mut entry).map_err(|error| {
            let name = String::from_utf8_lossy(&entry.path_bytes()).chars().take(200).collect();
            UnpackError::Entry { name, source: Box::new(error) }
        })?;
        // Skips data that was not needed. It is not part of the headers of the next entry.
        io::copy(&mut entry, &mut io::sink())?;
        guard.expect_headers();
        count = (count + 1).max(folder.paths());
        if count > limits.entries {
            return Err(UnpackError::TooMany(limits.entries));
        }
    }
    let mut rest = archive.into_inner();
    let mut block = Vec::new();
    (&mut rest).take(512).read_to_end(&mut block)?;
    // Go's tools refuse such an archive; others go on behind the block.
    if block.iter().any(|byte| *byte != 0) {
        return Err(io::Error::other("there is data behind a single block of zeros").into());
    }
    // The digest covers the padding behind the end, too.
    io::copy(&mut rest, &mut io::sink())?;
    Ok(Size { bytes: guard.used(), entries: count })
}

fn apply<R: Read>(folder: &mut Folder<'_>, entry: &mut Entry<'_, R>) -> Result<(), UnpackError> {
    let modified = modified(entry)?;
    let (name, target) = (entry.path_bytes().into_owned(), entry.link_name_bytes().map(Into::<Vec<_>>::into));
    let header = entry.header();
    let mut kind = header.entry_type();
    // A trailing slash is a folder in archives older than POSIX.
    if kind == EntryType::Regular && header.as_old().linkflag == [0] && name.ends_with(b"/") {
        kind = EntryType::Directory;
    }
    let mode = header.mode().unwrap_or(0o644);
    let has_data = matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::XGlobalHeader);
    match step(kind, &name, target.as_deref(), mode)? {
        _ if !has_data && entry.size() > 0 => Err(UnpackError::Data),
        Step::Folder { place, mode } => folder.folder(place.as_ref(), mode),
        Step::File { place, mode } => folder.file(&place, entry, mode, modified),
        Step::Symlink { place, target } => folder.symlink(&place, &target),
        Step::HardLink { place, target } => folder.hard_link(&place, &target),
        Step::Whiteout(place) => folder.whiteout(&place),
        Step::Opaque(path) => folder.opaque(&path),
        Step::Nothing(place) => folder.nothing(&place),
        Step::Skip => Ok(()),
    }
}

/// The time of an entry. Its attributes may have a more exact one than its header.
fn modified<R: Read>(entry: &mut Entry<'_, R>) -> Result<Timespec, UnpackError> {
    let seconds = entry.header().mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
    let mut time = Timespec { tv_sec: seconds.unwrap_or_default(), tv_nsec: 0 };
    for attribute in entry.pax_extensions()?.into_iter().flatten() {
        let attribute = attribute?;
        match attribute.key_bytes() {
            key if key.starts_with(b"GNU.sparse.") => return Err(UnpackError::Sparse),
            b"mtime" => {
                let value = attribute.value().unwrap_or_default();
                let (seconds, fraction) = value.split_once('.').unwrap_or((value, ""));
                time.tv_sec = seconds.parse().unwrap_or(time.tv_sec);
                time.tv_nsec = format!("{fraction:0<9}").get(..9).and_then(|it| it.parse().ok()).unwrap_or(0);
            }
            _ => {}
        }
    }
    Ok(time)
}

/// Errors of the stream, and of the guard. A full disk is one of the disk.
impl From<io::Error> for UnpackError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::FileTooLarge => Self::TooLarge,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Write(error),
            _ => Self::Read(error),
        }
    }
}

/// Errors that the layer causes, and errors of the disk.
impl From<Errno> for UnpackError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NAMETOOLONG => Self::TooLong,
            Errno::NOTDIR | Errno::LOOP | Errno::NOENT | Errno::XDEV | Errno::EXIST | Errno::ISDIR => {
                Self::Path
            }
            errno => Self::Write(errno.into()),
        }
    }
}
