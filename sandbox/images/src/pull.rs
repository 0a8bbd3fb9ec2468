//! Pulls images: manifest, configuration, then all layers at once. A layer is unpacked as soon as
//! it and its parents are here.

mod download;

use std::fs::File;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt as _, TryStreamExt as _, future, stream};
use porch_fn_image::Image;
use porch_fn_registry::{Client, Hasher};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::download::{Download, Wanted};
use crate::StoreError;
use crate::content::Incoming;
use crate::document::{self, Layer};
use crate::record::Record;
use crate::run_folder::RunFolder;
use crate::store::Store;

/// Layers that are fetched at the same time.
const AT_ONCE: usize = 4;
/// Longest pull.
const MAX_TIME: Duration = Duration::from_secs(3600);

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
        let pulled = pulled.unwrap_or(Err(StoreError::Slow("the pull takes longer than an hour")));
        self.blocking(Store::collect_or_warn).await?;
        pulled
    }

    async fn pull_all(
        &self,
        client: &Client,
        image: &Image,
        progress: &dyn Progress,
    ) -> Result<(), StoreError> {
        let folder = self.blocking(Self::run_folder).await?;
        let download = Download { client, image, progress };
        let fetched = client.manifest(image).await?;
        let manifest = document::manifest(&fetched.bytes)?;
        let record = Record {
            reference: image.as_str().to_owned(),
            resolved: fetched.resolved.to_string(),
            manifest: fetched.digest.to_string(),
            pulled: SystemTime::now(),
        };
        let mut leases = vec![self.keep(&folder, &record.manifest, &fetched.bytes, "manifest")?];
        let config = manifest.config().digest().to_string();
        if self.blob(&config)?.is_none() {
            let size = manifest.config().size();
            let wanted = Wanted { digest: &config, size, what: "configuration", is_counted: false };
            let content = download.fetch(&wanted, folder.path().join("config")).await?;
            leases.push(self.admit(&content)?);
        }
        let bytes = self.blob(&config)?.ok_or_else(|| StoreError::Damaged(self.blob_path(&config)))?;
        let parsed = document::parse(&manifest, &bytes)?;
        let layers = parsed.layers;
        // What is here stays until the end of the pull. The lock is not held so long.
        let known = layers.clone();
        let (trees, blobs) = self
            .blocking(move |store| {
                let lock = store.lock()?;
                let trees = store.lease_trees(&known)?;
                let blobs = known.iter().map(|layer| store.lease_blob(&layer.digest, layer.size));
                let blobs = blobs.collect::<Result<Vec<_>, _>>()?;
                drop(lock);
                let intact = known.iter().zip(blobs).map(|(layer, blob)| match blob {
                    Some(blob) if store.is_intact(&layer.digest, &blob)? => Ok(Some(blob)),
                    _ => Ok(None),
                });
                Ok((trees, intact.collect::<Result<Vec<_>, StoreError>>()?))
            })
            .await?;
        leases.extend(trees);
        self.check_size(&layers, &blobs)?;
        let missing = || layers.iter().zip(&blobs).filter(|(_, blob)| blob.is_none()).map(|(layer, _)| layer);
        progress.start(missing().count(), missing().map(|layer| layer.size).sum());
        // Collected first, because the compiler cannot prove that a stream of closures is `Send`.
        let fetches: Vec<_> = layers
            .iter()
            .zip(blobs)
            .enumerate()
            .map(|(number, (layer, blob))| self.fetch_layer(&download, &folder, number, layer, blob))
            .collect();
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

    /// Fetches a layer into the store, unless it is here. Returns a lease.
    async fn fetch_layer(
        &self,
        download: &Download<'_>,
        folder: &RunFolder,
        number: usize,
        layer: &Layer,
        blob: Option<File>,
    ) -> Result<File, StoreError> {
        if let Some(blob) = blob {
            return Ok(blob);
        }
        let wanted = Wanted { digest: &layer.digest, size: layer.size, what: "layer", is_counted: true };
        let content = download.fetch(&wanted, folder.path().join(format!("layer-{number}"))).await?;
        self.blocking(move |store| store.admit(&content)).await
    }

    /// Takes a document into the store. Returns a lease.
    pub(crate) fn keep(
        &self,
        folder: &RunFolder,
        digest: &str,
        bytes: &[u8],
        what: &'static str,
    ) -> Result<File, StoreError> {
        let hasher = Hasher::of(digest).ok_or(StoreError::Digest { what })?;
        let mut incoming = Incoming::create(folder.path().join(digest.replace(':', "-")), hasher)?;
        incoming.write(bytes)?;
        let content = incoming.finish();
        if content.digest == digest { self.admit(&content) } else { Err(StoreError::Digest { what }) }
    }

    /// Fails if the compressed layers that are not here are too large.
    fn check_size(&self, layers: &[Layer], blobs: &[Option<File>]) -> Result<(), StoreError> {
        let missing = layers.iter().zip(blobs).filter(|(_, blob)| blob.is_none());
        self.check_limit(missing.fold(0, |sum, (layer, _)| layer.size.saturating_add(sum)))
    }

    pub(crate) fn check_limit(&self, needs: u64) -> Result<(), StoreError> {
        let limit = self.options().max_bytes;
        if needs > limit {
            return Err(StoreError::TooLarge { needs: needs >> 20, limit: limit >> 20 });
        }
        Ok(())
    }

    /// Saves the record of an image whose blobs and trees are here, under these names.
    pub(crate) fn finish(
        &self,
        images: &[Image],
        record: &Record,
        layers: &[Layer],
    ) -> Result<(), StoreError> {
        let _lease = self.unpack_plain(layers)?;
        let trees = self.trees(layers)?.unwrap_or_default();
        // Otherwise the image would be the first to be removed.
        let blobs = layers.iter().map(|layer| layer.size);
        let sizes = blobs.chain(trees.iter().map(|(_, size)| size.bytes));
        self.check_limit(sizes.fold(0, u64::saturating_add))?;
        for image in images {
            self.save(image, &Record { reference: image.as_str().to_owned(), ..record.clone() })?;
        }
        Ok(())
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
        match spawn_blocking(move || work(&store)).await {
            Ok(done) => done,
            Err(error) => Err(StoreError::Stream(error.into())),
        }
    }
}
