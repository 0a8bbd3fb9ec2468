//! Pulls images: manifest, configuration, then all layers at once. A layer is unpacked as soon as
//! it and its parents are here.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, future, stream};
use porch_fn_image::Image;
use porch_fn_registry::{Client, RegistryError};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::content::is_intact;
use crate::document::{self, Layer};
use crate::error::{OnDisk as _, StoreError};
use crate::run_folder::RunFolder;
use crate::store::{Record, Store};

const LAYER: &str = "layer";
/// Layers that are fetched at the same time.
const AT_ONCE: usize = 4;
/// Longest pull.
const MAX_TIME: Duration = Duration::from_hours(1);

/// Attempts at one blob. Each goes on where the last one stopped.
const MAX_ATTEMPTS: u32 = 6;
/// Pause before the second attempt. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A registry must send this much in this time.
const MIN_BYTES: u64 = 32 << 10;
const WINDOW: Duration = Duration::from_secs(30);

/// Receives what a pull does, for people who watch it.
pub trait Progress: Send + Sync {
    /// The image's layers are known: how many are missing here, and their size in bytes.
    fn start(&self, _layers: usize, _bytes: u64) {}
    /// These bytes of a layer have arrived.
    fn add(&self, _bytes: u64) {}
    /// A layer is unpacked.
    fn unpacked(&self) {}
}

/// Reports nothing.
impl Progress for () {}

/// Where blobs come from and go to, and who watches.
struct Download<'a> {
    store: &'a Store,
    client: &'a Client,
    image: &'a Image,
    progress: &'a dyn Progress,
    folder: &'a RunFolder,
}

// === impl Store ===

impl Store {
    /// Pulls the image, even if it is here: its tag may have moved. Intact content that is here is
    /// not fetched again. Then removes other images, if all take more than `--image-max-size`.
    ///
    /// # Errors
    /// [`StoreError`]. What is complete stays for the next attempt.
    pub async fn pull(
        &self,
        client: &Client,
        image: &Image,
        progress: &dyn Progress,
    ) -> Result<(), StoreError> {
        let pulled = timeout(MAX_TIME, self.pull_all(client, image, progress)).await;
        let collect = |store: &Self| {
            store.collect();
            Ok(())
        };
        self.blocking(collect).await?;
        pulled.unwrap_or(Err(StoreError::Slow("a pull takes longer than an hour")))
    }

    async fn pull_all(
        &self,
        client: &Client,
        image: &Image,
        progress: &dyn Progress,
    ) -> Result<(), StoreError> {
        let folder = self.blocking(Self::run_folder).await?;
        let download = Download { store: self, client, image, progress, folder: &folder };
        let fetched = client.manifest(image).await?;
        let manifest = document::manifest(&fetched.bytes)?;
        let record = Record::new(&fetched.resolved, &fetched.digest);
        let mut leases = vec![self.keep(&folder, &record.manifest, &fetched.bytes)?];
        let config = &manifest.config.digest;
        if self.blob(config)?.is_none() {
            leases.push(download.fetch(config, manifest.config.size, "configuration").await?);
        }
        let bytes = self.blob(config)?.ok_or_else(|| StoreError::Damaged(self.blob_path(config)))?;
        let layers = document::parse(&manifest, &bytes)?.layers;
        let known = layers.clone();
        let (trees, blobs) = self.blocking(move |store| store.lease_intact(&known)).await?;
        leases.extend(trees);
        let missing =
            layers.iter().zip(&blobs).filter(|(_, blob)| blob.is_none()).map(|(layer, _)| layer.size);
        let bytes = missing.clone().fold(0, u64::saturating_add);
        self.check_limit(bytes)?;
        progress.start(missing.count(), bytes);
        // Collected first, because the compiler cannot prove that a stream of closures is `Send`.
        let fetches = layers.iter().zip(blobs).map(|(layer, blob)| download.layer(layer, blob));
        let fetches: Vec<_> = fetches.collect();
        let (sender, mut arrived) = mpsc::unbounded_channel();
        let fetched = stream::iter(fetches).buffered(AT_ONCE).try_for_each(move |lease| {
            // Nobody listens if a layer before could not be unpacked.
            let _ = sender.send(lease);
            future::ok(())
        });
        let unpacked = async {
            for number in 0..layers.len() {
                let Some(blob) = arrived.recv().await else { return Ok(()) };
                leases.push(blob);
                let layers = layers.clone();
                leases.extend(self.blocking(move |store| store.unpack(&layers, number)).await?);
                progress.unpacked();
            }
            Ok(())
        };
        future::try_join(fetched, unpacked).await?;
        let image = image.clone();
        self.blocking(move |store| store.finish(&[image], &record, &layers)).await
    }

    /// Keeps the trees and the intact blobs that are here. The lock is not held for a whole pull.
    fn lease_intact(&self, layers: &[Layer]) -> Result<(Vec<File>, Vec<Option<File>>), StoreError> {
        let lock = self.lock()?;
        let trees = self.lease_trees(layers)?;
        let blobs = layers.iter().map(|layer| self.lease_blob(layer)).collect::<Result<Vec<_>, _>>()?;
        drop(lock);
        let intact = layers.iter().zip(blobs).map(|(layer, blob)| match blob {
            Some(blob) if is_intact(&self.blob_path(&layer.digest), &layer.digest)? => Ok(Some(blob)),
            _ => Ok(None),
        });
        Ok((trees, intact.collect::<Result<_, StoreError>>()?))
    }

    fn check_limit(&self, needs: u64) -> Result<(), StoreError> {
        let limit = self.options().max_bytes;
        let error = StoreError::TooLarge { needs: needs >> 20, limit: limit >> 20 };
        if needs > limit { Err(error) } else { Ok(()) }
    }

    /// Saves the record of an image whose blobs and trees are here, under these names.
    pub(crate) fn finish(
        &self,
        images: &[Image],
        record: &Record,
        layers: &[Layer],
    ) -> Result<(), StoreError> {
        let _lease = self.unpack_plain(layers)?;
        // Otherwise the image would be the first to be removed.
        self.check_limit(self.size(layers)?.unwrap_or_default())?;
        images.iter().try_for_each(|image| self.save(image, record.clone()))
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
        done.unwrap_or_else(|error| Err(StoreError::Stream(error.into())))
    }
}

// === impl Download ===

impl Download<'_> {
    /// Fetches a layer, unless it is here. Returns a lease.
    async fn layer(&self, layer: &Layer, blob: Option<File>) -> Result<File, StoreError> {
        match blob {
            Some(blob) => Ok(blob),
            None => self.fetch(&layer.digest, layer.size, LAYER).await,
        }
    }

    /// Fetches a blob. If the connection is lost, goes on from there. Returns a lease.
    async fn fetch(&self, digest: &str, size: u64, what: &'static str) -> Result<File, StoreError> {
        let path = self.folder.path().join(digest.replace(':', "-"));
        let mut file = File::create(&path).on_disk("cannot write", &path)?;
        let (mut received, mut attempt) = (0, 1);
        loop {
            let lost = match self.receive(digest, size, what, &mut file, &mut received).await {
                Ok(()) => {
                    let digest = digest.to_owned();
                    return self.store.blocking(move |store| store.admit(&path, &digest, what)).await;
                }
                Err(StoreError::Registry(error)) => error,
                Err(error) => return Err(error),
            };
            let may_retry = matches!(lost, RegistryError::Unreachable | RegistryError::Busy { .. });
            if !may_retry || attempt == MAX_ATTEMPTS {
                return Err(lost.into());
            }
            tracing::info!(attempt, received, "a blob was interrupted; it goes on from there");
            sleep(FIRST_PAUSE * (1 << (attempt - 1))).await;
            attempt += 1;
        }
    }

    async fn receive(
        &self,
        digest: &str,
        size: u64,
        what: &'static str,
        file: &mut File,
        received: &mut u64,
    ) -> Result<(), StoreError> {
        let mut blob = self.client.blob(self.image, digest, *received).await?;
        let mut skip = received.saturating_sub(blob.from);
        let (mut since, mut bytes) = (Instant::now(), 0);
        while let Some(chunk) = blob.chunk().await? {
            bytes += chunk.len() as u64;
            if since.elapsed() >= WINDOW {
                if bytes < MIN_BYTES {
                    return Err(StoreError::Slow("less than 32 KiB in 30 s"));
                }
                (since, bytes) = (Instant::now(), 0);
            }
            let seen = skip.min(chunk.len() as u64);
            skip -= seen;
            let new = &chunk[seen as usize..];
            *received += new.len() as u64;
            if *received > size {
                return Err(StoreError::Digest { what });
            }
            // A few KiB, into the page cache.
            file.write_all(new).on_disk("cannot write", self.folder.path())?;
            if what == LAYER {
                self.progress.add(new.len() as u64);
            }
        }
        if *received == size { Ok(()) } else { Err(RegistryError::Unreachable.into()) }
    }
}
