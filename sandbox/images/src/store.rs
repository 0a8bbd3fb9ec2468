//! The folder with all images, and the rules by which processes share it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use porch_fn_image::{Image, is_digest};
use porch_fn_registry::{has_digest, sha256};
use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, flock, futimens};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::document::{self, Layer, MAX_DOCUMENT, Parsed, RunConfig};
use crate::error::{OnDisk as _, StoreError};

/// A user and a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

/// Settings of a store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// `--image-dir`.
    pub folder: PathBuf,
    /// `--image-max-size`, in bytes: no image may need more. When all need more, those that were
    /// unused for longest are removed.
    pub max_bytes: u64,
    /// The owner of all files of images. `None`: this process's user.
    pub owner: Option<Owner>,
}

/// Attempts at the lock, which other processes hold only for moments.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// The images of one folder. Cheap to clone. All methods block.
#[derive(Debug, Clone)]
pub struct Store(Arc<Options>);

/// Holds the store's lock until it is dropped, or until the process ends.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "closing the file releases the lock")] File);

/// What the store remembers about a reference. All else is read from the manifest and the
/// configuration. Files of older versions have more fields, and count as absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The full reference, with its tag or digest.
    pub(crate) reference: String,
    /// What the reference resolved to: the digest of an index or of a manifest.
    pub(crate) resolved: String,
    /// The manifest for this machine's platform.
    pub(crate) manifest: String,
    /// When it was pulled or imported.
    pub(crate) pulled: SystemTime,
}

/// An image of the store. While it exists, also in another process that inherits its files, the
/// image's trees are not removed.
#[derive(Debug)]
pub struct Stored {
    /// How the image wants to be run.
    pub run: RunConfig,
    /// What the reference resolved to when it was pulled.
    pub digest: String,
    layers: Vec<PathBuf>,
    #[allow(dead_code, reason = "closing the files ends the lease")]
    leases: Vec<File>,
}

// === impl Stored ===

impl Stored {
    /// The folders to stack, lowest first. Not empty.
    pub fn stack(&self) -> Vec<PathBuf> {
        self.layers.clone()
    }
}

// === impl Record ===

impl Record {
    /// A record without a reference.
    pub(crate) fn new(resolved: &str, manifest: &str) -> Self {
        let (resolved, manifest) = (resolved.to_owned(), manifest.to_owned());
        Self { reference: String::new(), resolved, manifest, pulled: SystemTime::now() }
    }

    /// Fails if the reference names a digest that is not this image's.
    pub(crate) fn check(&self, image: &Image) -> Result<(), StoreError> {
        match image.digest() {
            Some(digest) if digest != self.resolved && digest != self.manifest => {
                Err(StoreError::Pinned { name: image.to_string(), digest: self.resolved.clone() })
            }
            _ => Ok(()),
        }
    }
}

// === impl Store ===

impl Store {
    /// Opens the folder, and creates it if it is missing. Removes what a killed process left.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(mut options: Options) -> Result<Self, StoreError> {
        options.folder = absolute(&options.folder).on_disk("cannot use", &options.folder)?;
        let store = Self(Arc::new(options));
        store.check_way()?;
        for name in ["images", "blobs", "layers", "tmp"] {
            let path = store.path(name);
            DirBuilder::new().recursive(true).mode(0o700).create(&path).on_disk("cannot create", path)?;
        }
        let path = store.folder().to_owned();
        let metadata = fs::metadata(&path).on_disk("cannot read", &path)?;
        let (owner, user) = (metadata.uid(), geteuid().as_raw());
        if owner != user {
            return Err(StoreError::Owner { path, owner, user });
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(StoreError::Writable(path));
        }
        store.sweep();
        Ok(store)
    }

    /// Fails if another user could put another folder in the place of this one.
    fn check_way(&self) -> Result<(), StoreError> {
        let user = geteuid().as_raw();
        for above in self.folder().ancestors() {
            let Ok(metadata) = fs::symlink_metadata(above) else { continue };
            let (owner, mode, path) = (metadata.uid(), metadata.mode(), above.to_owned());
            if metadata.is_symlink() && owner != 0 && owner != user {
                return Err(StoreError::Owner { path, owner, user });
            }
            if metadata.is_dir() && mode & 0o002 != 0 && mode & 0o1000 == 0 {
                return Err(StoreError::Writable(path));
            }
        }
        Ok(())
    }

    /// The folder of this store.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// The settings of this store.
    pub fn options(&self) -> &Options {
        &self.0
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.folder.join(name)
    }

    pub(crate) fn record_path(&self, image: &Image) -> PathBuf {
        let key = sha256(image.as_str().as_bytes());
        self.path("images").join(format!("{}.json", &key["sha256:".len()..][..32]))
    }

    /// `digest` is a valid digest: it becomes a name.
    pub(crate) fn blob_path(&self, digest: &str) -> PathBuf {
        self.path("blobs").join(digest.replace(':', "-"))
    }

    /// What is in one of the store's folders. Older versions had others.
    pub(crate) fn files(&self, folder: &str) -> Result<Vec<PathBuf>, StoreError> {
        let folder = self.path(folder);
        match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            entries => entries
                .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
                .on_disk("cannot read", &folder),
        }
    }

    /// Prevents that anything is removed. Waits while another process removes something.
    pub(crate) fn lock(&self) -> Result<Lock, StoreError> {
        let file = self.lock_file()?;
        flock(&file, FlockOperation::LockShared).on_disk("cannot lock", self.folder())?;
        Ok(Lock(file))
    }

    /// Allows to remove things.
    pub(crate) fn lock_alone(&self) -> Result<Lock, StoreError> {
        let file = self.lock_file()?;
        for _ in 0..ATTEMPTS {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => sleep(PAUSE),
                locked => return locked.on_disk("cannot lock", self.folder()).map(|()| Lock(file)),
            }
        }
        Err(StoreError::Busy(self.folder().to_owned()))
    }

    fn lock_file(&self) -> Result<File, StoreError> {
        let path = self.path("lock");
        OpenOptions::new().create(true).append(true).open(&path).on_disk("cannot open", path)
    }

    /// Writes the record of a reference whole.
    pub(crate) fn save(&self, image: &Image, record: Record) -> Result<(), StoreError> {
        record.check(image)?;
        let record = serde_json::json!(Record { reference: image.to_string(), ..record }).to_string();
        let lock = self.lock()?;
        let folder = self.run_folder_locked(&lock)?;
        let file = folder.path().join("file");
        fs::write(&file, record)
            .and_then(|()| File::open(&file)?.sync_all())
            .and_then(|()| fs::rename(&file, self.record_path(image)))
            .on_disk("cannot write", &file)
    }

    /// Returns the image, if it is here and complete, and notes that it is used now.
    ///
    /// # Errors
    /// The disk.
    pub fn find(&self, image: &Image) -> Result<Option<Stored>, StoreError> {
        let _lock = self.lock()?;
        let Some((record, parsed)) = self.load(image)? else { return Ok(None) };
        let Some(trees) = self.trees(&parsed.layers)? else { return Ok(None) };
        for layer in &parsed.layers {
            // The image could not be exported, or unpacked again.
            if self.lease_blob(layer)?.is_none() {
                return Ok(None);
            }
        }
        // The trees may be another image's, too. The record is only of this one.
        let paths = trees.iter().map(|(key, _)| self.tree_path(key)).chain([self.record_path(image)]);
        let leases = paths.filter_map(|path| lease(&path).transpose()).collect::<Result<Vec<_>, _>>()?;
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        if let Some(record) = leases.last() {
            futimens(record, &Timestamps { last_access: keep, last_modification: now })
                .on_disk("cannot write", self.folder())?;
        }
        let layers = trees.iter().map(|(key, _)| self.files_of(key)).collect();
        Ok(Some(Stored { run: parsed.run, digest: record.resolved, layers, leases }))
    }

    /// The record of a reference and what its documents say. `None`: it is not here, or damaged.
    pub(crate) fn load(&self, image: &Image) -> Result<Option<(Record, Parsed)>, StoreError> {
        let loaded = self.parse(&self.record_path(image))?;
        Ok(loaded.filter(|(record, _)| record.reference == image.as_str() && record.check(image).is_ok()))
    }

    /// Reads a record, and the documents that it names.
    pub(crate) fn parse(&self, record: &Path) -> Result<Option<(Record, Parsed)>, StoreError> {
        let record = read(record)?.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        let Some(record) = record else { return Ok(None) };
        let Some(manifest) = self.blob(&record.manifest)? else { return Ok(None) };
        let Ok(manifest) = document::manifest(&manifest) else { return Ok(None) };
        let Some(config) = self.blob(&manifest.config.digest)? else { return Ok(None) };
        Ok(document::parse(&manifest, &config).ok().map(|parsed| (record, parsed)))
    }

    /// A document. `None`: it is not here, or does not have its digest.
    pub(crate) fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let bytes = if is_digest(digest) { read(&self.blob_path(digest))? } else { None };
        Ok(bytes.filter(|bytes| has_digest(bytes, digest)))
    }

    /// Keeps a layer's blob, if it is here and has the layer's size. The caller holds the lock.
    pub(crate) fn lease_blob(&self, layer: &Layer) -> Result<Option<File>, StoreError> {
        let blob = lease(&self.blob_path(&layer.digest))?;
        Ok(blob.filter(|file| file.metadata().is_ok_and(|file| file.len() == layer.size)))
    }
}

/// Keeps a blob, a tree or a record until the file is closed. The caller holds the store's lock.
pub(crate) fn lease(path: &Path) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file
            .and_then(|file| {
                flock(&file, FlockOperation::LockShared).map(|()| Some(file)).map_err(Into::into)
            })
            .on_disk("cannot open", path),
    }
}

/// A small file. Larger ones count as absent.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(metadata) if metadata.len() > MAX_DOCUMENT => Ok(None),
        _ => fs::read(path).map(Some).on_disk("cannot read", path),
    }
}
