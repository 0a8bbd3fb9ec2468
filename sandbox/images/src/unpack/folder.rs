//! The folder that gets a layer's files. All names are resolved below it.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use pathrs::Root;
use pathrs::flags::OpenFlags;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags, chownat, fchmod, fchown, fsetxattr,
    ftruncate, futimens, mkdirat, mknodat, openat, statat, symlinkat,
};
use rustix::io::Errno;

use super::entry::Place;
use super::{Contents, Limits, Refusal, UnpackError, quoted};
use crate::owner::Owner;

/// Size of the buffer for a file's data, in bytes. A block of zeros in a sparse file is as large.
const BUFFER: usize = 128 << 10;

/// Folders that no entry describes, and the parts of the path to an entry.
const FOLDER_MODE: u32 = 0o755;

/// The folder, and what it has of the layer so far.
pub(super) struct Folder {
    root: Root,
    owner: Option<Owner>,
    limits: Limits,
    /// The folder of the entry before. Most entries are in the same folder as the one before.
    last: Option<(PathBuf, OwnedFd)>,
    buffer: Vec<u8>,
    pub(super) contents: Contents,
}

/// An error that does not yet name the entry.
#[derive(Debug)]
pub(super) enum StepError {
    Refused(Refusal),
    TooLarge(u64),
    Read(io::Error),
    Write(io::Error),
}

type Done = Result<(), StepError>;

// === impl Folder ===

impl Folder {
    pub(super) fn new(
        folder: BorrowedFd<'_>,
        owner: Option<Owner>,
        limits: Limits,
    ) -> Result<Self, UnpackError> {
        let root = folder
            .try_clone_to_owned()
            .map_err(|source| UnpackError::Write { name: String::new(), source })?;
        Ok(Self {
            root: Root::from_fd(root),
            owner,
            limits,
            last: None,
            buffer: vec![0; BUFFER],
            contents: Contents { has_marks: true, ..Contents::default() },
        })
    }

    pub(super) fn folder(&mut self, path: &Path, mode: u32) -> Done {
        let Some(name) = path.file_name() else {
            let root = self.root.as_ref().try_clone().map_err(path_error)?.into();
            return self.change(&root, mode);
        };
        let place =
            Place { parent: path.parent().map(Path::to_owned).unwrap_or_default(), name: name.into() };
        let parent = self.parent(&place.parent)?;
        match mkdirat(&parent, &place.name, Mode::from(FOLDER_MODE)) {
            // A folder again: only its mode changes. Anything else is replaced.
            Err(Errno::EXIST) if kind(parent.as_fd(), &place.name) != Some(FileType::Directory) => {
                self.clear(&place)?;
                mkdirat(&parent, &place.name, Mode::from(FOLDER_MODE))?;
            }
            Err(Errno::EXIST) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(&parent, &place.name, flags, Mode::empty())?;
        self.change(&folder, mode)
    }

    pub(super) fn file(
        &mut self,
        place: &Place,
        mode: u32,
        modified: u64,
        is_sparse: bool,
        size: u64,
        data: &mut impl Read,
    ) -> Done {
        if size > self.limits.bytes - self.contents.bytes {
            return Err(StepError::TooLarge(self.limits.bytes));
        }
        let parent = self.parent(&place.parent)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || openat(&parent, &place.name, flags, Mode::from(0o600));
        let file = match create() {
            Err(Errno::EXIST) => {
                self.clear(place)?;
                create()?
            }
            created => created?,
        };
        let mut file = File::from(file);
        let written = copy(data, &mut file, &mut self.buffer, is_sparse)?;
        if written != size {
            let short = io::Error::new(io::ErrorKind::UnexpectedEof, "a file's data ends too early");
            return Err(StepError::Read(short));
        }
        self.contents.bytes += written;
        // Only the owner exists in a sandbox, so it gets what root could do.
        fchmod(&file, Mode::from(mode & 0o777 | 0o400))?;
        if let Some(owner) = self.owner {
            fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
        // Python compares the times of its sources with those in compiled files.
        let modified = Timespec { tv_sec: i64::try_from(modified).unwrap_or_default(), tv_nsec: 0 };
        futimens(&file, &Timestamps { last_access: modified, last_modification: modified })?;
        Ok(())
    }

    pub(super) fn symlink(&mut self, place: &Place, target: &OsStr) -> Done {
        let parent = self.parent(&place.parent)?;
        if symlinkat(target, &parent, &place.name) == Err(Errno::EXIST) {
            self.clear(place)?;
            symlinkat(target, &parent, &place.name)?;
        }
        if let Some(owner) = self.owner {
            chownat(&parent, &place.name, Some(owner.uid()), Some(owner.gid()), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    pub(super) fn hard_link(&mut self, place: &Place, target: &Path) -> Done {
        let path = place.parent.join(&place.name);
        if path == target {
            return Ok(());
        }
        let parent = self.parent(&place.parent)?;
        if kind(parent.as_fd(), &place.name).is_some() {
            self.clear(place)?;
        }
        let link = pathrs::InodeType::Hardlink(target.to_owned());
        self.root.create(&path, &link).map_err(path_error)
    }

    pub(super) fn whiteout(&mut self, place: &Place) -> Done {
        let parent = self.parent(&place.parent)?;
        // Of a layer that has and hides a name, the last entry counts.
        if kind(parent.as_fd(), &place.name).is_some() {
            self.clear(place)?;
        }
        // Ordinary users may create this device since Linux 5.8.
        let mark = mknodat(&parent, &place.name, FileType::CharacterDevice, Mode::empty(), 0);
        self.contents.has_marks &= mark.is_ok();
        self.contents.whiteouts.push(place.parent.join(&place.name));
        Ok(())
    }

    pub(super) fn opaque(&mut self, path: &Path) -> Done {
        let folder = self.parent(path)?;
        // The name without special rights, which the mount option `userxattr` selects.
        let mark = fsetxattr(&folder, c"user.overlay.opaque", b"y", XattrFlags::empty());
        self.contents.has_marks &= mark.is_ok();
        self.contents.opaque.push(path.to_owned());
        Ok(())
    }

    /// Opens a folder for the names in it, and creates it if no entry did.
    fn parent(&mut self, path: &Path) -> Result<OwnedFd, StepError> {
        match &self.last {
            Some((last, folder)) if last == path => return Ok(folder.try_clone()?),
            _ => {}
        }
        let handle = if path.as_os_str().is_empty() {
            self.root.resolve(".").map_err(path_error)?
        } else {
            match self.root.resolve(path) {
                Ok(found) => found,
                Err(_) => {
                    self.root.mkdir_all(path, &Permissions::from_mode(FOLDER_MODE)).map_err(path_error)?
                }
            }
        };
        let folder: OwnedFd =
            handle.reopen(OpenFlags::O_RDONLY | OpenFlags::O_DIRECTORY).map_err(path_error)?.into();
        if let Some(owner) = self.owner {
            fchown(&folder, Some(owner.uid()), Some(owner.gid()))?;
        }
        self.last = Some((path.to_owned(), folder.try_clone()?));
        Ok(folder)
    }

    /// Removes what has this name, with all that it contains.
    fn clear(&mut self, place: &Place) -> Done {
        self.last = None;
        self.root.remove_all(place.parent.join(&place.name)).map_err(path_error)
    }

    fn change(&self, folder: &OwnedFd, mode: u32) -> Done {
        // A folder must stay readable and writable for the process that removes the layer.
        fchmod(folder, Mode::from(mode | 0o700))?;
        if let Some(owner) = self.owner {
            fchown(folder, Some(owner.uid()), Some(owner.gid()))?;
        }
        Ok(())
    }
}

fn kind(parent: BorrowedFd<'_>, name: &OsString) -> Option<FileType> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

/// Copies a file's data. In a sparse file, blocks of zeros become holes.
fn copy(data: &mut impl Read, file: &mut File, buffer: &mut [u8], is_sparse: bool) -> Result<u64, StepError> {
    let mut written = 0_u64;
    loop {
        let read = match data.read(buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(StepError::Read(error)),
        };
        if is_sparse && buffer[..read].iter().all(|byte| *byte == 0) {
            file.seek(SeekFrom::Start(written + read as u64)).map_err(StepError::Write)?;
        } else {
            file.write_all(&buffer[..read]).map_err(StepError::Write)?;
        }
        written += read as u64;
    }
    if is_sparse {
        ftruncate(&*file, written)?;
    }
    Ok(written)
}

// === impl StepError ===

impl StepError {
    pub(super) fn of(self, name: &[u8]) -> UnpackError {
        let name = quoted(name);
        match self {
            Self::Refused(refusal) => UnpackError::Refused { name, refusal },
            Self::TooLarge(limit) => UnpackError::TooLarge { limit, unit: "bytes" },
            Self::Read(error) => UnpackError::Read(error),
            Self::Write(source) => UnpackError::Write { name, source },
        }
    }
}

impl From<Errno> for StepError {
    fn from(errno: Errno) -> Self {
        of_errno(errno)
    }
}

impl From<io::Error> for StepError {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::Write(error), |raw| of_errno(Errno::from_raw_os_error(raw)))
    }
}

#[allow(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn path_error(error: pathrs::error::Error) -> StepError {
    match error.kind() {
        pathrs::error::ErrorKind::OsError(Some(raw)) => of_errno(Errno::from_raw_os_error(raw)),
        _ => StepError::Refused(Refusal::Path),
    }
}

/// Errors that the layer causes, and errors of the disk.
fn of_errno(errno: Errno) -> StepError {
    match errno {
        Errno::NOTDIR
        | Errno::LOOP
        | Errno::NOENT
        | Errno::XDEV
        | Errno::EXIST
        | Errno::ISDIR
        | Errno::NAMETOOLONG => StepError::Refused(Refusal::Path),
        errno => StepError::Write(errno.into()),
    }
}
