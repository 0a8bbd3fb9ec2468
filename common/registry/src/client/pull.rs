//! What a copy of an image needs from its registry: the manifest for one platform, and blobs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use porch_fn_image::Image;
use reqwest::Response;
use tokio::time::timeout;

use super::session::{Query, Session};
use super::{Client, get};
use crate::RegistryError;
use crate::digest;
use crate::failure::why;

const BLOB: &str = "layer";
/// Longest pause within a blob.
const IDLE: Duration = Duration::from_secs(30);

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

/// The content of a blob, or the rest of it. Its digest is not verified yet.
#[derive(Debug)]
pub struct Blob {
    response: Response,
    /// The first byte that follows.
    pub from: u64,
}

// === impl Client ===

impl Client {
    /// Fetches the image's manifest for `--platform`.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn manifest(&self, image: &Image) -> Result<Manifest, RegistryError> {
        let fetch = move |image| async move {
            let mut session = Session::new(self, &image).await?;
            Ok(self.fetch_platform(&mut session, &image).await?.0)
        };
        self.by_mirror("manifest", image, fetch).await
    }

    /// Starts to fetch a blob of the image's repository, beginning with byte `from`. A registry
    /// may begin with byte 0 instead.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn blob(&self, image: &Image, digest: &str, from: u64) -> Result<Blob, RegistryError> {
        let path = format!("blobs/{}", digest::known(digest, BLOB)?);
        let path = &path;
        self.by_mirror("blob", image, move |image| async move {
            let mut session = Session::new(self, &image).await?;
            let response = session.send(Query { from, ..get(path, "*/*", BLOB) }).await?;
            let is_rest = response.status() == StatusCode::PARTIAL_CONTENT;
            Ok(Blob { response, from: if is_rest { from } else { 0 } })
        })
        .await
    }
}

// === impl Blob ===

impl Blob {
    /// The next bytes. `None` at the end.
    ///
    /// # Errors
    /// [`RegistryError::Unreachable`], if the connection is lost or nothing arrives in time.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        match timeout(IDLE, self.response.chunk()).await {
            Ok(chunk) => chunk.map_err(why),
            Err(_) => Err(RegistryError::Unreachable),
        }
    }
}
