//! The folder with all images, and the rules by which processes share it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use porch_fn_image::Image;
use rustix::fs::{FlockOperation, flock, syncfs};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::error::OnDisk as _;
use crate::record::Record;
use crate::unpack::{Contents, Limits};
use crate::{Owner, StoreError};

/// Settings of a store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// `--image-dir`.
    pub folder: PathBuf,
    /// `--image-max-size`, in bytes: a pull removes the images that were unused for longest until
    /// all fit.
    pub max_bytes: u64,
    /// The owner of all files of images. `None`: this process's user.
    pub owner: Option<Owner>,
}

/// Largest number of files of a layer.
const MAX_ENTRIES: u64 = 2_000_000;

/// The images of one folder. Cheap to clone. All methods block.
#[derive(Debug, Clone)]
pub struct Store(Arc<Options>);

/// Holds the store's lock until it is dropped, or until the process ends.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "closing the file releases the lock")] File);

/// A folder that only this process uses. Dropping it removes it.
#[derive(Debug)]
pub struct RunFolder {
    folder: TempDir,
    file: File,
}

impl RunFolder {
    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A short path of a file in the folder, for this process alone: the path of a socket has at
    /// most 107 bytes.
    pub fn short_path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.file.as_raw_fd()))
    }
}

// === impl Store ===

impl Store {
    /// Opens the folder, and creates it if it is missing. Removes what a killed process left.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(options: Options) -> Result<Self, StoreError> {
        let store = Self(Arc::new(options));
        for name in ["images", "blobs", "layers", "merged", "run", "tmp"] {
            let path = store.path(name);
            DirBuilder::new().recursive(true).mode(0o700).create(&path).on_disk("cannot create", path)?;
        }
        let folder = &store.0.folder;
        let (owner, user) = (fs::metadata(folder).on_disk("cannot read", folder)?.uid(), geteuid().as_raw());
        if owner != user {
            return Err(StoreError::Owner { path: folder.clone(), owner, user });
        }
        store.sweep()?;
        Ok(store)
    }

    /// Removes what killed processes left, unless another process may be creating something.
    fn sweep(&self) -> Result<(), StoreError> {
        if self.files("tmp")?.is_empty() && self.files("run")?.is_empty() {
            return Ok(());
        }
        if let Some(_lock) = self.lock_alone()? {
            for path in self.files("tmp")? {
                remove(&path)?;
            }
            for path in self.files("run")? {
                let folder = File::open(&path).on_disk("cannot open", &path)?;
                if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    remove(&path)?;
                }
            }
        }
        Ok(())
    }

    /// A folder for a process's sockets. The next process that opens the store removes it after
    /// this process has ended.
    ///
    /// # Errors
    /// The disk.
    pub fn run_folder(&self) -> Result<RunFolder, StoreError> {
        let _lock = self.lock()?;
        let run = self.path("run");
        let folder = tempfile::Builder::new().prefix("").tempdir_in(&run).on_disk("cannot write", &run)?;
        let file = File::open(folder.path()).on_disk("cannot open", folder.path())?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).on_disk("cannot lock", folder.path())?;
        Ok(RunFolder { folder, file })
    }

    /// The folder of this store.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// The settings of this store.
    pub fn options(&self) -> &Options {
        &self.0
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { entries: MAX_ENTRIES, bytes: self.0.max_bytes }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.folder.join(name)
    }

    pub(crate) fn record_path(&self, image: &Image) -> PathBuf {
        self.path("images").join(Record::key(image) + ".json")
    }

    /// `digest` is a valid digest: it becomes a name.
    pub(crate) fn blob_path(&self, digest: &str) -> PathBuf {
        self.path("blobs").join(file_name(digest))
    }

    /// `digest` is a valid digest: it becomes a name.
    pub(crate) fn layer_path(&self, digest: &str) -> PathBuf {
        self.path("layers").join(file_name(digest))
    }

    /// What is in one of the store's folders.
    pub(crate) fn files(&self, folder: &str) -> Result<Vec<PathBuf>, StoreError> {
        let folder = self.path(folder);
        let entries = fs::read_dir(&folder).on_disk("cannot read", &folder)?;
        entries.map(|entry| Ok(entry.on_disk("cannot read", &folder)?.path())).collect()
    }

    /// Prevents that anything is removed. Waits while another process removes something.
    pub(crate) fn lock(&self) -> Result<Lock, StoreError> {
        let (file, path) = self.lock_file()?;
        flock(&file, FlockOperation::LockShared).on_disk("cannot lock", path)?;
        Ok(Lock(file))
    }

    /// Allows to remove things. `None` while other processes pull or start images.
    pub(crate) fn lock_alone(&self) -> Result<Option<Lock>, StoreError> {
        let (file, path) = self.lock_file()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            locked => locked.on_disk("cannot lock", path).map(|()| Some(Lock(file))),
        }
    }

    fn lock_file(&self) -> Result<(File, PathBuf), StoreError> {
        let path = self.path("lock");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        Ok((file.on_disk("cannot open", &path)?, path))
    }

    /// A new folder for unfinished content. The caller holds the lock.
    pub(crate) fn workspace(&self) -> Result<TempDir, StoreError> {
        let tmp = self.path("tmp");
        tempfile::Builder::new().prefix("").tempdir_in(&tmp).on_disk("cannot write", tmp)
    }

    /// Writes a small file whole.
    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let workspace = self.workspace()?;
        let file = workspace.path().join("file");
        let written = File::create_new(&file).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.on_disk("cannot write", &file)?;
        fs::rename(&file, path).on_disk("cannot write", path)
    }

    pub(crate) fn record(&self, image: &Image) -> Result<Option<Record>, StoreError> {
        Ok(read(&self.record_path(image))?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    pub(crate) fn contents(&self, layer: &str) -> Result<Option<Contents>, StoreError> {
        let file = self.layer_path(layer).join("contents.json");
        Ok(read(&file)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// The content of a blob.
    pub(crate) fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        read(&self.blob_path(digest))
    }
}

/// The name of a digest's file.
pub(crate) fn file_name(digest: &str) -> String {
    digest.replace(':', "-")
}

/// The digest of a file's name.
pub(crate) fn digest_of(file_name: &str) -> String {
    file_name.replace('-', ":")
}

/// Opens a file or folder, if it exists.
pub(crate) fn open(path: &Path) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).on_disk("cannot open", path),
    }
}

/// Gives complete content its final name. Content with the same name stays: it is the same.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<(), StoreError> {
    let folder = File::open(from).on_disk("cannot read", from)?;
    // After a crash of the machine, a name must not lead to content that was never written.
    syncfs(folder).on_disk("cannot write", from)?;
    match fs::rename(from, to) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) =>
        {
            Ok(())
        }
        renamed => renamed.on_disk("cannot write", to),
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).on_disk("cannot read", path),
    }
}

/// Removes a file or a folder with all that it contains.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    let removed = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.on_disk("cannot remove", path),
    }
}
