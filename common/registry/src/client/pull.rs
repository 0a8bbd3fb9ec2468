//! What a copy of an image needs from its registry: the manifest for one platform, and blobs.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use porch_fn_image::Image;
use tokio::time::{Instant, sleep, timeout};

use super::session::Query;
use super::{Client, get};
use crate::RegistryError;
use crate::digest;
use crate::failure::why;

const BLOB: &str = "layer";
/// Longest pause within a blob.
const IDLE: Duration = Duration::from_secs(30);
/// Pauses in milliseconds before the further attempts at a blob. Each goes on where the last one
/// stopped.
const PAUSES: [u64; 5] = [250, 500, 1000, 2000, 4000];
/// A registry must send this much in this time.
const MIN_BYTES: u64 = 32 << 10;
const WINDOW: Duration = Duration::from_secs(30);

/// The manifest of an image for one platform.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// What the reference resolves to now: the index's digest, or `digest` if there is no index.
    pub resolved: Arc<str>,
    /// The digest of `bytes`.
    pub digest: Arc<str>,
    /// The manifest as the registry sent it.
    pub bytes: Vec<u8>,
}

// === impl Client ===

impl Client {
    /// Fetches the image's manifest for `--platform`.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn manifest(&self, image: &Image) -> Result<Manifest, RegistryError> {
        let found = self.by_mirror("manifest", image, |mut session| async move { session.manifest().await });
        Ok(found.await?.0)
    }

    /// Fetches a blob of the image's repository. Calls `write` with each part and its position. If
    /// the connection is lost, goes on from there, or from the beginning. The digest is not
    /// verified, and of a blob that is larger than `size` bytes not all is fetched.
    ///
    /// # Errors
    /// [`RegistryError`], and those of `write`.
    pub async fn fetch<E: From<RegistryError>>(
        &self,
        image: &Image,
        digest: &str,
        size: u64,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = format!("blobs/{}", digest::known(digest, BLOB)?);
        let mut received = 0;
        let mut pauses = PAUSES.into_iter();
        loop {
            let attempt = self.receive(image, &path, size, &mut received, &mut write).await;
            // A registry that is busy was asked several times.
            match (attempt, pauses.next()) {
                (Err(RegistryError::Unreachable), Some(pause)) => {
                    tracing::info!(pause, "a blob was interrupted; it goes on from there");
                    sleep(Duration::from_millis(pause)).await;
                }
                (done, _) => return done?,
            }
        }
    }

    /// One attempt at a blob, of which so many bytes are here.
    async fn receive<E>(
        &self,
        image: &Image,
        path: &str,
        size: u64,
        received: &mut u64,
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, RegistryError> {
        let from = *received;
        let response = self.by_mirror("blob", image, move |mut session| async move {
            session.send(Query { from, ..get(path, "*/*", BLOB) }).await
        });
        let mut response = response.await?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            *received = 0;
        }
        let (mut since, mut bytes) = (Instant::now(), 0);
        while *received <= size {
            let chunk = timeout(IDLE, response.chunk()).await.map_err(|_| RegistryError::Unreachable)?;
            let Some(chunk) = chunk.map_err(why)? else { break };
            if since.elapsed() >= WINDOW {
                if bytes < MIN_BYTES {
                    return Err(RegistryError::Slow("less than 32 KiB in 30 s"));
                }
                (since, bytes) = (Instant::now(), 0);
            }
            if let Err(error) = write(*received, &chunk) {
                return Ok(Err(error));
            }
            bytes += chunk.len() as u64;
            *received += chunk.len() as u64;
        }
        if *received < size { Err(RegistryError::Unreachable) } else { Ok(Ok(())) }
    }
}
