//! What OCI registries report about function images: digest, command, tags, and their content.
//!
//! [`Images`] caches the answers and limits the lookups. The runner uses it to create a pod or to
//! resolve a tag constraint. If a pod is ready, a call waits for a registry only when no cached tag
//! matches the call's constraint. [`Registry`] is the interface that [`Images`] uses, and
//! [`Client`] implements it. The image store of sandboxes pulls with the same client.

mod address_class;
mod auth;
mod client;
mod credentials;
mod digest;
mod docker_config;
mod error;
mod failure;
mod file;
mod images;
mod manifest;
mod platform;
mod roots;
mod tags;
mod transport;
mod user_credentials;
mod verifier;

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use porch_fn_image::Image;

pub use client::{Client, Manifest, Mirror, Options, Report, plain_registries};
pub use credentials::{CredentialFile, CredentialSource, Credentials, CredentialsFileContent};
pub use digest::{Hashed, has_digest, sha256};
pub use error::{RegistryError, read_json};
pub use images::Images;
pub use images::limiter::{Limiter, Permit};
pub use manifest::{Descriptor, Document, ImageManifest, Layer, MAX_DOCUMENT, RunConfig, choose};
pub use platform::Platform;
pub use roots::{CaFile, Roots, roots};
pub use user_credentials::UserCredentials;

/// What a registry reports about one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// The digest that the reference resolves to now, `sha256:…`. For a multi-platform image, the
    /// index's digest.
    pub digest: Arc<str>,
    /// ENTRYPOINT followed by CMD. Not empty.
    pub command: Vec<String>,
    /// When the registry reported this. A later lookup with the same digest keeps this time.
    pub since: SystemTime,
}

/// Sends requests to registries. Limits the time of each lookup, and caches only connections and
/// challenges.
pub trait Registry: fmt::Debug + Send + Sync + 'static {
    /// Fetches all metadata of the image.
    fn metadata<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>>;

    /// Fetches only the digest of the tag, with one cheap request.
    fn digest<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>>;

    /// Fetches all tags of the image's repository, up to a limit. Ignores the image's own tag.
    fn tags<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>>;
}

/// A cache of this many entries, which forgets the least recently used.
fn lru<K: Eq + Hash + Send + Sync + 'static, V: Clone + Send + Sync + 'static>(entries: u64) -> Cache<K, V> {
    Cache::builder().max_capacity(entries).eviction_policy(EvictionPolicy::lru()).build()
}
