//! Downloads one blob into the store.

use std::fs::File;
use std::time::Duration;

use porch_fn_image::Image;
use porch_fn_registry::{Client, Hasher, RegistryError};
use tokio::time::{Instant, sleep};

use super::Progress;
use crate::StoreError;
use crate::content::Incoming;
use crate::document::Layer;
use crate::run_folder::RunFolder;
use crate::store::Store;

/// Attempts at one blob. Each goes on where the last one stopped.
const MAX_ATTEMPTS: u32 = 6;
/// Pause before the second attempt. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A registry must send this much in this time.
const MIN_BYTES: u64 = 32 << 10;
const WINDOW: Duration = Duration::from_secs(30);

/// Where blobs come from and go to, and who watches.
pub(super) struct Download<'a> {
    pub(super) store: &'a Store,
    pub(super) client: &'a Client,
    pub(super) image: &'a Image,
    pub(super) progress: &'a dyn Progress,
    pub(super) folder: &'a RunFolder,
}

/// A blob to download.
pub(super) struct Wanted<'a> {
    pub(super) digest: &'a str,
    pub(super) size: u64,
    /// `layer`, `configuration`.
    pub(super) what: &'static str,
}

/// The bytes since a moment.
struct Rate(Instant, u64);

// === impl Download ===

impl Download<'_> {
    /// Fetches a layer, unless it is here. Returns a lease.
    pub(super) async fn layer(&self, layer: &Layer, blob: Option<File>) -> Result<File, StoreError> {
        match blob {
            Some(blob) => Ok(blob),
            None => self.fetch(Wanted { digest: &layer.digest, size: layer.size, what: "layer" }).await,
        }
    }

    /// Fetches a blob. If the connection is lost, goes on from there. Returns a lease.
    pub(super) async fn fetch(&self, wanted: Wanted<'_>) -> Result<File, StoreError> {
        let hasher = Hasher::of(wanted.digest).ok_or(StoreError::Digest { what: wanted.what })?;
        let mut incoming = Incoming::create(self.folder, hasher)?;
        let mut rate = Rate(Instant::now(), 0);
        let mut attempt = 1;
        loop {
            let lost = match self.receive(&wanted, &mut incoming, &mut rate).await {
                Ok(()) => {
                    let content = incoming.finish(Some((wanted.digest, wanted.what)))?;
                    return self.store.blocking(move |store| store.admit(&content)).await;
                }
                Err(StoreError::Registry(error)) => error,
                Err(error) => return Err(error),
            };
            let may_retry = matches!(lost, RegistryError::Unreachable | RegistryError::Busy { .. });
            if !may_retry || attempt == MAX_ATTEMPTS {
                return Err(lost.into());
            }
            tracing::info!(
                attempt,
                received = incoming.size(),
                "a blob was interrupted; it goes on from there"
            );
            sleep(FIRST_PAUSE * (1 << (attempt - 1))).await;
            attempt += 1;
        }
    }

    async fn receive(
        &self,
        wanted: &Wanted<'_>,
        incoming: &mut Incoming,
        rate: &mut Rate,
    ) -> Result<(), StoreError> {
        let mut blob = self.client.blob(self.image, wanted.digest, incoming.size()).await?;
        let mut skip = incoming.size().saturating_sub(blob.from);
        while let Some(chunk) = blob.chunk().await? {
            rate.check(chunk.len() as u64)?;
            let seen = skip.min(chunk.len() as u64);
            skip -= seen;
            // A few KiB, into the page cache.
            let new = &chunk[seen as usize..];
            incoming.write(new)?;
            if incoming.size() > wanted.size {
                return Err(StoreError::Digest { what: wanted.what });
            }
            if wanted.what == "layer" {
                self.progress.add(new.len() as u64);
            }
        }
        if incoming.size() == wanted.size { Ok(()) } else { Err(RegistryError::Unreachable.into()) }
    }
}

// === impl Rate ===

impl Rate {
    fn check(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.1 += bytes;
        if self.0.elapsed() < WINDOW {
            return Ok(());
        }
        let is_slow = self.1 < MIN_BYTES;
        *self = Self(Instant::now(), 0);
        if is_slow { Err(StoreError::Slow("less than 32 KiB in 30 s")) } else { Ok(()) }
    }
}
