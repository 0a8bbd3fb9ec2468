//! The real [`Registry`]: HTTP requests according to the OCI distribution specification, with
//! limits on time and size. ARCHITECTURE.md explains why oci-client is not used.

mod mirrors;
mod pull;
mod session;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::LINK;
use http::{HeaderMap, Method};
use moka::sync::Cache;
use porch_fn_image::Image;
use tokio::time::{Instant, timeout};
use tracing::Instrument as _;

pub use self::mirrors::{Mirror, plain_registries};
pub use self::pull::Manifest;
use self::session::{Query, Session, texts};
use crate::auth::Challenge;
use crate::credentials::Credentials;
use crate::digest;
use crate::error::{CONFIG, MANIFEST, json};
use crate::lru;
use crate::manifest::{ACCEPT, Document, Found, choose, command, parse};
use crate::platform::Platform;
use crate::roots::Roots;
use crate::tags::{MAX_PAGES, MAX_TAGS, Page, TAG_LIST, next_page};
use crate::transport::read_body;
use crate::{Metadata, Registry, RegistryError};

/// Timeout of a lookup.
const LOOKUP_WITHIN: Duration = Duration::from_secs(20);

// Largest body that is read, in bytes. Registries usually send a few KiB.
const MAX_MANIFEST: usize = 1 << 20;
const MAX_CONFIG: usize = 2 << 20;
const MAX_TAG_PAGE: usize = 2 << 20;

/// Largest number of registries whose challenge is cached.
const MAX_CHALLENGES: u64 = 256;

/// Receives what each lookup asked for, whether the registry answered, and how long it took.
pub type Report = Arc<dyn Fn(&'static str, bool, Duration) + Send + Sync>;

/// Settings of the client.
#[derive(Clone)]
pub struct Options {
    /// `--platform`: selects the entry of a multi-platform index.
    pub platform: Platform,
    /// The credentials for registries.
    pub credentials: Credentials,
    /// The certificates that are trusted, and the registries that speak plain HTTP.
    pub roots: Roots,
    /// The registries to ask first.
    pub mirrors: Vec<Mirror>,
    /// Called after each lookup.
    pub report: Report,
}

/// Sends requests to registries over HTTPS, or plain HTTP for `--insecure-registries`. Uses the
/// proxies that the environment variables set.
pub struct Client {
    options: Options,
    /// The last challenge of each registry.
    challenges: Cache<String, Challenge>,
}

// === impl Client ===

impl Client {
    /// Creates a client. It reads no file and sends no request yet.
    pub fn new(options: Options) -> Self {
        Self { options, challenges: lru(MAX_CHALLENGES) }
    }

    /// Limits the time of a lookup, and reports it.
    async fn run<'a, T, F: Future<Output = Result<T, RegistryError>>>(
        &'a self,
        what: &'static str,
        image: &Image,
        lookup: impl Fn(Session<'a>) -> F,
    ) -> Result<T, RegistryError> {
        let (registry, repository, began) = (image.registry(), image.repository(), Instant::now());
        let lookup = async { lookup(Session::new(self, image).await?).await };
        let lookup = async {
            timeout(LOOKUP_WITHIN, lookup).await.unwrap_or_else(|_| {
                tracing::warn!(timeout = ?LOOKUP_WITHIN, "a registry did not answer in time");
                Err(RegistryError::Unreachable)
            })
        };
        let answer = lookup.instrument(tracing::info_span!("lookup", registry, repository)).await;
        let has_answered = answer.as_ref().err().is_none_or(RegistryError::is_answer);
        (self.options.report)(what, has_answered, began.elapsed());
        answer
    }

    /// Asks the image's mirror first, if it has one, and then its registry.
    async fn by_mirror<'a, T, F: Future<Output = Result<T, RegistryError>>>(
        &'a self,
        what: &'static str,
        image: &Image,
        lookup: impl Fn(Session<'a>) -> F,
    ) -> Result<T, RegistryError> {
        if let Some(mirrored) = self.options.mirrors.iter().find_map(|mirror| mirror.image(image)) {
            let found = self.run(what, &mirrored, &lookup).await;
            let Err(error) = &found else { return found };
            let (mirror, error) = (mirrored.registry(), error.to_string());
            tracing::info!(mirror, error, "a mirror does not have an image; its registry is asked");
        }
        self.run(what, image, lookup).await
    }
}

// === impl Session ===

impl Session<'_> {
    /// Fetches the manifest for the platform, and the digest of the image configuration in it.
    async fn manifest(&mut self) -> Result<(Manifest, String), RegistryError> {
        let (mut manifest, mut document) = self.document(&self.reference()).await?;
        let resolved = Arc::clone(&manifest.digest);
        // An index may contain one nested index, but no deeper nesting is read.
        for _ in 0..2 {
            if let Document::Index(entries) = &document {
                let entry = digest::known(choose(entries, &self.client.options.platform)?, MANIFEST)?;
                (manifest, document) = self.document(entry).await?;
            }
        }
        match document {
            Document::Manifest(found) => Ok((Manifest { resolved, ..manifest }, found.config.digest)),
            Document::Index(_) => Err(RegistryError::malformed(MANIFEST, "its indexes are nested too deep")),
        }
    }

    /// Fetches a manifest or an index.
    async fn document(&mut self, reference: &str) -> Result<(Manifest, Found), RegistryError> {
        let path = format!("manifests/{reference}");
        let response = self.send(get(&path, ACCEPT, MANIFEST)).await?;
        let by_digest = Some(reference).filter(|reference| reference.contains(':'));
        let digest = by_digest.or(announced_digest(response.headers())?).map(Arc::from);
        let body = read_body(response, MANIFEST, MAX_MANIFEST).await?;
        let digest: Arc<str> = digest.unwrap_or_else(|| digest::sha256(&body).into());
        digest::check(&body, &digest, MANIFEST)?;
        let document = parse(&body)?;
        Ok((Manifest { resolved: Arc::clone(&digest), digest, bytes: body.into() }, document))
    }

    /// The reference to request. A digest takes precedence over a tag.
    fn reference(&self) -> String {
        self.image.digest().or(self.image.tag()).unwrap_or("latest").to_owned()
    }

    async fn metadata(mut self) -> Result<Metadata, RegistryError> {
        let (manifest, config) = self.manifest().await?;
        let path = format!("blobs/{}", digest::known(&config, CONFIG)?);
        let response = self.send(get(&path, "*/*", CONFIG)).await?;
        let body = read_body(response, CONFIG, MAX_CONFIG).await?;
        digest::check(&body, &config, CONFIG)?;
        Ok(Metadata { digest: manifest.resolved, command: command(&body)?, since: SystemTime::now() })
    }

    async fn digest(mut self) -> Result<Arc<str>, RegistryError> {
        if let Some(digest) = self.image.digest() {
            return Ok(digest.into());
        }
        let path = format!("manifests/{}", self.reference());
        match self.send(Query { method: &Method::HEAD, ..get(&path, ACCEPT, MANIFEST) }).await {
            Ok(response) => {
                if let Some(digest) = announced_digest(response.headers())? {
                    return Ok(digest.into());
                }
            }
            // Some registries do not support HEAD.
            Err(RegistryError::Malformed { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(self.document(&self.reference()).await?.0.digest)
    }

    async fn tags(mut self) -> Result<Vec<String>, RegistryError> {
        let mut page = "tags/list?n=1000".to_owned();
        let mut tags = Vec::new();
        for _ in 0..MAX_PAGES {
            let response = self.send(get(&page, "application/json", TAG_LIST)).await?;
            let next = next_page(&self.url(&page)?, texts(response.headers(), &LINK))?;
            let found: Page = json(&read_body(response, TAG_LIST, MAX_TAG_PAGE).await?, TAG_LIST)?;
            tags.extend(found.tags.into_iter().flatten());
            if tags.len() > MAX_TAGS {
                return Err(RegistryError::too_large(TAG_LIST, MAX_TAGS, "tags"));
            }
            match next {
                Some(next) => page = next.into(),
                None => return Ok(tags),
            }
        }
        Err(RegistryError::too_large(TAG_LIST, MAX_PAGES, "pages"))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("challenges", &self.challenges).finish_non_exhaustive()
    }
}

impl Registry for Client {
    fn metadata<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>> {
        self.by_mirror("metadata", image, Session::metadata).boxed()
    }

    fn digest<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        self.by_mirror("digest", image, Session::digest).boxed()
    }

    fn tags<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        self.by_mirror("tags", image, Session::tags).boxed()
    }
}

fn get<'a>(path: &'a str, accept: &'static str, what: &'static str) -> Query<'a> {
    Query { method: &Method::GET, path, accept, what, from: 0 }
}

fn announced_digest(headers: &HeaderMap) -> Result<Option<&str>, RegistryError> {
    let announced = headers.get("docker-content-digest");
    announced.map(|value| digest::known(value.to_str().unwrap_or_default(), MANIFEST)).transpose()
}
