//! Downloads one blob, and hashes it while it arrives.

use std::path::PathBuf;
use std::time::Duration;

use porch_fn_image::Image;
use porch_fn_registry::{Client, Hasher, RegistryError};
use tokio::time::{Instant, sleep};

use super::Progress;
use crate::StoreError;
use crate::content::{Content, Incoming};

/// Attempts at one blob. Each goes on where the last one stopped.
const MAX_ATTEMPTS: u32 = 6;
/// Pause before the second attempt. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A registry must send this much in this time.
const MIN_BYTES: u64 = 32 << 10;
const WINDOW: Duration = Duration::from_secs(30);

/// Where blobs come from, and who watches.
pub(super) struct Download<'a> {
    pub(super) client: &'a Client,
    pub(super) image: &'a Image,
    pub(super) progress: &'a dyn Progress,
}

/// A blob to download.
pub(super) struct Wanted<'a> {
    pub(super) digest: &'a str,
    pub(super) size: u64,
    /// `layer`, `configuration`.
    pub(super) what: &'static str,
    /// Whether people are told how much of it has arrived.
    pub(super) is_counted: bool,
}

/// The bytes since a moment.
struct Rate {
    since: Instant,
    bytes: u64,
}

// === impl Download ===

impl Download<'_> {
    /// Writes a blob to a new file. If the connection is lost, goes on from there.
    pub(super) async fn fetch(&self, wanted: &Wanted<'_>, path: PathBuf) -> Result<Content, StoreError> {
        let changed = || StoreError::Digest { what: wanted.what };
        let mut incoming = Incoming::create(path, Hasher::of(wanted.digest).ok_or_else(changed)?)?;
        let mut attempt = 1;
        let mut rate = Rate { since: Instant::now(), bytes: 0 };
        loop {
            let lost = match self.receive(wanted, &mut incoming, &mut rate).await {
                Ok(()) => {
                    let content = incoming.finish();
                    return if content.digest == wanted.digest { Ok(content) } else { Err(changed()) };
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
            if incoming.size() + new.len() as u64 > wanted.size {
                return Err(StoreError::Digest { what: wanted.what });
            }
            incoming.write(new)?;
            if wanted.is_counted {
                self.progress.add(new.len() as u64);
            }
        }
        if incoming.size() == wanted.size { Ok(()) } else { Err(RegistryError::Unreachable.into()) }
    }
}

// === impl Rate ===

impl Rate {
    fn check(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.bytes += bytes;
        if self.since.elapsed() < WINDOW {
            return Ok(());
        }
        if self.bytes < MIN_BYTES {
            return Err(StoreError::Slow("less than 32 KiB in 30 s"));
        }
        *self = Self { since: Instant::now(), bytes: 0 };
        Ok(())
    }
}
