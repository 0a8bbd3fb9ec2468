//! What OCI registries report about function images: digest, command, tags.
//!
//! [`Images`] remembers it, and bounds the lookups. It is asked when a pod is to be made or a tag
//! constraint to be resolved; a warm call waits for no registry. [`Registry`] is the seam below it;
//! [`Client`] is the real one.

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
mod secret;
mod tags;
mod transport;

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use porch_fn_image::Image;

pub use client::{Client, Options};
pub use credentials::{CredentialFile, CredentialSource, CredentialsFileContent};
pub use error::RegistryError;
pub use images::{Images, Known, ResolveError};
pub use platform::Platform;
pub use roots::{CaFile, Roots, roots};

/// What a registry reports about one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// What the reference stands for now, `sha256:…`. For a multi-platform image, the index's
    /// digest.
    pub digest: Arc<str>,
    /// What the image runs: ENTRYPOINT and CMD, joined. Not empty.
    pub command: Vec<String>,
}

/// Whether a docker config file can be read and has a credential for `image`. For fuzzing.
#[doc(hidden)]
pub fn fuzz_docker_config(file: &[u8], image: &Image) -> Result<bool, String> {
    let config = docker_config::DockerConfig::parse(file)?;
    Ok(config.lookup(image).is_some())
}

/// Asks registries. Remembers connections and challenges only, and bounds the time of each lookup.
pub trait Registry: fmt::Debug + Send + Sync + 'static {
    /// Everything about the image.
    fn metadata<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>>;

    /// Only what its tag stands for now: one cheap request.
    fn digest<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>>;

    /// All tags of its repository, bounded; its own tag does not matter.
    fn tags<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>>;
}

/// A cache of this many entries, which forgets the least recently used.
fn lru<K: Eq + Hash + Send + Sync + 'static, V: Clone + Send + Sync + 'static>(entries: u64) -> Cache<K, V> {
    Cache::builder().max_capacity(entries).eviction_policy(EvictionPolicy::lru()).build()
}
