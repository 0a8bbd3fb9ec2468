//! Applies one layer to a folder that has the layers below it: an overlay of them, or a plain folder.
//! The result is that of `umoci unpack`.
//!
//! A layer is untrusted. Nothing is written outside the folder: links are followed only inside it. Devices, pipes, set-id bits and extended attributes are left out. Sizes are limited.
//!
//! A sandbox has one user and no capabilities, so the owners in the layer have no effect: all files
//! belong to the user of this process. Files that only root could read in the image are readable.

mod folder;
mod guard;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use rustix::fs::{Mode, Timespec, Timestamps, fchmod, futimens, symlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tar::{Entry, EntryType};

use self::folder::{Folder, MAX_PATH, make_file, make_folder};
pub(crate) use self::guard::Guard;

/// Size of buffers before the decompressor and before a file, in bytes.
pub(crate) const BUFFER: usize = 256 << 10;

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
    #[error("{0}")]
    Refused(&'static str),
}

const LINK_TARGET: UnpackError = UnpackError::Refused("a link has no valid target");
const TOO_LONG: UnpackError =
    UnpackError::Refused("a path is longer than Linux allows, or deeper than 256 folders");
const PATH: UnpackError = UnpackError::Refused("a path leads through a file, or through too many links");
const SPARSE: UnpackError = UnpackError::Refused("a file is sparse: build the image without sparse files");

/// The tar stream of a layer: gzip, zstd, or not compressed. The first bytes decide, because media
/// types are often wrong.
///
/// # Errors
/// The stream's first bytes cannot be read, or the decompressor has no memory.
pub fn decompressed<'a>(stream: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut stream = BufReader::with_capacity(BUFFER, stream);
    Ok(match stream.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(stream)),
        // A frame, or a skippable frame in front of it.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Box::new(zstd::stream::read::Decoder::with_buffer(stream)?)
        }
        _ => Box::new(stream),
    })
}

/// Applies the tar stream to `folder`. Reads the stream to its end. Returns what the layer takes of
/// the limits.
///
/// # Errors
/// [`UnpackError`]. The folder then has a part of the layer and must be removed.
pub fn unpack(tar: impl Read, folder: BorrowedFd<'_>, limits: Size) -> Result<Size, UnpackError> {
    let guard = Guard::new(limits.bytes);
    let mut folder = Folder::new(folder, &guard);
    let mut count = 0;
    let mut rest = guard.each_entry(tar, |entry| {
        apply(&mut folder, entry).map_err(|error| {
            let name = String::from_utf8_lossy(&entry.path_bytes()).chars().take(200).collect();
            UnpackError::Entry { name, source: Box::new(error) }
        })?;
        count = (count + 1).max(folder.paths());
        if count > limits.entries { Err(UnpackError::TooMany(limits.entries)) } else { Ok(()) }
    })?;
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
    // Set-id bits are dropped. The sticky bit is that of /tmp.
    let mode = header.mode().unwrap_or(0o644) & 0o1777;
    let has_data = matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::XGlobalHeader);
    if !has_data && kind != EntryType::GNUSparse && entry.size() > 0 {
        const DATA: &str = "a header announces data that its type has not: other programs read other files";
        return Err(UnpackError::Refused(DATA));
    }
    if kind == EntryType::XGlobalHeader {
        return Ok(());
    }
    let path = clean(&name)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        // `./`, the root of the image.
        return if kind.is_dir() {
            folder.change_root(mode)
        } else {
            Err(UnpackError::Refused("a file has no name"))
        };
    };
    // <https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>
    if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
        return match hidden {
            b".wh..opq" => folder.opaque(parent),
            b"" | b"." | b".." => Err(UnpackError::Refused("a whiteout names no file")),
            hidden => folder.whiteout(parent, OsStr::from_bytes(hidden)),
        };
    }
    let (parent, path) = folder.make_place(parent, name, kind.is_dir())?;
    match kind {
        EntryType::Directory => make_folder(&parent, name, mode)?,
        EntryType::Regular | EntryType::Continuous => {
            let file = make_file(&parent, name, entry)?;
            // Only the owner exists in a sandbox, so it gets what root could do.
            fchmod(&file, Mode::from(mode & 0o777 | 0o400))?;
            // Python compares the times of its sources with those in compiled files.
            futimens(&file, &Timestamps { last_access: modified, last_modification: modified })?;
        }
        EntryType::Symlink => symlinkat(&*target.ok_or(LINK_TARGET)?, &parent, name)?,
        EntryType::Link => folder.hard_link(&clean(&target.ok_or(LINK_TARGET)?)?, &parent, name)?,
        // Left out.
        EntryType::Char | EntryType::Block | EntryType::Fifo => {}
        EntryType::GNUSparse => return Err(SPARSE),
        _ => return Err(UnpackError::Refused("a file's type is not known")),
    }
    folder.touch(&path)
}

/// The path that a name means. Names are untrusted. They are cleaned like in Go's tools: `..` ends at
/// the root, and a leading slash is dropped.
pub(crate) fn clean(name: &[u8]) -> Result<PathBuf, UnpackError> {
    if name.contains(&0) || name.len() > MAX_PATH {
        return Err(UnpackError::Refused("a name has a NUL, or is longer than Linux allows"));
    }
    let mut path = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(name)).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::ParentDir => drop(path.pop()),
            _ => {}
        }
    }
    Ok(path)
}

/// The time of an entry. Its attributes may have a more exact one than its header.
fn modified<R: Read>(entry: &mut Entry<'_, R>) -> Result<Timespec, UnpackError> {
    let seconds = entry.header().mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
    let mut time = Timespec { tv_sec: seconds.unwrap_or_default(), tv_nsec: 0 };
    for attribute in entry.pax_extensions()?.into_iter().flatten() {
        let attribute = attribute?;
        match attribute.key_bytes() {
            key if key.starts_with(b"GNU.sparse.") => return Err(SPARSE),
            b"mtime" => {
                let value = attribute.value().unwrap_or_default();
                let (seconds, fraction) = value.split_once('.').unwrap_or((value, ""));
                time.tv_sec = seconds.parse().unwrap_or(time.tv_sec);
                time.tv_nsec = format!("{fraction:0<9.9}").parse::<u32>().unwrap_or(0).into();
            }
            _ => {}
        }
    }
    Ok(time)
}

/// Errors of the guard, of the stream, and of the folder.
impl From<io::Error> for UnpackError {
    fn from(error: io::Error) -> Self {
        match (error.kind(), Errno::from_io_error(&error)) {
            (io::ErrorKind::FileTooLarge, _) => Self::TooLarge,
            (io::ErrorKind::NotADirectory, _) => PATH,
            (_, Some(errno)) => errno.into(),
            (_, None) => Self::Read(error),
        }
    }
}

/// Errors that the layer causes, and errors of the disk.
impl From<Errno> for UnpackError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NAMETOOLONG => TOO_LONG,
            Errno::NOTDIR | Errno::LOOP | Errno::NOENT | Errno::XDEV | Errno::EXIST | Errno::ISDIR => PATH,
            errno => Self::Write(errno.into()),
        }
    }
}
