//! What is known of images, so that registries are asked little, and calls go on while one is down.
//!
//! An answer is taken for good until it is older than the time to live, and then asked for again: for a pod's image
//! while the pod's maker waits, since a pod is slow anyway; for a constraint in the background, since a call waits for
//! it. A registry that fails leaves what was known. Each question is asked once at a time, in a task of its own: the
//! caller who asked first may go away.

mod gates;
mod memory;
mod tag_list;
#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use porch_fn_image::{Constraint, Image};
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::gates::Gates;
use self::memory::{Answer, Asking, Look, Memory, Shared, Weigh};
use self::tag_list::TagList;
use crate::{Metadata, Registry, RegistryError};

/// How long a registry may take altogether, whatever its client allows.
const LONGEST: Duration = Duration::from_mins(1);
/// How long a pod waits for news of an image that is known already.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long and how much is remembered.
#[derive(Debug, Clone)]
pub struct ImagesOptions {
    /// `--image-metadata-ttl`: what a tag stands for, and which tags there are, is asked again after that.
    pub ttl: Duration,
    /// How long a failure is told without asking again. What may be over soon is so for a second at most.
    pub negative_ttl: Duration,
    /// Of images, and of repositories: both are input of callers.
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
    /// The repository is there, such a tag is not.
    #[error(
        "no tag in the image's repository matches the version constraint: push one, or change the constraint"
    )]
    NoMatch,
    /// The tags are not known.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Changes that a receiver may not have taken yet.
const MAX_CHANGES: usize = 1024;

/// Remembers what registries say. Dropped, it asks no more.
#[derive(Debug)]
pub struct Images {
    registry: Arc<dyn Registry>,
    options: ImagesOptions,
    /// By canonical reference.
    known: Arc<Memory<Known>>,
    /// By repository.
    lists: Arc<Memory<TagList>>,
    changes: broadcast::Sender<Image>,
    gates: Gates,
    tasks: Mutex<JoinSet<()>>,
}

// === impl Images ===

impl Images {
    /// Nothing is known yet.
    pub fn new(registry: Arc<dyn Registry>, options: ImagesOptions) -> Self {
        let max_entries = options.max_entries.get();
        Self {
            registry,
            known: Arc::new(Memory::new(max_entries, options.negative_ttl)),
            lists: Arc::new(Memory::new(max_entries, options.negative_ttl)),
            options,
            changes: broadcast::Sender::new(MAX_CHANGES),
            gates: Gates::new(),
            tasks: Mutex::new(JoinSet::new()),
        }
    }

    /// For a pod that is to be made.
    ///
    /// At once while it is fresh, and a digest is so for ever. Else the registry is asked: where something is known
    /// only for the digest, and for the rest if that moved. What is known holds if the registry fails or is slow then.
    ///
    /// # Errors
    /// Why the registry has no answer, while nothing is known.
    pub async fn metadata(&self, image: &Image) -> Result<Arc<Known>, RegistryError> {
        let max_age = if image.digest().is_some() { Duration::MAX } else { self.options.ttl };
        let known = self.known.known(image.as_str());
        let fresh = self
            .fresh(&self.known, image, image.as_str(), max_age, |asking| self.ask_metadata(image, asking));
        match known {
            None => fresh.await,
            Some(known) => Ok(timeout(PATIENCE, fresh).await.ok().and_then(Result::ok).unwrap_or(known)),
        }
    }

    /// Sees to it that what is known of the image is fresh, for whoever follows the tags of running pods.
    pub async fn revalidate(&self, image: &Image) {
        // A failure leaves what was known, and is remembered.
        let _ = self.metadata(image).await;
    }

    /// The same without asking anybody, however old.
    pub fn known(&self, image: &Image) -> Option<Arc<Known>> {
        self.known.known(image.as_str())
    }

    /// A pod could not be made of what is known of the image: the registry is asked again as soon as somebody wants it.
    pub fn distrust(&self, image: &Image) {
        self.known.distrust(image.as_str());
    }

    /// The image with the highest tag that the constraint allows; the tag and digest of `image` do not matter.
    ///
    /// The registry is waited for only while there is no such tag. One that is known holds, and makes the list be
    /// asked for again in the background when it is older than the time to live.
    ///
    /// # Errors
    /// [`ResolveError`]
    pub async fn resolve(&self, image: &Image, constraint: &Constraint) -> Result<Image, ResolveError> {
        let repository = image.repository();
        if let Some(list) = self.lists.known(repository)
            && let Some(chosen) = list.highest(image, constraint)
        {
            self.refresh_list(image);
            return Ok(chosen);
        }
        // A list without such a tag is a negative answer.
        let max_age = self.options.negative_ttl;
        let list = self
            .fresh(&self.lists, image, repository, max_age, |asking| self.ask_tags(image, asking))
            .await?;
        list.highest(image, constraint).ok_or(ResolveError::NoMatch)
    }

    /// What another runner found out and wrote down. It counts as a registry's answer of now, unless something newer is
    /// known.
    pub fn learn(&self, image: &Image, found: Known) {
        let older = |known: &Known| known.since < found.since;
        let news = self.known.known(image.as_str()).is_none_or(|known| older(&known));
        if news && self.known.learn(image.as_str(), Arc::new(found)) {
            let _ = self.changes.send(image.clone());
        }
    }

    /// Images that became known, and those whose digests moved. A receiver that lags behind by 1,024 of them is told
    /// that it does.
    pub fn changes(&self) -> broadcast::Receiver<Image> {
        self.changes.subscribe()
    }

    /// An answer younger than `max_age`, which `ask` is to fetch.
    async fn fresh<V: Weigh>(
        &self,
        memory: &Arc<Memory<V>>,
        image: &Image,
        key: &str,
        max_age: Duration,
        ask: impl FnOnce(Asking<V>) -> Shared<V>,
    ) -> Answer<V> {
        let mut look = memory.look(key, max_age, None);
        if let Look::Due = look {
            let place = memory.line_up(key);
            let _first = place.first().await;
            look = memory.look(key, max_age, None);
            if let Look::Due = look {
                // Without a turn it stays due: the registry hangs.
                let turn = self.gates.turn(image.registry()).await;
                look = memory.look(key, max_age, turn);
            }
        }
        match look {
            Look::Fresh(known) => Ok(known),
            Look::Failed(error) => Err(error),
            Look::Asked(shared) => shared.answer().await,
            Look::Ask(asking) => ask(asking).answer().await,
            Look::Due => Err(RegistryError::Unreachable),
        }
    }

    /// Asks for the tags if that is due, unless there is much to ask: then one of the next calls does.
    fn refresh_list(&self, image: &Image) {
        let look = |turn| self.lists.look(image.repository(), self.options.ttl, turn);
        if let Look::Due = look(None)
            && let Some(turn) = self.gates.try_turn(image.registry())
            && let Look::Ask(asking) = look(Some(turn))
        {
            self.ask_tags(image, asking);
        }
    }

    fn ask_metadata(&self, image: &Image, asking: Asking<Known>) -> Shared<Known> {
        let shared = asking.shared();
        let (registry, image) = (Arc::clone(&self.registry), image.clone());
        let changes = self.changes.clone();
        self.spawn(async move {
            let answer = fetch(&*registry, &image, asking.known.as_ref());
            let answer = timeout(LONGEST, answer).await.unwrap_or(Err(RegistryError::Unreachable));
            let old = asking.known.as_ref().map(|known| &known.digest);
            let (moved, changed) = match &answer {
                Ok(new) => (old.is_some_and(|old| *old != new.digest), old != Some(&new.digest)),
                Err(_) => (false, false),
            };
            if moved {
                tracing::info!(%image, "the tag stands for another image now");
            }
            asking.end(answer);
            if changed {
                // Without a receiver nobody wants to know.
                let _ = changes.send(image);
            }
        });
        shared
    }

    fn ask_tags(&self, image: &Image, asking: Asking<TagList>) -> Shared<TagList> {
        let shared = asking.shared();
        let (registry, image) = (Arc::clone(&self.registry), image.clone());
        self.spawn(async move {
            let tags = timeout(LONGEST, registry.tags(&image)).await;
            let tags = tags.unwrap_or(Err(RegistryError::Unreachable));
            let answer = tags.map(|tags| Arc::new(TagList::new(&image, &tags)));
            asking.end(answer);
        });
        shared
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// What is known stays the same value while the digest does.
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
