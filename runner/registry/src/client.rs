//! The real [`Registry`]: HTTP requests by the distribution specification, all of them bounded.
//!
//! Not oci-client: it reads manifests, tag lists and tokens whatever their size, asks `/v2/` before each request to an
//! open registry, and knows no identity tokens.
//! It also hides that authentication failed, and keeps the first credentials of a registry for ever.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, LINK};
use http::{HeaderMap, Method, StatusCode};
use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_image::Image;
use reqwest::Url;
use tokio::sync::{AcquireError, Semaphore};
use tokio::time::timeout;

use crate::credentials::CredentialFile;
use crate::digest;
use crate::manifest::{ACCEPT, Descriptor, Document, choose, command, malformed, parse};
use crate::peer::Peer;
use crate::platform::Platform;
use crate::roots::Roots;
use crate::session::{Session, Shared};
use crate::tags::{TAG_LIST, Tags};
use crate::tokens::TokenCache;
use crate::transport::{Insecure, Transport};
use crate::{Metadata, Registry, RegistryError};

/// How long a lookup takes at most, waiting for its turn included.
pub const LOOKUP_WITHIN: Duration = Duration::from_secs(20);

/// Lookups at once. Registries are input of callers, and each that hangs holds some of these.
const MAX_AT_ONCE: usize = 64;
/// Lookups at once that hold much: see [`Budget`](crate::budget::Budget).
const MAX_LARGE: usize = 8;
const MAX_REGISTRIES: NonZeroUsize = NonZeroUsize::new(256).unwrap();
const MAX_MANIFEST: usize = 4 << 20;
const MAX_CONFIG: usize = 8 << 20;
const MAX_TAG_PAGE: usize = 4 << 20;

const MANIFEST: &str = "manifest";
const CONFIG: &str = "image configuration";

/// How registries are asked.
#[derive(Debug, Clone)]
pub struct Options {
    /// `--platform`: whose part of an index counts.
    pub platform: Platform,
    /// `--insecure-registries`: those that speak plain HTTP, each `host` or `host:port`.
    pub insecure: Vec<String>,
    /// Who we are.
    pub credentials: CredentialFile,
    /// Whom we trust.
    pub roots: Roots,
    /// What we call ourselves.
    pub user_agent: String,
    /// The bound of a whole lookup: [`LOOKUP_WITHIN`].
    pub within: Duration,
}

/// Asks registries over HTTPS, through the proxies of the environment.
pub struct Client {
    platform: Platform,
    within: Duration,
    shared: Shared,
    peers: Mutex<LruCache<String, Arc<Peer>>>,
    permits: Arc<Semaphore>,
}

/// A manifest, and what it is called.
struct Fetched {
    document: Document,
    digest: Arc<str>,
}

// === impl Client ===

impl Client {
    /// Nothing is asked or read yet.
    pub fn new(options: Options) -> Self {
        let insecure = Insecure::new(&options.insecure);
        let shared = Shared {
            transport: Transport::new(options.roots, insecure.clone(), options.user_agent),
            credentials: options.credentials,
            insecure,
            tokens: Mutex::new(TokenCache::new()),
            large: Arc::new(Semaphore::new(MAX_LARGE)),
        };
        Self {
            platform: options.platform,
            within: options.within,
            shared,
            peers: Mutex::new(LruCache::new(MAX_REGISTRIES)),
            permits: Arc::new(Semaphore::new(MAX_AT_ONCE)),
        }
    }

    async fn session<'a>(&'a self, image: &'a Image) -> Result<Session<'a>, RegistryError> {
        let peer = {
            let mut peers = self.peers.lock();
            Arc::clone(peers.get_or_insert(image.registry().to_owned(), || Arc::new(Peer::new())))
        };
        // Its own limit first: who waits for a slow registry must not hold what the others need.
        // Nothing closes the semaphores.
        let closed = |_: AcquireError| RegistryError::Unreachable;
        let of_registry = Arc::clone(&peer.permits).acquire_owned().await.map_err(closed)?;
        let of_all = Arc::clone(&self.permits).acquire_owned().await.map_err(closed)?;
        Session::new(&self.shared, peer, image, [of_registry, of_all]).await
    }

    async fn within<T>(
        &self,
        image: &Image,
        lookup: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        timeout(self.within, lookup).await.unwrap_or_else(|_| {
            let (registry, repository) = (image.registry(), image.repository());
            tracing::warn!(registry, repository, within = ?self.within, "a registry did not answer in time");
            Err(RegistryError::Unreachable)
        })
    }

    async fn fetch_metadata(&self, image: &Image) -> Result<Metadata, RegistryError> {
        let mut session = self.session(image).await?;
        let top = fetch_manifest(&mut session, reference(image)).await?;
        let mut document = top.document;
        // An index may name another one, and that one none.
        let mut indexes = 0;
        let config = loop {
            match document {
                Document::Manifest { config } => break config,
                Document::Index(_) if indexes == 2 => {
                    return Err(malformed(MANIFEST, "it has indexes within indexes within indexes"));
                }
                Document::Index(entries) => {
                    indexes += 1;
                    let entry = choose(&entries, &self.platform)?;
                    refuse_large(entry, MANIFEST, MAX_MANIFEST)?;
                    let digest = digest::known(&entry.digest, MANIFEST)?;
                    document = fetch_manifest(&mut session, digest).await?.document;
                }
            }
        };
        refuse_large(&config, CONFIG, MAX_CONFIG)?;
        let url = join(&session, &format!("blobs/{}", digest::known(&config.digest, CONFIG)?))?;
        let response = session.send(&Method::GET, &url, "*/*", CONFIG).await?;
        let body = session.body(response, CONFIG, MAX_CONFIG).await?;
        digest::check(&body, &config.digest, CONFIG)?;
        Ok(Metadata { digest: top.digest, command: command(&body)? })
    }

    async fn fetch_digest(&self, image: &Image) -> Result<Arc<str>, RegistryError> {
        if let Some(digest) = image.digest() {
            return Ok(digest.into());
        }
        let mut session = self.session(image).await?;
        let url = join(&session, &format!("manifests/{}", reference(image)))?;
        let response = session.send(&Method::HEAD, &url, ACCEPT, MANIFEST).await?;
        if response.status() == StatusCode::OK
            && let Some(digest) = announced_digest(response.headers())?
        {
            return Ok(digest.into());
        }
        Ok(fetch_manifest(&mut session, reference(image)).await?.digest)
    }

    async fn fetch_tags(&self, image: &Image) -> Result<Vec<String>, RegistryError> {
        let mut session = self.session(image).await?;
        let mut tags = Tags::new(join(&session, "tags/list?n=1000")?);
        while let Some(url) = tags.next.take() {
            let response = session.send(&Method::GET, &url, "application/json", TAG_LIST).await?;
            let links: Vec<_> = texts(response.headers(), &LINK).map(str::to_owned).collect();
            let body = session.body(response, TAG_LIST, MAX_TAG_PAGE).await?;
            tags.add(&url, &body, links.iter().map(String::as_str))?;
            session.budget.hold(tags.bytes()).await?;
        }
        Ok(tags.finish())
    }
}

impl Registry for Client {
    fn metadata<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>> {
        self.within(image, self.fetch_metadata(image)).boxed()
    }

    fn digest<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        self.within(image, self.fetch_digest(image)).boxed()
    }

    fn tags<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        self.within(image, self.fetch_tags(image)).boxed()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("platform", &self.platform).finish_non_exhaustive()
    }
}

async fn fetch_manifest(session: &mut Session<'_>, reference: &str) -> Result<Fetched, RegistryError> {
    let url = join(session, &format!("manifests/{reference}"))?;
    let response = session.send(&Method::GET, &url, ACCEPT, MANIFEST).await?;
    let announced = announced_digest(response.headers())?.map(str::to_owned);
    let content_type = texts(response.headers(), &CONTENT_TYPE).next().map(str::to_owned);
    let body = session.body(response, MANIFEST, MAX_MANIFEST).await?;
    if let Some(announced) = &announced {
        digest::check(&body, announced, MANIFEST)?;
    }
    let digest = if reference.contains(':') {
        digest::check(&body, reference, MANIFEST)?;
        reference.to_owned()
    } else {
        announced.unwrap_or_else(|| digest::sha256(&body))
    };
    Ok(Fetched { document: parse(&body, content_type.as_deref())?, digest: digest.into() })
}

/// What to ask for: the digest if there is one, for a tag beside it does not count.
fn reference(image: &Image) -> &str {
    image.digest().or(image.tag()).unwrap_or("latest")
}

/// Below the image's repository. The path is of checked parts.
fn join(session: &Session<'_>, path: &str) -> Result<Url, RegistryError> {
    // Alone `sha256:…` would be read as a scheme; none of our paths begins so.
    session.base().join(path).map_err(|_| malformed("name", "it makes no URL"))
}

fn refuse_large(descriptor: &Descriptor, what: &'static str, limit: usize) -> Result<(), RegistryError> {
    if descriptor.size.is_some_and(|size| size > limit as u64) {
        return Err(RegistryError::TooLarge { what, limit });
    }
    Ok(())
}

fn announced_digest(headers: &HeaderMap) -> Result<Option<&str>, RegistryError> {
    match headers.get("docker-content-digest") {
        None => Ok(None),
        Some(value) => Ok(Some(digest::known(value.to_str().unwrap_or_default(), MANIFEST)?)),
    }
}

fn texts<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}
