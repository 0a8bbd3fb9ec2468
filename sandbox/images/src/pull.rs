//! Pulls images: manifest, configuration, then all layers at once. A layer's digest is verified
//! while it arrives, and only verified content is unpacked.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use oci_spec::image::{Descriptor, ImageManifest};
use porch_fn_image::{Image, is_digest};
use porch_fn_registry::{Client, Hasher, RegistryError, has_digest};
use rustix::fs::{Mode, OFlags, mkdir, open};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::content::Hashed;
use crate::error::OnDisk as _;
use crate::record::Record;
use crate::store::{Store, publish};
use crate::unpack::{Contents, decompressed, unpack};
use crate::{RunConfig, StoreError, config};

/// Layers that are fetched and unpacked at the same time.
const AT_ONCE: usize = 4;
/// Attempts at one layer. Each goes on where the last one stopped.
const MAX_ATTEMPTS: u32 = 6;
/// Pause before the second attempt. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Largest configuration of an image, in bytes.
const MAX_CONFIG: u64 = 8 << 20;

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
    /// Pulls the image, even if it is here: its tag may have moved. Content that is here is not
    /// fetched again. Then removes other images, if all take more than `--image-max-size`.
    ///
    /// # Errors
    /// [`StoreError`]. What is complete stays for the next attempt.
    pub async fn pull(
        &self,
        client: &Client,
        image: &Image,
        progress: &dyn Progress,
    ) -> Result<(), StoreError> {
        let pulled = self.pull_all(client, image, progress).await;
        let collected = self.blocking(Self::collect).await;
        pulled.and(collected)
    }

    async fn pull_all(
        &self,
        client: &Client,
        image: &Image,
        progress: &dyn Progress,
    ) -> Result<(), StoreError> {
        let _lock = self.blocking(Self::lock).await?;
        let fetched = client.manifest(image).await?;
        let manifest = parse_manifest(&fetched.bytes)?;
        self.keep_blob(&fetched.digest, &fetched.bytes)?;
        let config = self.fetch_config(client, image, manifest.config()).await?;
        let (run, blobs, layers) = parse_layers(&manifest, &config)?;
        let mut missing = Vec::new();
        for (descriptor, layer) in manifest.layers().iter().zip(&layers) {
            if self.contents(layer)?.is_none() || !self.blob_path(descriptor.digest().as_ref()).exists() {
                missing.push((descriptor, layer));
            }
        }
        let bytes: u64 = missing.iter().map(|(descriptor, _)| descriptor.size()).sum();
        if bytes > self.options().max_bytes {
            return Err(StoreError::TooLarge { needs: bytes >> 20, limit: self.options().max_bytes >> 20 });
        }
        progress.start(missing.len(), bytes);
        // Collected first, because the compiler cannot prove that a stream of closures is `Send`.
        let fetches: Vec<_> = missing
            .into_iter()
            .map(|(descriptor, layer)| self.fetch_layer(client, image, descriptor, layer, progress))
            .collect();
        stream::iter(fetches).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        let record = Record {
            reference: image.as_str().to_owned(),
            resolved: fetched.resolved.to_string(),
            manifest: fetched.digest.to_string(),
            config: manifest.config().digest().to_string(),
            blobs,
            layers,
            run,
            pulled: SystemTime::now(),
        };
        let path = self.record_path(image);
        self.blocking(move |store| store.save(&path, &record)).await
    }

    async fn fetch_config(
        &self,
        client: &Client,
        image: &Image,
        descriptor: &Descriptor,
    ) -> Result<Vec<u8>, StoreError> {
        const WHAT: &str = "image configuration";
        let digest = descriptor.digest().to_string();
        if descriptor.size() > MAX_CONFIG {
            return Err(StoreError::document(WHAT, format!("it is larger than {} MiB", MAX_CONFIG >> 20)));
        }
        if let Some(bytes) = is_digest(&digest).then(|| self.blob(&digest)).transpose()?.flatten() {
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        let mut blob = client.blob(image, &digest, 0).await?;
        while let Some(chunk) = blob.chunk().await? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > MAX_CONFIG {
                return Err(StoreError::Digest { what: WHAT });
            }
        }
        if !has_digest(&bytes, &digest) {
            return Err(StoreError::Digest { what: WHAT });
        }
        self.keep_blob(&digest, &bytes)?;
        Ok(bytes)
    }

    /// Fetches a layer into the store, and unpacks it.
    async fn fetch_layer(
        &self,
        client: &Client,
        image: &Image,
        descriptor: &Descriptor,
        layer: &str,
        progress: &dyn Progress,
    ) -> Result<(), StoreError> {
        let digest = descriptor.digest().to_string();
        if !self.blob_path(&digest).exists() {
            let workspace = self.workspace()?;
            let path = workspace.path().join("blob");
            self.download(client, image, descriptor, &path, progress).await?;
            let to = self.blob_path(&digest);
            std::fs::rename(&path, &to).on_disk("cannot write", to)?;
        }
        let layer = layer.to_owned();
        self.blocking(move |store| store.unpack_layer(&digest, &layer)).await?;
        progress.unpacked();
        Ok(())
    }

    /// Writes a layer to a file. If the connection is lost, goes on from there.
    async fn download(
        &self,
        client: &Client,
        image: &Image,
        descriptor: &Descriptor,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<(), StoreError> {
        let digest = descriptor.digest().to_string();
        let malformed = || StoreError::document("manifest", "a layer's digest is of an unknown algorithm");
        let mut hasher = Hasher::of(&digest).ok_or_else(malformed)?;
        let mut file = File::create_new(path).on_disk("cannot write", path)?;
        let (mut received, mut attempt) = (0, 1);
        loop {
            let lost = match client.blob(image, &digest, received).await {
                Ok(mut blob) => {
                    let mut skip = received - blob.from.min(received);
                    loop {
                        match blob.chunk().await {
                            Ok(Some(chunk)) => {
                                let seen = skip.min(chunk.len() as u64);
                                skip -= seen;
                                let new = &chunk[seen as usize..];
                                received += new.len() as u64;
                                if received > descriptor.size() {
                                    return Err(StoreError::Digest { what: "layer" });
                                }
                                hasher.update(new);
                                // A few KiB, into the page cache.
                                file.write_all(new).on_disk("cannot write", path)?;
                                progress.add(new.len() as u64);
                            }
                            Ok(None) if received == descriptor.size() => {
                                let is_equal = hasher.digest() == digest;
                                return if is_equal {
                                    Ok(())
                                } else {
                                    Err(StoreError::Digest { what: "layer" })
                                };
                            }
                            Ok(None) => break RegistryError::Unreachable,
                            Err(error) => break error,
                        }
                    }
                }
                Err(error) => error,
            };
            let may_retry = matches!(lost, RegistryError::Unreachable | RegistryError::Busy { .. });
            if !may_retry || attempt == MAX_ATTEMPTS {
                return Err(lost.into());
            }
            tracing::info!(attempt, received, "a layer was interrupted; it goes on from there");
            sleep(FIRST_PAUSE * (1 << (attempt - 1))).await;
            attempt += 1;
        }
    }

    /// Unpacks a layer that is here.
    pub(crate) fn unpack_layer(&self, blob: &str, layer: &str) -> Result<(), StoreError> {
        if self.contents(layer)?.is_some() {
            return Ok(());
        }
        let path = self.blob_path(blob);
        let workspace = self.workspace()?;
        let contents = {
            let file = File::open(&path).on_disk("cannot read", &path)?;
            let fs = workspace.path().join("fs");
            // Overlayfs shows the mode and owner of the highest layer's folder as those of `/`.
            mkdir(&fs, Mode::from(0o755)).on_disk("cannot write", &fs)?;
            let folder = open(&fs, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .on_disk("cannot read", &fs)?;
            let owner = self.options().owner;
            if let Some(owner) = owner {
                rustix::fs::fchown(&folder, Some(owner.uid()), Some(owner.gid()))
                    .on_disk("cannot write", &fs)?;
            }
            let tar = decompressed(file).on_disk("cannot read", &path)?;
            let hasher = Hasher::of(layer).ok_or_else(|| {
                StoreError::document("image configuration", "a layer's digest is malformed")
            })?;
            let mut tar = Hashed::new(tar, hasher);
            let contents = unpack(&mut tar, std::os::fd::AsFd::as_fd(&folder), owner, self.limits())?;
            if tar.digest() != layer {
                return Err(StoreError::Digest { what: "layer" });
            }
            contents
        };
        save_contents(workspace.path(), &contents)?;
        publish(workspace.path(), &self.layer_path(layer))
    }

    pub(crate) fn keep_blob(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.blob_path(digest);
        if path.exists() { Ok(()) } else { self.write(&path, bytes) }
    }

    pub(crate) fn save(&self, path: &Path, record: &Record) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(record).map_err(|error| StoreError::document("record", error))?;
        self.write(path, &bytes)
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

fn save_contents(layer: &Path, contents: &Contents) -> Result<(), StoreError> {
    let path = layer.join("contents.json");
    let bytes = serde_json::to_vec(contents).map_err(|error| StoreError::document("layer", error))?;
    std::fs::write(&path, bytes).on_disk("cannot write", path)
}

pub(crate) fn parse_manifest(bytes: &[u8]) -> Result<ImageManifest, StoreError> {
    ImageManifest::from_reader(bytes).map_err(|error| StoreError::document("manifest", error))
}

/// How the image wants to be run, the digests of its compressed layers, and those of their tar
/// streams, lowest first.
pub(crate) fn parse_layers(
    manifest: &ImageManifest,
    config: &[u8],
) -> Result<(RunConfig, Vec<String>, Vec<String>), StoreError> {
    let (run, layers) = config::parse(config)?;
    let blobs: Vec<_> = manifest.layers().iter().map(|layer| layer.digest().to_string()).collect();
    check_layers(&blobs, &layers)?;
    Ok((run, blobs, layers))
}

/// Fails if the digests cannot be names of files, or if manifest and configuration disagree.
fn check_layers(blobs: &[String], layers: &[String]) -> Result<(), StoreError> {
    /// As many as overlayfs stacks at most is 500; Docker refuses more than 127.
    const MAX_LAYERS: usize = 200;
    let problem = |reason| Err(StoreError::document("manifest", reason));
    if blobs.len() != layers.len() {
        return problem("it has another number of layers than the image configuration");
    }
    if blobs.len() > MAX_LAYERS {
        return problem("it has more than 200 layers");
    }
    if blobs.iter().chain(layers).all(|digest| is_digest(digest)) {
        Ok(())
    } else {
        problem("a layer's digest is of an unknown algorithm")
    }
}
