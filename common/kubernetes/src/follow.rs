//! Follows objects: lists them and then watches for changes.
//!
//! A [`Follower`] reports its first error and ends. The caller creates another one, which lists
//! again, so no change is lost. kube's watcher resumes after an error without a new report that its
//! list of objects is complete. The garbage collection of pods needs that report. It also opens the
//! next watch at once when a watch ends, and sets no timeout for its requests.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt};
use porch_fn_backoff::{Backoff, spread};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::{READ_TIMEOUT, RequestError, WATCH_SECONDS, bounded};

/// Minimum time between the starts of two watch requests. Without it, a server that ends each watch
/// at once would be flooded.
pub const BETWEEN_WATCHES: Duration = Duration::from_secs(1);

/// The first and the longest pause before the next follower. The pause doubles after each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// A follower that ran for this long after its list counts as successful.
const LIVED: Duration = Duration::from_secs(10);

/// HTTP 410: the server no longer has the resource version from which the watch starts. This is
/// normal.
const EXPIRED: u16 = 410;

/// What a [`Follower`] reports.
#[derive(Debug)]
pub enum Change<K> {
    /// All objects that exist now. A follower reports this first, and again after
    /// [`Change::Expired`].
    Listed(Vec<K>),
    /// An object was created or changed.
    Applied(K),
    /// An object was deleted.
    Deleted(K),
    /// The version to watch from has expired, so changes may have been missed.
    Expired,
}

/// Why a [`Follower`] ended.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The list failed.
    #[error(transparent)]
    List(RequestError),
    /// A page of the list took too long.
    #[error("no list within {}s", .0.as_secs())]
    Slow(Duration),
    /// The watch failed.
    #[error(transparent)]
    Watch(#[from] RequestError),
    /// The watch sent nothing and did not end in time.
    #[error("the API server sent nothing on a watch for too long; check the network to it")]
    Silent,
}

/// Lists objects, then watches them until the first error.
pub struct Follower<K> {
    api: Api<K>,
    params: ListParams,
    page_timeout: Duration,
    trim: fn(&mut K),
    /// The resource version at which the next watch starts; `None`: list first.
    version: Option<String>,
    /// The open watch, and when it has been silent for too long.
    watch: Option<(BoxStream<'static, kube::Result<WatchEvent<K>>>, Instant)>,
    listed_at: Option<Instant>,
    /// When the next watch request may start, or the next list if the version expired.
    not_before: Instant,
}

/// The pauses after failed followers, from 0.2 s to 5 s plus a random time.
#[derive(Debug)]
pub struct Restarts {
    backoff: Backoff,
    failures: u32,
}

// === impl Restarts ===

impl Restarts {
    /// The pause after a follower that ended. `listed_for` is that follower's
    /// [`listed_for`](Follower::listed_for). A random time, at most half of the pause, is added, so
    /// that processes do not retry at the same moment.
    pub fn after(&mut self, listed_for: Option<Duration>) -> Duration {
        if listed_for.is_some_and(|lived| lived > LIVED) {
            *self = Self::default();
        }
        self.failures = self.failures.saturating_add(1);
        spread(self.backoff.next_pause(), 1.0..1.5)
    }

    /// How many followers failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

impl Default for Restarts {
    fn default() -> Self {
        Self { backoff: Backoff::new(FIRST_PAUSE, LAST_PAUSE), failures: 0 }
    }
}

// === impl FollowError ===

impl FollowError {
    /// The status code of the answer, if there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::List(error) | Self::Watch(error) => error.code(),
            Self::Slow(_) | Self::Silent => None,
        }
    }
}

// === impl Follower ===

impl<K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static> Follower<K> {
    /// Follows the objects of `api` that the selectors of `params` select. A page of the list may
    /// take `page_timeout`. `trim` removes unneeded fields from listed objects, because the whole
    /// list is held in memory.
    pub fn new(api: Api<K>, params: ListParams, page_timeout: Duration, trim: fn(&mut K)) -> Self {
        let not_before = Instant::now();
        Self { api, params, page_timeout, trim, version: None, watch: None, listed_at: None, not_before }
    }

    /// The time since the first list; `None` before it.
    pub fn listed_for(&self) -> Option<Duration> {
        self.listed_at.map(|at| at.elapsed())
    }

    /// Returns the next change. Cancel-safe: a dropped future loses no change.
    ///
    /// # Errors
    /// [`FollowError`]: changes may have been missed. Start again with a new follower.
    pub async fn next(&mut self) -> Result<Change<K>, FollowError> {
        loop {
            let Some(version) = &mut self.version else {
                sleep_until(self.not_before).await;
                let params = self.params.clone();
                let (objects, version) = list(&self.api, params, self.page_timeout, self.trim).await?;
                self.version = Some(version);
                self.listed_at.get_or_insert_with(Instant::now);
                return Ok(Change::Listed(objects));
            };
            let Some((events, silent_at)) = &mut self.watch else {
                sleep_until(self.not_before).await;
                let params = WatchParams {
                    label_selector: self.params.label_selector.clone(),
                    field_selector: self.params.field_selector.clone(),
                    timeout: Some(WATCH_SECONDS),
                    ..WatchParams::default()
                };
                let opened = Instant::now();
                self.not_before = opened + BETWEEN_WATCHES;
                match bounded(self.api.watch(&params, version)).await {
                    Ok(events) => self.watch = Some((events.boxed(), opened + READ_TIMEOUT)),
                    Err(error) if error.code() == Some(EXPIRED) => return Ok(self.expire()),
                    Err(error) => return Err(error.into()),
                }
                continue;
            };
            let event = timeout_at(*silent_at, events.next()).await;
            match event.map_err(|_| FollowError::Silent)?.transpose().map_err(RequestError::from)? {
                Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                    *version = object.resource_version().unwrap_or_default();
                    return Ok(Change::Applied(object));
                }
                Some(WatchEvent::Deleted(object)) => {
                    *version = object.resource_version().unwrap_or_default();
                    return Ok(Change::Deleted(object));
                }
                Some(WatchEvent::Bookmark(bookmark)) => *version = bookmark.metadata.resource_version,
                Some(WatchEvent::Error(status)) if status.code == EXPIRED => return Ok(self.expire()),
                Some(WatchEvent::Error(status)) => {
                    return Err(RequestError::Kube(kube::Error::Api(status)).into());
                }
                // The watch ended after its timeout.
                None => self.watch = None,
            }
        }
    }

    fn expire(&mut self) -> Change<K> {
        (self.version, self.watch) = (None, None);
        Change::Expired
    }
}

/// Lists all objects. Also returns the resource version from which to watch. Not a method, because
/// the state of a follower is not `Sync`.
async fn list<K: Clone + DeserializeOwned + fmt::Debug>(
    api: &Api<K>,
    mut params: ListParams,
    page_timeout: Duration,
    trim: fn(&mut K),
) -> Result<(Vec<K>, String), FollowError> {
    let mut objects = Vec::new();
    loop {
        let list = match timeout(page_timeout, api.list(&params)).await {
            Ok(list) => list.map_err(|error| FollowError::List(error.into()))?,
            Err(_) => return Err(FollowError::Slow(page_timeout)),
        };
        objects.extend(list.items.into_iter().map(|mut object| {
            trim(&mut object);
            object
        }));
        params.continue_token = list.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok((objects, list.metadata.resource_version.unwrap_or_default()));
        }
    }
}
