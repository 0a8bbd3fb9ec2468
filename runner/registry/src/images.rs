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

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use porch_fn_image::{Constraint, Image};
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::answers::{Answer, Answers, Weigh};
use self::limiter::LookupLimiter;
use self::tag_list::TagList;
use crate::{Metadata, Registry, RegistryError};

/// How long a pod waits for news of an image that is known already.
const PATIENCE: Duration = Duration::from_secs(2);
/// Changes that a receiver may not have taken yet.
const MAX_CHANGES: usize = 1024;

/// How long and how much is remembered.
#[derive(Debug, Clone)]
pub struct ImagesOptions {
    /// `--image-metadata-ttl`: the age at which the digest of a tag, and the tags of a repository,
    /// are asked for again.
    pub ttl: Duration,
    /// How long a failure is reported without asking again; a transient one for a second at most.
    pub negative_ttl: Duration,
    /// Images, and repositories, that are remembered: callers choose both.
    pub max_entries: NonZeroUsize,
}

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

/// Why a constraint has no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The repository exists and has no such tag.
    #[error(
        "no tag in the image's repository matches the version constraint: push one, or change the constraint"
    )]
    NoMatch,
    /// The tags are not known.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Remembers what registries answer. Dropped, it ends its lookups.
#[derive(Debug)]
pub struct Images {
    registry: Arc<dyn Registry>,
    options: ImagesOptions,
    /// By canonical reference.
    known: Arc<Answers<Known>>,
    /// By repository.
    lists: Arc<Answers<TagList>>,
    changes: broadcast::Sender<Image>,
    limiter: LookupLimiter,
    tasks: Mutex<JoinSet<()>>,
}

// === impl Images ===

impl Images {
    /// Nothing is known yet. `registry` bounds the time of each lookup.
    pub fn new(registry: Arc<dyn Registry>, options: ImagesOptions) -> Self {
        Self {
            registry,
            known: Arc::new(Answers::new(options.max_entries, options.negative_ttl)),
            lists: Arc::new(Answers::new(options.max_entries, options.negative_ttl)),
            options,
            changes: broadcast::Sender::new(MAX_CHANGES),
            limiter: LookupLimiter::new(),
            tasks: Mutex::new(JoinSet::new()),
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
        let max_age = if image.digest().is_some() { Duration::MAX } else { self.options.ttl };
        let known = self.known.known(image.as_str());
        let (registry, asked) = (Arc::clone(&self.registry), image.clone());
        let lookup = async move |known: Option<Arc<Known>>| fetch(&*registry, &asked, known.as_ref()).await;
        let (changes, changed) = (self.changes.clone(), image.clone());
        let report = move |old: Option<Arc<Known>>, new: &Known| {
            if old.as_ref().is_none_or(|old| old.digest != new.digest) {
                if old.is_some() {
                    tracing::info!(image = %changed, "the tag stands for another image now");
                }
                // Fails without a receiver.
                let _ = changes.send(changed);
            }
        };
        let fresh = self.fresh(&self.known, image, image.as_str(), max_age, lookup, report);
        match known {
            None => fresh.await,
            Some(known) => Ok(timeout(PATIENCE, fresh).await.ok().and_then(Result::ok).unwrap_or(known)),
        }
    }

    /// Asks the registry again if what is known of the image is too old. For the follower of the
    /// tags of running pods.
    pub async fn revalidate(&self, image: &Image) {
        // A failure leaves what was known, and is remembered.
        let _ = self.metadata(image).await;
    }

    /// What is known of the image, however old. Never asks the registry.
    pub fn known(&self, image: &Image) -> Option<Arc<Known>> {
        self.known.known(image.as_str())
    }

    /// A pod could not be made of what is known of the image: the next
    /// [`metadata`](Self::metadata) asks the registry again.
    pub fn distrust(&self, image: &Image) {
        self.known.distrust(image.as_str());
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
        let known = self.lists.known(image.repository());
        if let Some(chosen) = known.and_then(|list| list.highest(image, constraint)) {
            // Polled once, it starts a lookup if one is due and has a place.
            let _ = self.list(image, self.options.ttl).now_or_never();
            return Ok(chosen);
        }
        // A list without such a tag is a negative answer.
        let list = self.list(image, self.options.negative_ttl).await?;
        list.highest(image, constraint).ok_or(ResolveError::NoMatch)
    }

    /// Takes over what another runner found out. It counts as a registry's answer of now, unless
    /// something newer is known.
    pub fn learn(&self, image: &Image, found: Known) {
        let entry = self.known.entry(image.as_str());
        // A lookup that runs finds out something newer.
        let Ok(_asking) = entry.asking.try_lock() else { return };
        if entry.known().is_none_or(|known| known.since < found.since) {
            self.known.record(image.as_str().to_owned(), Arc::clone(&entry), &Ok(Arc::new(found)));
            let _ = self.changes.send(image.clone());
        }
    }

    /// Images that became known, and images with a moved digest. A receiver that lags behind by
    /// 1,024 of them is told so.
    pub fn changes(&self) -> broadcast::Receiver<Image> {
        self.changes.subscribe()
    }

    /// The tags of the image's repository, younger than `max_age`.
    async fn list(&self, image: &Image, max_age: Duration) -> Answer<TagList> {
        let (registry, asked) = (Arc::clone(&self.registry), image.clone());
        let lookup = async move |_| {
            let tags = registry.tags(&asked).await?;
            Ok(Arc::new(TagList::new(&asked, &tags)))
        };
        self.fresh(&self.lists, image, image.repository(), max_age, lookup, |_, _| ()).await
    }

    /// An answer younger than `max_age`. `lookup` fetches one, given what is known; `report` is
    /// called once the new answer can be seen, with the old one.
    async fn fresh<V: Weigh, L: Future<Output = Answer<V>> + Send + 'static>(
        &self,
        answers: &Arc<Answers<V>>,
        image: &Image,
        key: &str,
        max_age: Duration,
        lookup: impl FnOnce(Option<Arc<V>>) -> L,
        report: impl FnOnce(Option<Arc<V>>, &V) + Send + 'static,
    ) -> Answer<V> {
        let entry = answers.entry(key);
        if let Some(answer) = entry.answer(max_age) {
            return answer;
        }
        let asking = Arc::clone(&entry.asking).lock_owned().await;
        // Another caller may have asked meanwhile.
        if let Some(answer) = entry.answer(max_age) {
            return answer;
        }
        let permit = self.limiter.acquire(image.registry()).await.ok_or(RegistryError::Unreachable)?;
        let old = entry.known();
        let (lookup, answers, key) = (lookup(old.clone()), Arc::clone(answers), key.to_owned());
        let (sender, answered) = oneshot::channel();
        self.spawn(async move {
            let answer = lookup.await;
            permit.finish(!matches!(answer, Err(RegistryError::Unreachable)));
            answers.record(key, entry, &answer);
            drop(asking);
            if let Ok(new) = &answer {
                report(old, new);
            }
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

/// Returns the known value while its digest holds.
async fn fetch(registry: &dyn Registry, image: &Image, known: Option<&Arc<Known>>) -> Answer<Known> {
    if let Some(known) = known
        && registry.digest(image).await? == known.digest
    {
        return Ok(Arc::clone(known));
    }
    let Metadata { digest, command } = registry.metadata(image).await?;
    match known {
        Some(known) if known.digest == digest => Ok(Arc::clone(known)),
        _ => Ok(Arc::new(Known { digest, command, since: SystemTime::now() })),
    }
}

impl Weigh for Known {
    fn bytes(&self) -> usize {
        let command = self.command.iter().map(|word| size_of::<String>() + word.len()).sum::<usize>();
        size_of::<Self>() + self.digest.len() + command
    }
}
