//! The folder that gets a layer's files, on top of those of the layers below it. All names are
//! resolved below it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufWriter, Read, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, linkat, mkdirat, openat,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::Entry;

use super::guard::Guard;
use super::place::{Place, open_folder, resolve};
use super::{BUFFER, LINK_TARGET, PATH, UnpackError};

/// Folders that no entry describes, and the parts of the path to an entry.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
/// What a file, folder or link takes on the disk beside its data, in bytes.
const PER_PATH: u64 = 4 << 10;

/// The folder, and what this layer has done so far.
pub(super) struct Folder<'a> {
    root: BorrowedFd<'a>,
    guard: Guard,
    /// Keys the hashes of paths. They take less memory than the paths, which the image chooses.
    keys: RandomState,
    /// What this layer has made, and the folders above it. Its whiteouts hide only the rest.
    touched: HashSet<u64>,
    /// The folder of the entry before. Most entries are in the same folder as the one before.
    last: Option<(PathBuf, Opened)>,
}

/// A folder below the root, and its path without links.
type Opened = (Rc<OwnedFd>, PathBuf);
type Done = Result<(), UnpackError>;

// === impl Folder ===

impl<'a> Folder<'a> {
    pub(super) fn new(root: BorrowedFd<'a>, guard: Guard) -> Self {
        Self { root, guard, keys: RandomState::new(), touched: HashSet::new(), last: None }
    }

    /// Number of files, folders and links that this layer has made.
    pub(super) fn paths(&self) -> u64 {
        self.touched.len() as u64
    }

    pub(super) fn change_root(&self, mode: u32) -> Done {
        Ok(fchmod(self.root, Mode::from(mode | 0o700))?)
    }

    pub(super) fn folder(&mut self, place: &Place, mode: u32) -> Done {
        let (parent, path) = self.make_parent(place)?;
        match mkdirat(&parent, &place.name, FOLDER_MODE) {
            // A folder again: only its mode changes. Anything else is replaced.
            Err(Errno::EXIST) if open_below(&parent, &place.name).is_err() => {
                self.remove(&parent, &place.name, &path, false)?;
                mkdirat(&parent, &place.name, FOLDER_MODE)?;
            }
            Err(Errno::EXIST) => {}
            made => made?,
        }
        // A folder must stay readable and writable for the process that removes it.
        fchmod(open_below(&parent, &place.name)?, Mode::from(mode | 0o700))?;
        self.touch(&path)
    }

    pub(super) fn file(
        &mut self,
        place: &Place,
        data: &mut Entry<'_, impl Read>,
        mode: u32,
        time: Timespec,
    ) -> Done {
        let (parent, path) = self.replace(place)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&parent, &place.name, flags, Mode::from(0o600))?);
        let size = usize::try_from(data.size()).unwrap_or(BUFFER).clamp(8 << 10, BUFFER);
        let mut buffered = BufWriter::with_capacity(size, &file);
        if io::copy(data, &mut buffered)? != data.size() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        buffered.flush()?;
        drop(buffered);
        // Only the owner exists in a sandbox, so it gets what root could do.
        fchmod(&file, Mode::from(mode & 0o777 | 0o400))?;
        // Python compares the times of its sources with those in compiled files.
        futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
        self.touch(&path)
    }

    pub(super) fn symlink(&mut self, place: &Place, target: &OsStr) -> Done {
        let (parent, path) = self.replace(place)?;
        symlinkat(target, &parent, &place.name)?;
        self.touch(&path)
    }

    pub(super) fn hard_link(&mut self, place: &Place, target: &Place) -> Done {
        let (parent, path) = self.replace(place)?;
        let (folder, folder_path) = self.find(&target.parent)?.ok_or(LINK_TARGET)?;
        let stat = statat(&folder, &target.name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|_| LINK_TARGET)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(LINK_TARGET);
        }
        if !self.is_own(&folder_path.join(&target.name)) {
            // An overlay copies the file of the lower layer.
            self.guard.charge(u64::try_from(stat.st_size).unwrap_or_default())?;
        }
        linkat(&folder, &target.name, &parent, &place.name, AtFlags::empty())?;
        self.touch(&path)
    }

    /// Replaces what lower layers have by nothing, for an entry that is left out.
    pub(super) fn nothing(&mut self, place: &Place) -> Done {
        let (_, path) = self.replace(place)?;
        self.touch(&path)
    }

    /// Hides what lower layers have. What this layer has made stays.
    pub(super) fn whiteout(&mut self, place: &Place) -> Done {
        let Some((folder, path)) = self.find(&place.parent)? else { return Ok(()) };
        // An overlay copies the folders above.
        self.guard.charge(PER_PATH * (1 + path.components().count() as u64))?;
        self.remove(&folder, &place.name, &path.join(&place.name), true)
    }

    /// Hides all that lower layers have in the folder.
    pub(super) fn opaque(&mut self, path: &Path) -> Done {
        let Some((folder, path)) = self.find(path)? else { return Ok(()) };
        self.clear(&folder, &path, true)
    }

    /// The entry's folder, and the path of the entry, where nothing is any more.
    fn replace(&mut self, place: &Place) -> Result<Opened, UnpackError> {
        let (parent, path) = self.make_parent(place)?;
        self.remove(&parent, &place.name, &path, false)?;
        Ok((parent, path))
    }

    /// The entry's folder, which is created if no entry did, and the path of the entry.
    fn make_parent(&mut self, place: &Place) -> Result<Opened, UnpackError> {
        if self.find(&place.parent)?.is_none() {
            let path = resolve(self.root, &place.parent)?;
            let mut made = PathBuf::new();
            for part in &path {
                made.push(part);
                match mkdirat(self.root, &made, FOLDER_MODE) {
                    Err(Errno::EXIST) => {}
                    made => made?,
                }
            }
        }
        let (folder, path) = self.find(&place.parent)?.ok_or(PATH)?;
        Ok((folder, path.join(&place.name)))
    }

    /// Opens a folder, if it exists.
    fn find(&mut self, path: &Path) -> Result<Option<Opened>, UnpackError> {
        if let Some((last, opened)) = &self.last
            && last == path
        {
            return Ok(Some(opened.clone()));
        }
        let found = resolve(self.root, path)?;
        let folder = match open_folder(self.root, &found) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            folder => Rc::new(folder?),
        };
        let opened = (folder, found);
        self.last = Some((path.to_owned(), opened.clone()));
        Ok(Some(opened))
    }

    /// Removes what has this name, with all that it contains. With `keeps_own`, what this layer has
    /// made stays.
    fn remove(&mut self, parent: &OwnedFd, name: &OsStr, path: &Path, keeps_own: bool) -> Done {
        let stays = keeps_own && self.is_own(path);
        if !stays {
            match unlinkat(parent, name, AtFlags::empty()) {
                Err(Errno::NOENT) => return Ok(()),
                Err(Errno::ISDIR) => {}
                removed => {
                    // It may have been a link to the folder that was opened last.
                    self.last = None;
                    return Ok(removed?);
                }
            }
        }
        let folder = match open_below(parent, name) {
            Err(_) if stays => return Ok(()),
            folder => folder?,
        };
        // Below a folder that this layer has not touched, it has made nothing.
        self.clear(&folder, path, stays)?;
        if !stays {
            self.last = None;
            unlinkat(parent, name, AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }

    /// Calls itself for each level of folders: as many as a resolved path may have.
    fn clear(&mut self, folder: &OwnedFd, path: &Path, keeps_own: bool) -> Done {
        let names = Dir::read_from(folder)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
        for name in names.collect::<Result<Vec<_>, Errno>>()? {
            if name != b"." && name != b".." {
                let name = OsString::from_vec(name);
                self.remove(folder, &name, &path.join(&name), keeps_own)?;
            }
        }
        Ok(())
    }

    /// Notes that this layer has made the path, and the folders above it or their copies.
    fn touch(&mut self, path: &Path) -> Done {
        for path in path.ancestors() {
            if !self.touched.insert(self.keys.hash_one(path)) {
                break;
            }
            self.guard.charge(PER_PATH)?;
        }
        Ok(())
    }

    fn is_own(&self, path: &Path) -> bool {
        self.touched.contains(&self.keys.hash_one(path))
    }
}

fn open_below(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}
