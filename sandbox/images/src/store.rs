//! The folder with all images, and the rules by which processes share it.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::time::SystemTime;

use porch_fn_image::Image;
use porch_fn_registry::{ImageManifest, Layer, RunConfig, sha256};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::content::{document_in, has_size, is_intact, name_of, read};
use crate::error::{OnDisk as _, StoreError};
use crate::unpack::Size;

/// The images of one folder. Cheap to clone. All methods block.
#[derive(Debug, Clone)]
pub struct Store {
    folder: Arc<Path>,
    pub(crate) max_bytes: u64,
}

/// The folder of a tree that has its files.
pub(crate) const FILES: &str = "fs";

/// The trees of an image and their sizes, lowest first. Not empty.
pub(crate) type Trees = Vec<(PathBuf, Size)>;

/// What the store remembers about a reference. All else is read from the manifest and the
/// configuration. Files of older versions have more fields, and count as absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The full reference, with its tag or digest.
    pub reference: String,
    /// What the reference resolved to: the digest of an index or of a manifest.
    pub resolved: String,
    /// The digest of the manifest for this machine's platform.
    pub manifest: String,
    /// When it was pulled or imported.
    pub pulled: SystemTime,
}

/// An image of the store, as its record and its documents describe it.
#[derive(Debug, Clone)]
pub struct ImageInfo {
    /// Its record.
    pub record: Record,
    /// How it wants to be run.
    pub run: RunConfig,
    /// The digest of the configuration: what Docker calls the image's ID.
    pub config: String,
    /// The layers, lowest first.
    pub layers: Vec<Layer>,
    /// When it was last used.
    pub used: SystemTime,
    /// The file of the record.
    pub(crate) path: PathBuf,
    /// `None`: a tree is missing, so the image cannot be run.
    pub(crate) trees: Option<Trees>,
}

/// An image that can be run. While this exists, also in another process that inherits its files, the
/// image's trees are not removed.
#[derive(Debug)]
pub struct Stored {
    /// The image.
    pub image: ImageInfo,
    /// Closing the files ends the lease.
    _leases: Vec<File>,
}

// === impl Stored ===

impl Stored {
    /// The folders to stack, lowest first. Not empty.
    pub fn stack(&self) -> Vec<PathBuf> {
        self.image.trees.iter().flatten().map(|(tree, _)| tree.join(FILES)).collect()
    }
}

// === impl Record ===

impl Record {
    /// A record without a reference.
    pub(crate) fn new(resolved: String, manifest: String) -> Self {
        Self { reference: String::new(), resolved, manifest, pulled: SystemTime::now() }
    }

    /// Fails if the reference names a digest that is not this image's.
    pub(crate) fn check(&self, image: &Image) -> Result<(), StoreError> {
        let is_other = |digest: &str| digest != self.resolved && digest != self.manifest;
        if image.digest().is_some_and(is_other) {
            return Err(StoreError::Pinned { name: image.to_string(), digest: self.resolved.clone() });
        }
        Ok(())
    }
}

// === impl ImageInfo ===

impl ImageInfo {
    /// The digests of all blobs that the image needs.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &str> {
        let layers = self.layers.iter().map(|layer| &layer.digest);
        [&self.record.manifest, &self.config].into_iter().chain(layers).map(String::as_str)
    }

    /// Size of its layers, unpacked and compressed, in bytes. Images share layers.
    pub fn bytes(&self) -> u64 {
        let trees = self.trees.iter().flatten().map(|(_, size)| size.bytes);
        self.layers.iter().map(|layer| layer.size).chain(trees).fold(0, u64::saturating_add)
    }
}

// === impl Store ===

impl Store {
    /// Opens the folder, `--image-dir`, and creates it if it is missing. Removes what a killed process
    /// left. No image may need more than `max_bytes` bytes, `--image-max-size`. When all need more,
    /// those that were unused for longest are removed.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(folder: &Path, max_bytes: u64) -> Result<Self, StoreError> {
        let folder = absolute(folder).on_disk("cannot use", folder)?;
        let store = Self { folder: folder.into(), max_bytes };
        // Otherwise another user could put another folder in the place of this one.
        for above in store.folder().ancestors() {
            let Ok(found) = fs::symlink_metadata(above) else { continue };
            let is_others = found.is_symlink() && found.uid() != 0 && found.uid() != geteuid().as_raw();
            check(above, &found, is_others, found.is_dir() && found.mode() & 0o1002 == 0o002)?;
        }
        for name in ["images", "blobs", "layers", "tmp"] {
            let path = store.path(name);
            DirBuilder::new().recursive(true).mode(0o700).create(&path).on_disk("cannot create", path)?;
        }
        let found = fs::metadata(store.folder()).on_disk("cannot read", store.folder())?;
        let is_others = found.uid() != geteuid().as_raw();
        check(store.folder(), &found, is_others, found.mode() & 0o022 != 0)?;
        store.sweep();
        Ok(store)
    }

    /// The folder of this store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn record_path(&self, image: &Image) -> PathBuf {
        let key = sha256(image.as_str().as_bytes());
        self.path("images").join(format!("{}.json", &key["sha256:".len()..][..32]))
    }

    /// What is in one of the store's folders.
    pub(crate) fn files(&self, folder: &str) -> Result<Vec<PathBuf>, StoreError> {
        let folder = self.path(folder);
        let files = fs::read_dir(&folder).and_then(|entries| entries.map(|it| Ok(it?.path())).collect());
        files.on_disk("cannot read", folder)
    }

    /// Prevents that anything is removed, until the file is closed. Waits while another process
    /// removes something.
    pub(crate) fn lock(&self) -> Result<File, StoreError> {
        self.lock_by(File::lock_shared)
    }

    /// Allows to remove things, until the file is closed. Waits for all other processes, which hold
    /// the lock only for moments.
    pub(crate) fn lock_alone(&self) -> Result<File, StoreError> {
        self.lock_by(File::lock)
    }

    fn lock_by(&self, lock: fn(&File) -> io::Result<()>) -> Result<File, StoreError> {
        let path = self.path("lock");
        let file = OpenOptions::new().create(true).append(true).open(&path).on_disk("cannot open", &path)?;
        lock(&file).on_disk("cannot lock", path)?;
        Ok(file)
    }

    /// Writes the record of a reference whole.
    pub(crate) fn save(&self, image: &Image, record: Record) -> Result<(), StoreError> {
        record.check(image)?;
        let record = serde_json::json!(Record { reference: image.to_string(), ..record }).to_string();
        let _lock = self.lock()?;
        let folder = self.run_folder()?;
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
        let Some(image) = self.load(image)? else { return Ok(None) };
        // Otherwise the image could not be exported, or unpacked again.
        if !image.layers.iter().all(|layer| has_size(&self.blob_path(&layer.digest), layer.size)) {
            return Ok(None);
        }
        // The trees may be another image's, too. The record is only of this one.
        let paths = image.trees.iter().flatten().map(|(tree, _)| tree).chain([&image.path]);
        let leases = paths.filter_map(|path| lease(path).transpose()).collect::<Result<Vec<_>, _>>()?;
        let used = leases.last().map_or(Ok(()), |record| record.set_modified(SystemTime::now()));
        used.on_disk("cannot write", self.folder())?;
        Ok(Some(Stored { image, _leases: leases }))
    }

    /// What is known about an image. `None`: it is not here, damaged or incomplete.
    pub(crate) fn load(&self, image: &Image) -> Result<Option<ImageInfo>, StoreError> {
        let is_this = |record: &Record| record.reference == image.as_str() && record.check(image).is_ok();
        let found = self.read_image(&self.record_path(image))?;
        Ok(found.filter(|found| is_this(&found.record) && found.trees.is_some()))
    }

    /// The images whose records and documents are here and intact.
    pub(crate) fn images(&self) -> Result<Vec<ImageInfo>, StoreError> {
        self.files("images")?.iter().filter_map(|path| self.read_image(path).transpose()).collect()
    }

    /// Reads a record, and the documents that it names.
    fn read_image(&self, path: &Path) -> Result<Option<ImageInfo>, StoreError> {
        let record = read(path)?.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        let Some(record) = record else { return Ok(None) };
        let Some(manifest) = self.blob(&record.manifest)? else { return Ok(None) };
        let Ok(manifest) = ImageManifest::read(&manifest) else { return Ok(None) };
        let Some(config) = self.blob(&manifest.config.digest)? else { return Ok(None) };
        let Ok((run, layers)) = manifest.read_config(&config) else { return Ok(None) };
        let used = fs::metadata(path).and_then(|file| file.modified()).on_disk("cannot read", path)?;
        let trees = self.trees(&layers);
        let config = manifest.config.digest;
        Ok(Some(ImageInfo { record, run, config, layers, used, path: path.to_owned(), trees }))
    }

    /// The file of a blob. `digest` is a valid digest: it becomes a name.
    pub(crate) fn blob_path(&self, digest: &str) -> PathBuf {
        self.path("blobs").join(name_of(digest))
    }

    /// A document. `None`: it is not here, or does not have its digest.
    pub(crate) fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        document_in(&self.path("blobs"), digest)
    }

    /// Takes a file into the store, in place of what has its name. It stays where it is, because
    /// images of one archive share layers. Returns a lease.
    pub(crate) fn admit(&self, file: &Path, digest: &str, size: u64) -> Result<File, StoreError> {
        if !has_size(file, size) || !is_intact(file, digest)? {
            return Err(StoreError::Digest(digest.to_owned()));
        }
        let to = self.blob_path(digest);
        let folder = file.parent().unwrap_or(file);
        let _lock = self.lock()?;
        let link = tempfile::Builder::new().make_in(folder, |link| fs::hard_link(file, link));
        link.and_then(|link| Ok(link.persist(&to)?)).on_disk("cannot write", &to)?;
        lease(&to)?.ok_or(StoreError::Damaged(to))
    }

    /// Keeps a blob, if it is here and intact.
    pub(crate) fn lease_intact(&self, digest: &str, size: u64) -> Result<Option<File>, StoreError> {
        let path = self.blob_path(digest);
        let lock = self.lock()?;
        let blob = lease(&path)?;
        drop(lock);
        let is_intact = blob.is_some() && has_size(&path, size) && is_intact(&path, digest)?;
        Ok(blob.filter(|_| is_intact))
    }
}

/// Fails if a file is another user's, or if others can write to it.
fn check(path: &Path, found: &Metadata, is_others: bool, is_writable: bool) -> Result<(), StoreError> {
    let path = path.to_owned();
    if is_others {
        return Err(StoreError::Owner { path, owner: found.uid(), user: geteuid().as_raw() });
    }
    if is_writable { Err(StoreError::Writable(path)) } else { Ok(()) }
}

/// Keeps a blob, a tree or a record until the file is closed. The caller holds the store's lock.
pub(crate) fn lease(path: &Path) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.and_then(|file| file.lock_shared().map(|()| Some(file))).on_disk("cannot open", path),
    }
}
