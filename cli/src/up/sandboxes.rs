//! The image store and the registries behind the sandboxes of `up`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_image::{Constraint, Image};
use porch_fn_images::{RunFolder, Store, StoreError, Stored};
use porch_fn_pool::{ImageContent, ImageKey, Reason, Time};
use porch_fn_registry::{Client, Images, Limiter, RegistryError, ResolveError};
use porch_fn_runner::pods::IMAGE_MISSING;
use porch_fn_runner::pods::local::{SandboxPod, Sandboxes as SandboxesOfRunner};
use porch_fn_sandbox::{Inside, Limits, Served};
use tokio::sync::{Mutex as AsyncMutex, broadcast};
use tokio::time::Instant;
use wrapper_server::{Inherited, run_in_sandbox};

use super::pod::Pod;
use crate::failure::Failure;
use crate::images::client;
use crate::images::flags::RegistryArgs;
use crate::one_shot::{NOTHING_TO_RUN, RunFlags};

/// Images whose content has changed and whose pods were not replaced yet. A receiver that is
/// further behind replaces all outdated pods.
const MAX_CHANGES: usize = 1024;
/// Images whose content is remembered, the latest ones. The pods of another image do not follow its
/// tag until the image gets its next pod.
const MAX_CONTENTS: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The sandboxes of one process. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Sandboxes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Limits of each sandbox.
    limits: Limits,
    store: Store,
    client: Arc<Client>,
    registries: Images,
    /// The wrapper-servers' sockets.
    sockets: RunFolder,
    next_socket: AtomicU64,
    /// The content of each image that had a pod, as it is in the store.
    contents: Mutex<LruCache<ImageKey, ImageContent>>,
    changes: broadcast::Sender<ImageKey>,
    /// One pull per image at a time.
    pulls: Mutex<HashMap<String, Arc<AsyncMutex<()>>>>,
    places: Limiter,
}

/// Runs the wrapper-server as the first process of a sandbox.
pub(super) fn serve(Served { listener, args, inside: Inside { command, env } }: Served) -> ExitCode {
    let environment = env.iter().filter_map(|variable| {
        let (name, value) = variable.split_once('=')?;
        Some((name.into(), value.into()))
    });
    let inherited = Inherited { listener, environment: environment.collect() };
    let args = ["wrapper-server".to_owned()].into_iter().chain(args).chain(["--".to_owned()]);
    run_in_sandbox(args.chain(command).map(OsString::from), inherited)
}

// === impl Sandboxes ===

impl SandboxesOfRunner for Sandboxes {
    fn prepare<'a>(
        &'a self,
        image: &'a ImageKey,
        wrapper: Vec<String>,
        pulling: &'a (dyn Fn() + Sync),
    ) -> BoxFuture<'a, Result<Box<dyn SandboxPod>, Reason>> {
        async move {
            let pod = self.pod(image, wrapper, pulling).await?;
            Ok(Box::new(pod) as Box<dyn SandboxPod>)
        }
        .boxed()
    }

    fn content(&self, image: &ImageKey) -> Option<ImageContent> {
        self.0.contents.lock().get(image).cloned()
    }

    fn changes(&self) -> broadcast::Receiver<ImageKey> {
        self.0.changes.subscribe()
    }

    fn revalidate(&self, image: ImageKey) -> BoxFuture<'static, ()> {
        self.clone().pull_if_moved(image).boxed()
    }

    fn resolve<'a>(
        &'a self,
        image: &'a Image,
        constraint: &'a Constraint,
    ) -> BoxFuture<'a, Result<Image, ResolveError>> {
        self.0.registries.resolve(image, constraint).boxed()
    }
}

impl Sandboxes {
    /// Opens the image store. The digest of a tag counts for `ttl`.
    ///
    /// # Errors
    /// The flags are wrong, or the store cannot be used.
    pub(super) fn open(args: &RegistryArgs, ttl: Duration, limits: Limits) -> Result<Self, Failure> {
        let store = args.open()?;
        let client = Arc::new(client(args)?);
        porch_fn_sandbox::take_own_cgroup();
        let missing = porch_fn_sandbox::not_enforced(&limits);
        if !missing.is_empty() {
            tracing::warn!("{missing}");
        }
        Ok(Self(Arc::new(Inner {
            limits,
            sockets: store.run_folder()?,
            registries: Images::new(Arc::clone(&client) as Arc<_>, ttl),
            store,
            client,
            next_socket: AtomicU64::new(0),
            contents: Mutex::new(LruCache::new(MAX_CONTENTS)),
            changes: broadcast::channel(MAX_CHANGES).0,
            pulls: Mutex::default(),
            places: Limiter::for_pulls(),
        })))
    }

    /// Pulls the image if it is not here, and returns a pod of it.
    async fn pod(
        &self,
        image: &ImageKey,
        wrapper: Vec<String>,
        pulling: &(dyn Fn() + Sync),
    ) -> Result<Pod, Reason> {
        let parsed = Image::parse(image.as_str(), "").map_err(missing)?;
        let stored = match self.find(&parsed).await.map_err(missing)? {
            Some(stored) => stored,
            None => {
                pulling();
                self.pull(&parsed, None).await.map_err(missing)?
            }
        };
        let content = self.content_of(image, &parsed, &stored);
        let name = self.0.next_socket.fetch_add(1, Ordering::Relaxed).to_string();
        let sandbox = RunFlags::default().sandbox(&stored, &[], self.0.limits);
        let sandbox = sandbox.ok_or_else(|| missing(NOTHING_TO_RUN))?;
        Ok(Pod { sandbox, wrapper, socket: self.0.sockets.short_path(&name), content, stored })
    }

    /// Asks the registry whether the image's tag has moved. If so, pulls the image again, and its
    /// pods are then outdated.
    async fn pull_if_moved(self, image: ImageKey) {
        let Some(parsed) = Image::parse(image.as_str(), "").ok().filter(|image| image.digest().is_none())
        else {
            return;
        };
        let (Some(known), Ok(found)) = (self.content(&image), self.0.registries.metadata(&parsed).await)
        else {
            return;
        };
        if known.digest.as_str() == &*found.digest {
            return;
        }
        match self.pull(&parsed, Some(known.digest.as_str())).await {
            Ok(stored) => {
                self.content_of(&image, &parsed, &stored);
                // Fails only if no runner follows the changes.
                let _ = self.0.changes.send(image);
            }
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(%image, error, "the tag has moved, and the image cannot be pulled again");
            }
        }
    }

    fn content_of(&self, image: &ImageKey, parsed: &Image, stored: &Stored) -> Option<ImageContent> {
        if parsed.digest().is_some() {
            return None;
        }
        let digest = porch_fn_pool::Digest::from(stored.image.record.resolved.as_str());
        let mut contents = self.0.contents.lock();
        let known = contents.get(image).filter(|known| known.digest == digest).cloned();
        let content = known.unwrap_or_else(|| ImageContent { digest, resolved: Some(now()) });
        contents.put(image.clone(), content.clone());
        Some(content)
    }

    async fn find(&self, image: &Image) -> Result<Option<Stored>, StoreError> {
        let image = image.clone();
        self.0.store.blocking(move |store| store.find(&image)).await
    }

    /// Pulls the image, unless it is here with another digest than `outdated`.
    async fn pull(&self, image: &Image, outdated: Option<&str>) -> Result<Stored, StoreError> {
        let turn = Arc::clone(self.0.pulls.lock().entry(image.to_string()).or_default());
        let pulled = {
            let _turn = turn.lock().await;
            self.pull_in_turn(image, outdated).await
        };
        drop(turn);
        self.0.pulls.lock().retain(|_, turn| Arc::strong_count(turn) > 1);
        pulled
    }

    async fn pull_in_turn(&self, image: &Image, outdated: Option<&str>) -> Result<Stored, StoreError> {
        // Another pod of the image may have been first.
        if let Some(stored) = self.find(image).await?
            && Some(&*stored.image.record.resolved) != outdated
        {
            return Ok(stored);
        }
        // Callers choose the registries, and some hang.
        let place = self.0.places.acquire(image.registry()).await.ok_or(RegistryError::Unreachable)?;
        let began = Instant::now();
        tracing::info!(%image, "pulling an image");
        let pulled = self.0.store.pull(&self.0.client, image, &()).await;
        place.finish(!matches!(pulled, Err(StoreError::Registry(RegistryError::Unreachable))));
        pulled?;
        tracing::info!(%image, took = ?began.elapsed(), "pulled an image");
        let missing = || StoreError::Missing(self.0.store.folder().to_owned());
        self.find(image).await?.ok_or_else(missing)
    }
}

/// The time of this machine's clock.
fn now() -> Time {
    Time::default() + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Why an image cannot have pods here. The kind makes it `NOT_FOUND` for the caller.
fn missing(error: impl std::fmt::Display) -> Reason {
    Reason::new(IMAGE_MISSING, error.to_string())
}
