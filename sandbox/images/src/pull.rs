//! Takes images into the store, from a registry or from an archive: manifest, configuration, then all
//! layers at once. A layer is unpacked as soon as it and its parents are here.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, future, stream};
use parking_lot::Mutex;
use porch_fn_image::Image;
use porch_fn_registry::{Client, ImageManifest, RegistryError};
use tempfile::NamedTempFile;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::content::{document_in, name_of};
use crate::error::{OnDisk as _, StoreError};
use crate::run_folder::RunFolder;
use crate::store::{Record, Store};

/// Layers that are fetched at the same time.
const AT_ONCE: usize = 4;
/// Longest pull.
const MAX_TIME: Duration = Duration::from_hours(1);

/// How far a pull is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Number of layers.
    pub layers: usize,
    /// How many of them are unpacked.
    pub unpacked: usize,
    /// Size of all that the image needs, in bytes.
    pub bytes: u64,
    /// How many of these bytes are here.
    pub received: u64,
}

/// Is called when a pull has made progress, for people who watch it.
pub type Watch<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// Where the content of an image comes from, where it goes to, and who watches.
pub(crate) struct Intake<'a> {
    pub(crate) store: &'a Store,
    /// Has content of images, with names by its digests.
    pub(crate) folder: &'a RunFolder,
    /// Where the rest is fetched. `None`: the folder has all.
    pub(crate) registry: Option<(&'a Client, &'a Image)>,
    pub(crate) watch: Watch<'a>,
    pub(crate) progress: Mutex<Progress>,
}

// === impl Store ===

impl Store {
    /// Pulls the image, even if it is here: its tag may have moved. Intact content that is here is
    /// not fetched again. Then removes other images, if all take more than `--image-max-size`.
    ///
    /// # Errors
    /// [`StoreError`]. What is complete stays for the next attempt.
    pub async fn pull(&self, client: &Client, image: &Image, watch: Watch<'_>) -> Result<(), StoreError> {
        let pull = async {
            let folder = self.blocking(Self::run_folder).await?;
            let manifest = client.manifest(image).await?;
            let path = folder.path().join(name_of(&manifest.digest));
            fs::write(&path, &manifest.bytes).on_disk("cannot write", path)?;
            let (registry, progress) = (Some((client, image)), Mutex::default());
            let intake = Intake { store: self, folder: &folder, registry, watch, progress };
            let record = Record::new(manifest.resolved.to_string(), manifest.digest.to_string());
            intake.take(vec![image.clone()], record).await
        };
        let pulled = timeout(MAX_TIME, pull).await;
        self.collect().await;
        pulled.unwrap_or(Err(RegistryError::Slow("a pull takes longer than an hour").into()))
    }

    /// Runs a method on a thread that may block.
    ///
    /// # Errors
    /// Those of the method.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        let done = spawn_blocking(move || work(&store)).await;
        done.unwrap_or_else(|error| Err(StoreError::Other(error.into())))
    }

    fn check_limit(&self, needs: u64) -> Result<(), StoreError> {
        let limit = self.max_bytes;
        let error = StoreError::TooLarge { needs: needs >> 20, limit: limit >> 20 };
        if needs > limit { Err(error) } else { Ok(()) }
    }
}

// === impl Intake ===

impl Intake<'_> {
    /// Takes the image with this manifest into the store, under these names.
    pub(crate) async fn take(&self, names: Vec<Image>, record: Record) -> Result<(), StoreError> {
        let Self { store, folder, .. } = *self;
        let bytes = document_in(folder.path(), &record.manifest)?;
        let bytes = bytes.ok_or_else(|| StoreError::Digest(record.manifest.clone()))?;
        let manifest = ImageManifest::read(&bytes)?;
        names.iter().try_for_each(|name| record.check(name))?;
        let config = &manifest.config;
        let needs = manifest.layers.iter().fold(config.size, |sum, layer| sum.saturating_add(layer.size));
        store.check_limit(needs)?;
        self.report(|it| (it.layers, it.bytes) = (manifest.layers.len(), needs));
        let mut leases = vec![
            self.blob(&record.manifest, bytes.len() as u64).await?,
            self.blob(&config.digest, config.size).await?,
        ];
        let damaged = || StoreError::Damaged(store.blob_path(&config.digest));
        let (_, layers) = manifest.read_config(&store.blob(&config.digest)?.ok_or_else(damaged)?)?;
        // Collected first, because the compiler cannot prove that a stream of closures is `Send`.
        let blobs: Vec<_> = layers.iter().map(|layer| self.blob(&layer.digest, layer.size)).collect();
        let (sender, mut arrived) = mpsc::unbounded_channel();
        let fetched = stream::iter(blobs).buffered(AT_ONCE).try_for_each(move |lease| {
            // Nobody listens if a layer before could not be unpacked.
            let _ = sender.send(lease);
            future::ok(())
        });
        let unpacked = async {
            for number in 0..layers.len() {
                leases.extend(arrived.recv().await);
                let layers = layers.clone();
                leases.extend(store.blocking(move |store| store.unpack(&layers, number)).await?);
                self.report(|it| it.unpacked += 1);
            }
            Ok(())
        };
        future::try_join(fetched, unpacked).await?;
        let save = move |store: &Store| {
            let _leases = store.unpack_all(&layers)?;
            // Otherwise the image would be the first to be removed.
            let trees = store.trees(&layers).into_iter().flatten().map(|(_, size)| size.bytes);
            store.check_limit(trees.fold(needs, u64::saturating_add))?;
            names.iter().try_for_each(|name| store.save(name, record.clone()))
        };
        store.blocking(save).await
    }

    fn report(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.lock();
        change(&mut progress);
        (self.watch)(*progress);
    }

    /// Takes a blob into the store, unless a registry is asked and it is here. Returns a lease.
    async fn blob(&self, digest: &str, size: u64) -> Result<File, StoreError> {
        let mut path = self.folder.path().join(name_of(digest));
        let known = digest.to_owned();
        if !path.exists() {
            let missing = || StoreError::Archive(format!("it does not have {digest:?}"));
            let (client, image) = self.registry.ok_or_else(missing)?;
            let known = known.clone();
            if let Some(lease) = self.store.blocking(move |it| it.lease_intact(&known, size)).await? {
                self.report(|it| it.received += size);
                return Ok(lease);
            }
            let fetched = NamedTempFile::new_in(self.folder.path()).and_then(|file| Ok(file.keep()?));
            let file;
            (file, path) = fetched.on_disk("cannot write", self.folder.path())?;
            let write = |position, bytes: &[u8]| {
                // A few KiB, into the page cache.
                file.write_all_at(bytes, position).on_disk("cannot write", &path)?;
                self.report(|it| it.received += bytes.len() as u64);
                Ok::<_, StoreError>(())
            };
            client.fetch(image, digest, size, write).await?;
        }
        self.store.blocking(move |store| store.admit(&path, &known, size)).await
    }
}
