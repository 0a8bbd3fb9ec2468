//! The folder with all images, and the rules by which processes share it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::Duration;

use porch_fn_image::{Image, is_digest};
use porch_fn_registry::{Hasher, has_digest};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::content::Hashed;
use crate::document::{self, Layer, MAX_DOCUMENT, Parsed};
use crate::error::OnDisk as _;
use crate::record::Record;
use crate::{Owner, StoreError};

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

/// Other processes hold the lock only for moments.
const PATIENCE: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// The images of one folder. Cheap to clone. All methods block.
#[derive(Debug, Clone)]
pub struct Store {
    options: Arc<Options>,
    /// Whether this machine has refused an overlay.
    pub(crate) has_no_overlay: Arc<AtomicBool>,
}

/// Holds the store's lock until it is dropped, or until the process ends.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "closing the file releases the lock")] File);

// === impl Store ===

impl Store {
    /// Opens the folder, and creates it if it is missing. Removes what a killed process left.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(mut options: Options) -> Result<Self, StoreError> {
        options.folder = absolute(&options.folder).on_disk("cannot use", &options.folder)?;
        let store = Self { options: Arc::new(options), has_no_overlay: Arc::default() };
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
        &self.options.folder
    }

    /// The settings of this store.
    pub fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.options.folder.join(name)
    }

    pub(crate) fn record_path(&self, image: &Image) -> PathBuf {
        self.path("images").join(Record::key(image) + ".json")
    }

    /// `digest` is a valid digest: it becomes a name.
    pub(crate) fn blob_path(&self, digest: &str) -> PathBuf {
        self.path("blobs").join(digest.replace(':', "-"))
    }

    /// What is in one of the store's folders.
    pub(crate) fn files(&self, folder: &str) -> Result<Vec<PathBuf>, StoreError> {
        let folder = self.path(folder);
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.on_disk("cannot read", &folder)?,
        };
        entries.map(|entry| Ok(entry.on_disk("cannot read", &folder)?.path())).collect()
    }

    /// Prevents that anything is removed. Waits while another process removes something.
    pub(crate) fn lock(&self) -> Result<Lock, StoreError> {
        let (file, path) = self.lock_file()?;
        flock(&file, FlockOperation::LockShared).on_disk("cannot lock", path)?;
        Ok(Lock(file))
    }

    /// Allows to remove things. `None` while other processes publish or find images.
    pub(crate) fn lock_alone(&self) -> Result<Option<Lock>, StoreError> {
        let (file, path) = self.lock_file()?;
        for _ in 0..PATIENCE {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => sleep(PAUSE),
                locked => return locked.on_disk("cannot lock", path).map(|()| Some(Lock(file))),
            }
        }
        Ok(None)
    }

    fn lock_file(&self) -> Result<(File, PathBuf), StoreError> {
        let path = self.path("lock");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        Ok((file.on_disk("cannot open", &path)?, path))
    }

    /// Writes the record of a reference whole.
    pub(crate) fn save(&self, image: &Image, record: Record) -> Result<(), StoreError> {
        if record.contradicts(image) {
            return Err(StoreError::Pinned { name: image.to_string(), digest: record.resolved });
        }
        let record = serde_json::json!(Record { reference: image.to_string(), ..record }).to_string();
        let lock = self.lock()?;
        let folder = self.run_folder_locked(&lock)?;
        let file = folder.path().join("file");
        let written = File::create_new(&file).and_then(|mut file| {
            file.write_all(record.as_bytes())?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(&file, self.record_path(image))).on_disk("cannot write", &file)
    }

    /// The record of a reference and what its documents say. `None`: it is not here, or damaged.
    pub(crate) fn load(&self, image: &Image) -> Result<Option<(Record, Parsed)>, StoreError> {
        let Some(bytes) = read(&self.record_path(image))? else { return Ok(None) };
        Ok(self
            .parse(&bytes)?
            .filter(|(record, _)| record.reference == image.as_str() && !record.contradicts(image)))
    }

    /// Reads the bytes of a record, and the documents that it names.
    pub(crate) fn parse(&self, record: &[u8]) -> Result<Option<(Record, Parsed)>, StoreError> {
        let Ok(record) = serde_json::from_slice::<Record>(record) else { return Ok(None) };
        let Some(manifest) = self.blob(&record.manifest)? else { return Ok(None) };
        let Ok(manifest) = document::manifest(&manifest) else { return Ok(None) };
        let Some(config) = self.blob(&manifest.config.digest)? else { return Ok(None) };
        Ok(document::parse(&manifest, &config).ok().map(|parsed| (record, parsed)))
    }

    /// A document. `None`: it is not here, or does not have its digest.
    pub(crate) fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        if !is_digest(digest) {
            return Ok(None);
        }
        Ok(read(&self.blob_path(digest))?.filter(|bytes| has_digest(bytes, digest)))
    }

    /// Keeps a layer's blob, if it is here and has the layer's size. The caller holds the lock.
    pub(crate) fn lease_blob(&self, layer: &Layer) -> Result<Option<File>, StoreError> {
        let blob = lease(&self.blob_path(&layer.digest))?;
        Ok(blob.filter(|file| file.metadata().is_ok_and(|file| file.len() == layer.size)))
    }

    /// Whether the content of an open blob has this digest.
    pub(crate) fn is_intact(&self, digest: &str, blob: &File) -> Result<bool, StoreError> {
        let Some(hasher) = Hasher::of(digest) else { return Ok(false) };
        let found = Hashed::new(blob, hasher).finish().on_disk("cannot read", self.blob_path(digest))?;
        Ok(found == digest)
    }
}

/// Keeps a blob, a tree or a record until the file is closed. The caller holds the store's lock.
pub(crate) fn lease(path: &Path) -> Result<Option<File>, StoreError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.on_disk("cannot open", path)?,
    };
    flock(&file, FlockOperation::LockShared).on_disk("cannot lock", path)?;
    Ok(Some(file))
}

/// A small file. Larger ones count as absent.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(metadata) if metadata.len() > MAX_DOCUMENT => Ok(None),
        _ => fs::read(path).map(Some).on_disk("cannot read", path),
    }
}
