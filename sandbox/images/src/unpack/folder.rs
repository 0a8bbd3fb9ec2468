//! The folder that gets a layer's files, on top of those of the layers below it. All names are
//! resolved below it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, ftruncate, futimens, linkat, mkdirat,
    openat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::entry::Place;
use super::guard::Guard;
use super::resolve::{open_folder, resolve};
use super::{Refusal, UnpackError, quoted};

/// Size of the buffer for a file's data, in bytes. A block of zeros in a sparse file is as large.
const BUFFER: usize = 128 << 10;
/// Folders that no entry describes, and the parts of the path to an entry.
const FOLDER_MODE: u32 = 0o755;
/// What a file, folder or link takes on the disk beside its data, in bytes.
const PER_PATH: u64 = 4 << 10;

/// The folder, and what this layer has done so far. Paths in it have no links.
pub(super) struct Folder<'a> {
    root: BorrowedFd<'a>,
    guard: Guard,
    /// Keys the hashes of paths. They take less memory than the paths, which the image chooses.
    keys: RandomState,
    /// What this layer has made, and the folders above it. Its whiteouts hide only the rest.
    touched: HashSet<u64>,
    /// What takes room on the disk because of this layer: an overlay copies folders and targets of
    /// hard links up.
    written: HashSet<u64>,
    /// The folder of the entry before. Most entries are in the same folder as the one before.
    last: Option<(PathBuf, Opened)>,
    buffer: Vec<u8>,
}

/// A folder below the root, and its path without links.
#[derive(Clone)]
struct Opened {
    path: PathBuf,
    folder: Rc<OwnedFd>,
}

/// A regular file's data and attributes.
pub(super) struct Data<R> {
    pub(super) stream: R,
    pub(super) size: u64,
    pub(super) is_sparse: bool,
    pub(super) mode: u32,
    pub(super) modified: Timespec,
}

/// An error that does not yet name the entry.
#[derive(Debug)]
pub(super) enum StepError {
    Refused(Refusal),
    TooLarge,
    Read(io::Error),
    Write(io::Error),
}

type Done = Result<(), StepError>;

// === impl Folder ===

impl<'a> Folder<'a> {
    pub(super) fn new(root: BorrowedFd<'a>, guard: Guard) -> Self {
        Self {
            root,
            guard,
            keys: RandomState::new(),
            touched: HashSet::new(),
            written: HashSet::new(),
            last: None,
            buffer: vec![0; BUFFER],
        }
    }

    /// Number of files, folders and links that this layer takes.
    pub(super) fn paths(&self) -> u64 {
        self.written.len() as u64
    }

    pub(super) fn folder(&mut self, place: Option<&Place>, mode: u32) -> Done {
        // A folder must stay readable and writable for the process that removes it.
        let mode = Mode::from(mode | 0o700);
        let Some(place) = place else { return Ok(fchmod(self.root, mode)?) };
        let (parent, path) = self.make_parent(place)?;
        match mkdirat(&*parent, &place.name, Mode::from(FOLDER_MODE)) {
            // A folder again: only its mode changes. Anything else is replaced.
            Err(Errno::EXIST) if kind(&parent, &place.name) != Some(FileType::Directory) => {
                self.remove(&parent, &place.name, &path, false)?;
                mkdirat(&*parent, &place.name, Mode::from(FOLDER_MODE))?;
            }
            Err(Errno::EXIST) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
        fchmod(open_below(&parent, &place.name)?, mode)?;
        self.touch(&path)
    }

    pub(super) fn file(&mut self, place: &Place, mut data: Data<impl Read>) -> Done {
        if self.guard.exceeds(data.size) {
            return Err(StepError::TooLarge);
        }
        let (parent, path) = self.make_parent(place)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || openat(&*parent, &place.name, flags, Mode::from(0o600));
        let file = match create() {
            Err(Errno::EXIST) => {
                self.remove(&parent, &place.name, &path, false)?;
                create()?
            }
            created => created?,
        };
        let mut file = File::from(file);
        if data.is_sparse {
            self.guard.charge(data.size)?;
        }
        let written = copy(&mut data.stream, &mut file, &mut self.buffer, data.is_sparse)?;
        if written != data.size {
            let short = io::Error::new(io::ErrorKind::UnexpectedEof, "a file's data ends too early");
            return Err(StepError::Read(short));
        }
        // Only the owner exists in a sandbox, so it gets what root could do.
        fchmod(&file, Mode::from(data.mode & 0o777 | 0o400))?;
        // Python compares the times of its sources with those in compiled files.
        futimens(&file, &Timestamps { last_access: data.modified, last_modification: data.modified })?;
        self.touch(&path)
    }

    pub(super) fn symlink(&mut self, place: &Place, target: &OsStr) -> Done {
        let (parent, path) = self.make_parent(place)?;
        self.remove(&parent, &place.name, &path, false)?;
        symlinkat(target, &*parent, &place.name)?;
        self.touch(&path)
    }

    pub(super) fn hard_link(&mut self, place: &Place, target: &Place) -> Done {
        let (parent, path) = self.make_parent(place)?;
        self.remove(&parent, &place.name, &path, false)?;
        let no_target = || StepError::Refused(Refusal::LinkTarget);
        let Opened { path: folder_path, folder } = self.find(&target.parent)?.ok_or_else(no_target)?;
        let stat = statat(&*folder, &target.name, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| no_target())?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(no_target());
        }
        let target_path = folder_path.join(&target.name);
        if !self.touched.contains(&self.key(&target_path)) && self.write(&target_path)? {
            // An overlay copies the file of the lower layer.
            self.guard.charge(u64::try_from(stat.st_size).unwrap_or_default())?;
        }
        linkat(&*folder, &target.name, &*parent, &place.name, AtFlags::empty())?;
        self.touch(&path)
    }

    /// Replaces what lower layers have by nothing, for an entry that is left out.
    pub(super) fn nothing(&mut self, place: &Place) -> Done {
        let (parent, path) = self.make_parent(place)?;
        self.remove(&parent, &place.name, &path, false)?;
        self.touch(&path)
    }

    /// Hides what lower layers have. What this layer has made stays.
    pub(super) fn whiteout(&mut self, place: &Place) -> Done {
        let Some(Opened { path, folder }) = self.find(&place.parent)? else { return Ok(()) };
        self.remove(&folder, &place.name, &path.join(&place.name), true)
    }

    /// Hides all that lower layers have in the folder.
    pub(super) fn opaque(&mut self, path: &Path) -> Done {
        let Some(Opened { path, folder }) = self.find(path)? else { return Ok(()) };
        self.clear(&folder, &path, true)
    }

    /// The entry's folder, which is created if no entry did, and the path of the entry.
    fn make_parent(&mut self, place: &Place) -> Result<(Rc<OwnedFd>, PathBuf), StepError> {
        let opened = match self.find(&place.parent)? {
            Some(opened) => opened,
            None => {
                let path = resolve(self.root, &place.parent)?;
                let mut folders: Vec<_> =
                    path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
                while let Some(folder) = folders.pop() {
                    match mkdirat(self.root, folder, Mode::from(FOLDER_MODE)) {
                        Err(Errno::EXIST) | Ok(()) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Opened { folder: Rc::new(open_folder(self.root, &path)?), path }
            }
        };
        Ok((opened.folder, opened.path.join(&place.name)))
    }

    /// Opens a folder, if it exists.
    fn find(&mut self, path: &Path) -> Result<Option<Opened>, StepError> {
        match &self.last {
            Some((last, opened)) if last == path => return Ok(Some(opened.clone())),
            _ => {}
        }
        let found = resolve(self.root, path)?;
        let folder = match open_folder(self.root, &found) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            folder => Rc::new(folder?),
        };
        let opened = Opened { path: found, folder };
        self.last = Some((path.to_owned(), opened.clone()));
        Ok(Some(opened))
    }

    /// Removes what has this name, with all that it contains. With `keeps_own`, what this layer has
    /// made stays.
    fn remove(&mut self, parent: &OwnedFd, name: &OsStr, path: &Path, keeps_own: bool) -> Done {
        let stays = keeps_own && self.touched.contains(&self.key(path));
        if !stays {
            match unlinkat(parent, name, AtFlags::empty()) {
                Err(Errno::NOENT) => return Ok(()),
                Err(Errno::ISDIR) => {}
                removed => {
                    removed?;
                    return self.note_removed(path, keeps_own);
                }
            }
        }
        let folder = match open_below(parent, name) {
            Err(_) if stays => return Ok(()),
            folder => folder?,
        };
        // Below a folder that this layer has not touched, it has made nothing.
        self.clear(&folder, path, stays)?;
        if stays {
            return Ok(());
        }
        unlinkat(parent, name, AtFlags::REMOVEDIR)?;
        self.note_removed(path, keeps_own)
    }

    fn note_removed(&mut self, path: &Path, leaves_mark: bool) -> Done {
        // It may have been the folder that was opened last, or the link to it.
        self.last = None;
        if leaves_mark {
            self.write(path)?;
        }
        Ok(())
    }

    fn clear(&mut self, folder: &OwnedFd, path: &Path, keeps_own: bool) -> Done {
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        // As deep as a resolved path may be.
        names.iter().try_for_each(|name| self.remove(folder, name, &path.join(name), keeps_own))
    }

    /// Notes that this layer has made the path.
    fn touch(&mut self, path: &Path) -> Done {
        self.write(path)?;
        for path in path.ancestors() {
            if !self.touched.insert(self.key(path)) {
                break;
            }
        }
        Ok(())
    }

    /// Counts what the path takes on the disk. Returns whether it was not counted before.
    fn write(&mut self, path: &Path) -> Result<bool, StepError> {
        let before = self.written.len();
        for path in path.ancestors() {
            if !self.written.insert(self.key(path)) {
                break;
            }
        }
        let new = (self.written.len() - before) as u64;
        self.guard.charge(new * PER_PATH)?;
        Ok(new > 0)
    }

    fn key(&self, path: &Path) -> u64 {
        self.keys.hash_one(path)
    }
}

fn open_below(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

fn kind(parent: &OwnedFd, name: &OsString) -> Option<FileType> {
    let stat = statat(parent.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
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
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => return Err(StepError::TooLarge),
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
            Self::TooLarge => UnpackError::TooLarge,
            Self::Read(error) => UnpackError::Read(error),
            Self::Write(source) => UnpackError::Write { name, source },
        }
    }
}

/// The guard's errors.
impl From<io::Error> for StepError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::FileTooLarge { Self::TooLarge } else { Self::Write(error) }
    }
}

/// Errors that the layer causes, and errors of the disk.
impl From<Errno> for StepError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NAMETOOLONG => Self::Refused(Refusal::TooLong),
            Errno::NOTDIR | Errno::LOOP | Errno::NOENT | Errno::XDEV | Errno::EXIST | Errno::ISDIR => {
                Self::Refused(Refusal::Path)
            }
            errno => Self::Write(errno.into()),
        }
    }
}
