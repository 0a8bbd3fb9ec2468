//! The folder that gets a layer's files, on top of those of the layers below it. All names are
//! resolved below it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufWriter, ErrorKind, IntoInnerError, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use porch_fn_sandbox::{inside, path_of};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, linkat, mkdirat, openat, statat, unlinkat};
use rustix::io::Errno;
use tar::Entry;

use super::guard::Guard;
use super::{BUFFER, LINK_TARGET, PATH, TOO_LONG, UnpackError};

/// Folders that no entry describes.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
/// What a file, folder or link takes on the disk beside its data, in bytes.
const PER_PATH: u64 = 4 << 10;
/// Longest path, as in Linux's `PATH_MAX`, in bytes.
pub(super) const MAX_PATH: usize = 4095;
/// Most folders above a file, after links were followed.
const MAX_DEPTH: usize = 256;

/// The folder, and what this layer has done so far.
pub(super) struct Folder<'a> {
    root: BorrowedFd<'a>,
    guard: &'a Guard,
    /// Keys the hashes of paths. They take less memory than the paths, which the image chooses.
    keys: RandomState,
    /// What this layer has made, and the folders above it. Its whiteouts hide only the rest.
    touched: HashSet<u64>,
    /// The folders that have nothing of lower layers any more.
    hidden: HashSet<u64>,
    /// The folder of the entry before. Most entries are in the same folder as the one before.
    last: Option<(PathBuf, Opened)>,
}

/// A folder below the root, and a path without links: the folder's own, or that of an entry in it.
type Opened = (Rc<OwnedFd>, PathBuf);
type Done<T = ()> = Result<T, UnpackError>;

// === impl Folder ===

impl<'a> Folder<'a> {
    pub(super) fn new(root: BorrowedFd<'a>, guard: &'a Guard) -> Self {
        Self {
            root,
            guard,
            keys: RandomState::new(),
            touched: HashSet::new(),
            hidden: HashSet::new(),
            last: None,
        }
    }

    /// Number of files, folders and links that this layer has made.
    pub(super) fn paths(&self) -> u64 {
        self.touched.len() as u64
    }

    pub(super) fn change_root(&self, mode: u32) -> Done {
        Ok(fchmod(self.root, Mode::from(mode | 0o700))?)
    }

    /// Makes a place for an entry: its folder, which is created if no entry did, has nothing with
    /// its name. A folder may stay for a folder.
    pub(super) fn make_place(&mut self, parent: &Path, name: &OsStr, for_folder: bool) -> Done<Opened> {
        if self.find(parent)?.is_none() {
            let folders = inside::folders(self.root, &self.resolve(parent)?, true)?;
            inside::create(self.root, &folders, true)?;
        }
        let (folder, path) = self.find(parent)?.ok_or(PATH)?;
        if !for_folder || open_folder(&folder, name).is_err() {
            self.remove(&folder, name)?;
        }
        Ok((folder, path.join(name)))
    }

    /// Links to what is here.
    pub(super) fn hard_link(&mut self, target: &Path, parent: &OwnedFd, name: &OsStr) -> Done {
        let (above, file) = target.parent().zip(target.file_name()).ok_or(LINK_TARGET)?;
        let (folder, path) = self.find(above)?.ok_or(LINK_TARGET)?;
        let stat = statat(&folder, file, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| LINK_TARGET)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(LINK_TARGET);
        }
        if !self.is_own(&path.join(file)) {
            // An overlay copies the file of the lower layer.
            self.guard.charge(u64::try_from(stat.st_size).unwrap_or_default())?;
        }
        Ok(linkat(&folder, file, parent, name, AtFlags::empty())?)
    }

    /// Hides what lower layers have. What this layer has made stays.
    pub(super) fn whiteout(&mut self, parent: &Path, name: &OsStr) -> Done {
        let Some((folder, path)) = self.find(parent)? else { return Ok(()) };
        // An overlay copies the folders above.
        self.guard.charge(PER_PATH * (1 + path.components().count() as u64))?;
        self.hide(&folder, name, &path.join(name))
    }

    /// Hides all that lower layers have in the folder.
    pub(super) fn opaque(&mut self, path: &Path) -> Done {
        let Some((folder, path)) = self.find(path)? else { return Ok(()) };
        self.hide_all(&folder, &path)
    }

    /// Opens a folder, if it exists.
    fn find(&mut self, path: &Path) -> Done<Option<Opened>> {
        if let Some((_, opened)) = self.last.as_ref().filter(|(last, _)| last == path) {
            return Ok(Some(opened.clone()));
        }
        let found = self.resolve(path)?;
        let folder = match open_folder(self.root, &found) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            folder => Rc::new(folder?),
        };
        let opened = (folder, found);
        self.last = Some((path.to_owned(), opened.clone()));
        Ok(Some(opened))
    }

    /// The path without links, relative to the root.
    fn resolve(&self, path: &Path) -> Done<PathBuf> {
        let found = inside::canonical(self.root, path)?;
        let is_long = found.components().count() > MAX_DEPTH || found.as_os_str().len() > MAX_PATH;
        if is_long { Err(TOO_LONG) } else { Ok(found) }
    }

    /// Removes what has this name, with all that it contains.
    fn remove(&mut self, parent: &OwnedFd, name: &OsStr) -> Done {
        match unlinkat(parent, name, AtFlags::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => fs::remove_dir_all(Path::new(&path_of(parent)).join(name))?,
            removed => removed?,
        }
        // It may have been a link to the folder that was opened last.
        self.last = None;
        Ok(())
    }

    /// Removes what has this name, but for what this layer has made.
    fn hide(&mut self, parent: &OwnedFd, name: &OsStr, path: &Path) -> Done {
        // Below a folder that this layer has not touched, it has made nothing.
        if !self.is_own(path) {
            return self.remove(parent, name);
        }
        open_folder(parent, name).map_or(Ok(()), |folder| self.hide_all(&folder, path))
    }

    /// Calls itself for each level of folders: as many as a resolved path may have.
    fn hide_all(&mut self, folder: &OwnedFd, path: &Path) -> Done {
        if !self.hidden.insert(self.keys.hash_one(path)) {
            return Ok(());
        }
        for entry in fs::read_dir(path_of(folder))? {
            let name = entry?.file_name();
            self.hide(folder, &name, &path.join(&name))?;
        }
        Ok(())
    }

    /// Notes that this layer has made the path, and the folders above it or their copies.
    pub(super) fn touch(&mut self, path: &Path) -> Done {
        let is_new = |path: &&Path| self.touched.insert(self.keys.hash_one(path));
        let new = path.ancestors().take_while(is_new).count() as u64;
        Ok(self.guard.charge(PER_PATH * new)?)
    }

    fn is_own(&self, path: &Path) -> bool {
        self.touched.contains(&self.keys.hash_one(path))
    }
}

/// Makes a folder, or changes the mode of one.
pub(super) fn make_folder(parent: &OwnedFd, name: &OsStr, mode: u32) -> Done {
    match mkdirat(parent, name, FOLDER_MODE) {
        Err(Errno::EXIST) => {}
        made => made?,
    }
    // A folder must stay readable and writable for the process that removes it.
    Ok(fchmod(open_folder(parent, name)?, Mode::from(mode | 0o700))?)
}

pub(super) fn make_file(parent: &OwnedFd, name: &OsStr, data: &mut Entry<'_, impl Read>) -> Done<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(parent, name, flags, Mode::from(0o600))?);
    let size = usize::try_from(data.size()).unwrap_or(BUFFER).clamp(8 << 10, BUFFER);
    let mut buffered = BufWriter::with_capacity(size, file);
    if io::copy(data, &mut buffered)? != data.size() {
        return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
    }
    Ok(buffered.into_inner().map_err(IntoInnerError::into_error)?)
}

/// Opens a folder by its path without links.
fn open_folder(root: impl AsFd, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    inside::open(root, path.as_ref(), OFlags::RDONLY | OFlags::DIRECTORY)
}
