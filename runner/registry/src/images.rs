//! What is known of images, so that registries are asked little, and calls go on while one is
//! unavailable.
//!
//! An answer is used without a lookup until it is older than the time to live. Then the registry is
//! asked again: for a pod's image while the pod's creation waits, since a pod is slow anyway; for a
//! constraint in the background, since a call waits for it. A registry that fails leaves what was
//! known. Each question is asked once at a time, in a task of its own: its first caller may go
//! away.

mod answers;
mod limiter;
mod tag_list;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use porch_fn_image::{Constraint, Image};
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::answers::{Answer, Answers, NEGATIVE_TTL, Question};
use self::limiter::LookupLimiter;
use self::tag_list::TagList;
use crate::{Metadata, Registry, RegistryError};

/// How long a pod waits for news of an image that is known already.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// What the reference stands for, `sha256:…`.
    pub digest: Arc<str>,
    /// What the image runs: ENTRYPOINT and CMD, joined. Not empty.
    pub command: Vec<String>,
    /// When this runner first saw the tag stand for this digest.
    pub since: SystemTime,
}

/// Why a constraint has no image. The texts reach callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The repository exists and has no such tag.
    #[error("no tag of its repository is a version that matches")]
    NoMatch,
    /// The tags are not known.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Remembers what registries answer. Dropped, it ends its lookups.
#[derive(Debug)]
pub struct Images {
    registry: Arc<dyn Registry>,
    ttl: Duration,
    known: Arc<Answers<Known>>,
    lists: Arc<Answers<TagList>>,
    limiter: LookupLimiter,
    tasks: Mutex<JoinSet<()>>,
}

// === impl Images ===

impl Images {
    /// Nothing is known yet. The digest of a tag, and the tags of a repository, are asked for again
    /// after `ttl`, `--image-metadata-ttl`. `registry` bounds the time of each lookup.
    pub fn new(registry: Arc<dyn Registry>, ttl: Duration) -> Self {
        Self {
            registry,
            ttl,
            known: Arc::new(Answers::new()),
            lists: Arc::new(Answers::new()),
            limiter: LookupLimiter::new(),
            tasks: Mutex::default(),
        }
    }

    /// For a pod that is to be made.
    ///
    /// Returns at once while the answer is fresh; a digest stays fresh for ever. Else the registry
    /// is asked: if the image is known, only for the digest, and for the rest if the digest moved.
    /// What is known is returned if the registry then fails or is slow.
    ///
    /// # Errors
    /// Why the registry has no answer, while nothing is known.
    pub async fn metadata(&self, image: &Image) -> Result<Arc<Known>, RegistryError> {
        let max_age = if image.digest().is_some() { Duration::MAX } else { self.ttl };
        let known = self.known.known(image);
        let fresh = self.fresh(&self.known, image, max_age);
        match known {
            None => fresh.await,
            Some(known) => Ok(timeout(PATIENCE, fresh).await.ok().and_then(Result::ok).unwrap_or(known)),
        }
    }

    /// What is known of the image, however old. Never asks the registry.
    pub fn known(&self, image: &Image) -> Option<Arc<Known>> {
        self.known.known(image)
    }

    /// A pod could not be made of what is known of the image: the next
    /// [`metadata`](Self::metadata) asks the registry again.
    pub fn distrust(&self, image: &Image) {
        self.known.distrust(image);
    }

    /// The image with the highest tag that the constraint allows; the tag and digest of `image` do
    /// not matter.
    ///
    /// Waits for the registry only while no such tag is known. A known tag holds; if the list is
    /// older than the time to live, a lookup is started in the background.
    ///
    /// # Errors
    /// [`ResolveError`]
    pub async fn resolve(&self, image: &Image, constraint: &Constraint) -> Result<Image, ResolveError> {
        let known = self.lists.known(image);
        if let Some(chosen) = known.and_then(|list| list.highest(image, constraint)) {
            // Polled once, it starts a lookup if one is due and has a place.
            let _ = self.fresh(&self.lists, image, self.ttl).now_or_never();
            return Ok(chosen);
        }
        // A list without such a tag is a negative answer.
        let list = self.fresh(&self.lists, image, NEGATIVE_TTL).await?;
        list.highest(image, constraint).ok_or(ResolveError::NoMatch)
    }

    /// Takes over what another runner found out. It counts as a registry's answer of now, unless
    /// something newer is known.
    pub fn learn(&self, image: &Image, found: Known) {
        let entry = self.known.entry(image);
        // A lookup that runs finds out something newer.
        let Ok(_asking) = entry.asking.try_lock() else { return };
        if entry.known().is_none_or(|known| known.since < found.since) {
            self.known.record(image, Arc::clone(&entry), &Ok(Arc::new(found)));
        }
    }

    /// Images that became known, and images with a moved digest. A receiver that lags behind by
    /// 1,024 of them gets an error.
    pub fn changes(&self) -> broadcast::Receiver<Image> {
        self.known.changes.subscribe()
    }

    /// An answer younger than `max_age`.
    async fn fresh<V: Question>(
        &self,
        answers: &Arc<Answers<V>>,
        image: &Image,
        max_age: Duration,
    ) -> Answer<V> {
        let entry = answers.entry(image);
        if let Some(answer) = entry.answer(max_age) {
            return answer;
        }
        let asking = Arc::clone(&entry.asking).lock_owned().await;
        // Another caller may have asked meanwhile.
        if let Some(answer) = entry.answer(max_age) {
            return answer;
        }
        let permit = self.limiter.acquire(image.registry()).await.ok_or(RegistryError::Unreachable)?;
        let (registry, answers, image) = (Arc::clone(&self.registry), Arc::clone(answers), image.clone());
        let (sender, answered) = oneshot::channel();
        self.spawn(async move {
            let answer = V::ask(registry, &image, entry.known()).await;
            permit.finish(!matches!(answer, Err(RegistryError::Unreachable)));
            answers.record(&image, entry, &answer);
            drop(asking);
            // Fails if the caller went away.
            let _ = sender.send(answer);
        });
        // A lookup that panicked has no answer.
        answered.await.unwrap_or(Err(RegistryError::Unreachable))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

impl Question for Known {
    fn key(image: &Image) -> &str {
        image.as_str()
    }

    async fn ask(registry: Arc<dyn Registry>, image: &Image, known: Option<Arc<Self>>) -> Answer<Self> {
        if let Some(known) = &known
            && registry.digest(image).await? == known.digest
        {
            return Ok(Arc::clone(known));
        }
        let Metadata { digest, command } = registry.metadata(image).await?;
        match known {
            Some(known) if known.digest == digest => return Ok(known),
            Some(_) => tracing::info!(%image, "the tag stands for another image now"),
            None => {}
        }
        Ok(Arc::new(Self { digest, command, since: SystemTime::now() }))
    }

    fn bytes(&self) -> usize {
        let command = self.command.iter().map(|word| size_of::<String>() + word.len()).sum::<usize>();
        size_of::<Self>() + self.digest.len() + command
    }
}
