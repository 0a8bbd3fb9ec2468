//! A cache of image metadata. It saves registry requests, and calls continue while a registry is
//! unavailable.
//!
//! The cache answers without a lookup until an entry is older than its time to live. Then the
//! creation of a pod waits up to two seconds for a new lookup, because starting a pod is slow
//! anyway. A call with a tag constraint gets the cached answer, and the lookup runs in the
//! background. A failed lookup keeps the cached answer. Each question has at most one lookup at a
//! time. The lookup is a task of its own, because the first caller may cancel.

mod answers;
pub(crate) mod limiter;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use porch_fn_image::{Constraint, Image, Version, sorted_versions};
use tokio::sync::broadcast;
use tokio::time::timeout;

use self::answers::{Answer, Answers, NEGATIVE_TTL, Question};
use self::limiter::{LOOKUPS, Limiter};
use crate::{Metadata, Registry, RegistryError};

/// How long the creation of a pod waits for a lookup if the image is already cached.
const PATIENCE: Duration = Duration::from_secs(2);

/// The tags of one repository that are versions, the highest first. They are sorted once, because
/// every call with a tag constraint searches them, even if a pod is ready.
#[derive(Debug)]
struct TagList(Vec<(Version, String)>);

/// Caches the answers of registries. Dropping the cache does not cancel the lookups in progress.
#[derive(Debug)]
pub struct Images {
    registry: Arc<dyn Registry>,
    ttl: Duration,
    known: Arc<Answers<Metadata>>,
    lists: Arc<Answers<TagList>>,
    limiter: Limiter,
}

// === impl Images ===

impl Images {
    /// Creates an empty cache. The digest of a tag and the tags of a repository expire after `ttl`
    /// (`--image-metadata-ttl`). `registry` limits the time of each lookup.
    pub fn new(registry: Arc<dyn Registry>, ttl: Duration) -> Self {
        Self {
            registry,
            ttl,
            known: Arc::new(Answers::new()),
            lists: Arc::new(Answers::new()),
            limiter: Limiter::new(LOOKUPS),
        }
    }

    /// Returns the metadata for a pod that is about to be created.
    ///
    /// Returns at once if the cached answer is fresh; a reference with a digest never expires.
    /// Otherwise this asks the registry. For a cached image it asks for the digest first, and for
    /// the rest only if the digest has changed. If the registry fails or is slow, this returns the
    /// cached answer.
    ///
    /// # Errors
    /// The registry's failure, if nothing is cached.
    pub async fn metadata(&self, image: &Image) -> Result<Arc<Metadata>, RegistryError> {
        let max_age = if image.digest().is_some() { Duration::MAX } else { self.ttl };
        let known = self.known.known(image);
        let fresh = self.fresh(&self.known, image, max_age);
        match known {
            None => fresh.await,
            Some(known) => Ok(timeout(PATIENCE, fresh).await.ok().and_then(Result::ok).unwrap_or(known)),
        }
    }

    /// Returns the cached metadata, however old. Never asks the registry.
    pub fn known(&self, image: &Image) -> Option<Arc<Metadata>> {
        self.known.known(image)
    }

    /// Marks the cached metadata as wrong, because a pod with it failed. The next
    /// [`metadata`](Self::metadata) asks the registry again.
    pub fn distrust(&self, image: &Image) {
        self.known.distrust(image);
    }

    /// Returns the image with the highest tag that the constraint allows. Ignores the tag and
    /// digest of `image`.
    ///
    /// Waits for the registry only if no cached tag matches. If a cached tag matches but the list
    /// has expired, this starts a lookup in the background.
    ///
    /// # Errors
    /// [`RegistryError::NoMatch`], or why the registry did not return the list of tags.
    pub async fn resolve(&self, image: &Image, constraint: &Constraint) -> Result<Image, RegistryError> {
        let known = self.lists.known(image);
        if let Some(chosen) = known.and_then(|list| list.highest(image, constraint)) {
            // If the list has expired and the limiter has a free place, this one poll starts a
            // lookup, which continues in its own task.
            let _ = self.fresh(&self.lists, image, self.ttl).now_or_never();
            return Ok(chosen);
        }
        // A list without a matching tag expires after the same time as a failure.
        let list = self.fresh(&self.lists, image, NEGATIVE_TTL).await?;
        list.highest(image, constraint).ok_or(RegistryError::NoMatch)
    }

    /// Caches metadata that another runner has found, as if the registry had just returned it. Does
    /// nothing if the cache has newer metadata.
    pub fn learn(&self, image: &Image, found: Metadata) {
        let entry = self.known.entry(image);
        // A lookup in progress will return something newer.
        let Ok(_asking) = entry.asking.try_lock() else { return };
        if entry.known().is_none_or(|known| known.since < found.since) {
            self.known.record(image, Arc::clone(&entry), &Ok(Arc::new(found)));
        }
    }

    /// Reports images that are new in the cache and images whose digest has changed. A receiver
    /// that is 1,024 images behind gets an error.
    pub fn changes(&self) -> broadcast::Receiver<Image> {
        self.known.changes.subscribe()
    }

    /// Returns an answer younger than `max_age`, from the cache or by a lookup.
    async fn fresh<V: Question>(
        &self,
        answers: &Arc<Answers<V>>,
        image: &Image,
        max_age: Duration,
    ) -> Answer<V> {
        let entry = answers.entry(image);
        let has_waited = entry.asking.try_lock().is_err();
        let asking = Arc::clone(&entry.asking).lock_owned().await;
        // An overload may be over, but callers that wait for the same lookup share its answer.
        let is_usable = |answer: &_| has_waited || !matches!(answer, Err(RegistryError::Busy(_)));
        if let Some(answer) = entry.answer(max_age).filter(is_usable) {
            return answer;
        }
        let permit = self.limiter.acquire(image.registry()).await.ok_or(RegistryError::Unreachable)?;
        let (registry, answers, image) = (Arc::clone(&self.registry), Arc::clone(answers), image.clone());
        let lookup = tokio::spawn(async move {
            let answer = V::ask(registry, &image, entry.known()).await;
            permit.finish(!matches!(answer, Err(RegistryError::Unreachable)));
            answers.record(&image, entry, &answer);
            drop(asking);
            answer
        });
        // The task returns an answer unless the lookup panicked.
        lookup.await.unwrap_or(Err(RegistryError::Unreachable))
    }
}

impl Question for Metadata {
    fn key(image: &Image) -> &str {
        image.as_str()
    }

    async fn ask(registry: Arc<dyn Registry>, image: &Image, known: Option<Arc<Self>>) -> Answer<Self> {
        if let Some(known) = &known
            && registry.digest(image).await? == known.digest
        {
            return Ok(Arc::clone(known));
        }
        let found = registry.metadata(image).await?;
        match known {
            Some(known) if known.digest == found.digest => return Ok(known),
            Some(_) => tracing::info!(%image, "the tag resolves to another image now"),
            None => {}
        }
        Ok(Arc::new(found))
    }

    fn bytes(&self) -> usize {
        let command = self.command.iter().map(|word| size_of::<String>() + word.len()).sum::<usize>();
        size_of::<Self>() + self.digest.len() + command
    }
}

// === impl TagList ===

impl TagList {
    /// The image with the highest tag that the constraint allows.
    fn highest(&self, image: &Image, constraint: &Constraint) -> Option<Image> {
        image.with_tag(constraint.first_match(&self.0)?).ok()
    }
}

impl Question for TagList {
    fn key(image: &Image) -> &str {
        image.repository()
    }

    async fn ask(registry: Arc<dyn Registry>, image: &Image, _: Option<Arc<Self>>) -> Answer<Self> {
        let mut tags = registry.tags(image).await?;
        tags.retain(|tag| image.with_tag(tag).is_ok());
        Ok(Arc::new(Self(sorted_versions(tags))))
    }

    fn bytes(&self) -> usize {
        // Counts each tag twice: the parsed version may copy the tag's prerelease or build.
        let tags: usize = self.0.iter().map(|(_, tag)| 2 * tag.len()).sum();
        tags + size_of_val(&*self.0)
    }
}
