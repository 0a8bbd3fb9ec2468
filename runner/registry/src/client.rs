//! The real [`Registry`]: HTTP requests by the distribution specification, all of them bounded.
//! ARCHITECTURE.md has why oci-client is not used.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, LINK};
use http::{HeaderMap, Method};
use porch_fn_image::Image;
use tokio::time::timeout;
use tracing::Instrument as _;

use crate::credentials::CredentialFile;
use crate::digest;
use crate::manifest::{ACCEPT, Document, choose, command, parse};
use crate::platform::Platform;
use crate::roots::Roots;
use crate::session::{Access, Session, texts};
use crate::tags::{MAX_PAGES, MAX_TAGS, TAG_LIST, next_page, parse_page, too_long};
use crate::transport::{Insecure, Transport, read_body};
use crate::{Metadata, Registry, RegistryError};

/// How long a lookup takes at most.
pub const LOOKUP_WITHIN: Duration = Duration::from_secs(20);

// The most that is read of one body, in bytes. Registries send a few KiB.
const MAX_MANIFEST: usize = 1 << 20;
const MAX_CONFIG: usize = 2 << 20;
const MAX_TAG_PAGE: usize = 2 << 20;

const MANIFEST: &str = "manifest";
const CONFIG: &str = "image configuration";

/// How registries are asked.
#[derive(Debug, Clone)]
pub struct Options {
    /// `--platform`: the entry of an index that counts.
    pub platform: Platform,
    /// `--insecure-registries`: those that speak plain HTTP, each `host` or `host:port`.
    pub insecure: Vec<String>,
    /// What to show to registries.
    pub credentials: CredentialFile,
    /// The certificates that are trusted.
    pub roots: Roots,
    /// Our name in requests.
    pub user_agent: String,
    /// The bound of a whole lookup: [`LOOKUP_WITHIN`].
    pub within: Duration,
}

/// Asks registries over HTTPS, through the proxies of the environment.
#[derive(Debug)]
pub struct Client {
    platform: Platform,
    within: Duration,
    access: Access,
}

// === impl Client ===

impl Client {
    /// Nothing is asked or read yet.
    pub fn new(options: Options) -> Self {
        let insecure = Insecure::new(&options.insecure);
        let transport = Transport::new(options.roots, insecure, options.user_agent);
        let access = Access::new(transport, options.credentials);
        Self { platform: options.platform, within: options.within, access }
    }

    async fn within<T>(
        &self,
        image: &Image,
        lookup: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        let (registry, repository) = (image.registry(), image.repository());
        let lookup = async {
            timeout(self.within, lookup).await.unwrap_or_else(|_| {
                tracing::warn!(within = ?self.within, "a registry did not answer in time");
                Err(RegistryError::Unreachable)
            })
        };
        lookup.instrument(tracing::info_span!("lookup", registry, repository)).await
    }

    async fn fetch_metadata(&self, image: &Image) -> Result<Metadata, RegistryError> {
        let mut session = Session::new(&self.access, image).await?;
        let (mut document, digest) = fetch_manifest(&mut session, reference(image)).await?;
        // An index may name another one, and that one none.
        let mut indexes = 0;
        let config = loop {
            match document {
                Document::Manifest { config } => break config,
                Document::Index(_) if indexes == 2 => {
                    let reason = "it has indexes within indexes within indexes";
                    return Err(RegistryError::malformed(MANIFEST, reason));
                }
                Document::Index(entries) => {
                    indexes += 1;
                    let entry = choose(&entries, &self.platform)?;
                    let digest = digest::known(&entry.digest, MANIFEST)?;
                    document = fetch_manifest(&mut session, digest).await?.0;
                }
            }
        };
        let url = session.url(&format!("blobs/{}", digest::known(&config.digest, CONFIG)?))?;
        let response = session.send(&Method::GET, &url, "*/*", CONFIG).await?;
        let body = read_body(response, CONFIG, MAX_CONFIG).await?;
        digest::check(&body, &config.digest, CONFIG)?;
        Ok(Metadata { digest, command: command(&body)? })
    }

    async fn fetch_digest(&self, image: &Image) -> Result<Arc<str>, RegistryError> {
        if let Some(digest) = image.digest() {
            return Ok(digest.into());
        }
        let mut session = Session::new(&self.access, image).await?;
        let url = session.url(&format!("manifests/{}", reference(image)))?;
        match session.send(&Method::HEAD, &url, ACCEPT, MANIFEST).await {
            Ok(response) => {
                if let Some(digest) = announced_digest(response.headers())? {
                    return Ok(digest.into());
                }
            }
            // The registry may not know HEAD. A GET tells.
            Err(RegistryError::Malformed { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(fetch_manifest(&mut session, reference(image)).await?.1)
    }

    async fn fetch_tags(&self, image: &Image) -> Result<Vec<String>, RegistryError> {
        let mut session = Session::new(&self.access, image).await?;
        let mut url = session.url("tags/list?n=1000")?;
        let mut tags = Vec::new();
        for _ in 0..MAX_PAGES {
            let response = session.send(&Method::GET, &url, "application/json", TAG_LIST).await?;
            let next = next_page(&url, texts(response.headers(), &LINK))?;
            tags.extend(parse_page(&read_body(response, TAG_LIST, MAX_TAG_PAGE).await?)?);
            if tags.len() > MAX_TAGS {
                return Err(too_long(MAX_TAGS, "tags"));
            }
            match next {
                Some(next) => url = next,
                None => return Ok(tags),
            }
        }
        Err(too_long(MAX_PAGES, "pages"))
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

/// A manifest or index, and its digest.
async fn fetch_manifest(
    session: &mut Session<'_>,
    reference: &str,
) -> Result<(Document, Arc<str>), RegistryError> {
    let url = session.url(&format!("manifests/{reference}"))?;
    let response = session.send(&Method::GET, &url, ACCEPT, MANIFEST).await?;
    let announced = announced_digest(response.headers())?.map(str::to_owned);
    let content_type = texts(response.headers(), &CONTENT_TYPE).next().map(str::to_owned);
    let body = read_body(response, MANIFEST, MAX_MANIFEST).await?;
    if let Some(announced) = &announced {
        digest::check(&body, announced, MANIFEST)?;
    }
    let digest = if reference.contains(':') {
        digest::check(&body, reference, MANIFEST)?;
        reference.to_owned()
    } else {
        announced.unwrap_or_else(|| digest::sha256(&body))
    };
    Ok((parse(&body, content_type.as_deref())?, digest.into()))
}

/// What to ask for: a digest counts before a tag beside it.
fn reference(image: &Image) -> &str {
    image.digest().or(image.tag()).unwrap_or("latest")
}

fn announced_digest(headers: &HeaderMap) -> Result<Option<&str>, RegistryError> {
    let announced = headers.get("docker-content-digest");
    announced.map(|value| digest::known(value.to_str().unwrap_or_default(), MANIFEST)).transpose()
}
