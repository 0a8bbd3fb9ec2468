//! The image store behind the sandboxes of `up`.

use std::ffi::OsString;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use moka::sync::Cache;
use porch_fn_image::Image;
use porch_fn_images::{Record, RunFolder, Store, StoreError, Stored};
use porch_fn_pool::{ImageContent, ImageKey, Reason, Time};
use porch_fn_registry::{Client, Images, Limiter, RegistryError};
use porch_fn_runner::pods::IMAGE_MISSING;
use porch_fn_runner::pods::local::{Pod, Pulling, Sandboxes as SandboxesOfRunner};
use porch_fn_sandbox::{Inside, Limits};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::async_trait;
use wrapper_server::{Inherited, run_in_sandbox};

use super::pod;
use crate::failure::Failure;
use crate::images::client;
use crate::images::flags::RegistryArgs;
use crate::one_shot::advice::{explain, not_enforced};
use crate::one_shot::{NOTHING_TO_RUN, RunFlags};

/// Number of images whose turns are remembered. Callers choose the images.
const MAX_PULLS: u64 = 1024;

/// The sandboxes of one process.
#[derive(Debug)]
pub(super) struct Sandboxes {
    /// Limits of each sandbox.
    limits: Limits,
    store: Store,
    client: Arc<Client>,
    registries: Arc<Images>,
    /// The wrapper-servers' sockets.
    sockets: RunFolder,
    /// One pull per image at a time.
    pulls: Cache<String, Arc<Mutex<()>>>,
    places: Limiter,
}

/// Runs the wrapper-server as the first process of a sandbox.
pub(super) fn serve(listener: UnixListener, args: Vec<String>, Inside { command, env }: Inside) -> ExitCode {
    let environment = env.iter().filter_map(|variable| {
        let (name, value) = variable.split_once('=')?;
        Some((name.into(), value.into()))
    });
    let inherited = Inherited { listener, environment: environment.collect() };
    let args = ["wrapper-server".to_owned()].into_iter().chain(args).chain(["--".to_owned()]);
    run_in_sandbox(args.chain(command).map(OsString::from), inherited)
}

// === impl Sandboxes ===

#[async_trait]
impl SandboxesOfRunner for Sandboxes {
    fn registries(&self) -> Arc<Images> {
        Arc::clone(&self.registries)
    }

    async fn start(&self, image: &ImageKey, args: Vec<String>, pulling: Pulling<'_>) -> Result<Pod, Reason> {
        let parsed = Image::parse(image.as_str(), "").map_err(missing)?;
        let stored = self.stored(&parsed, pulling).await.map_err(missing)?;
        let sandbox = RunFlags::default().sandbox(&stored, &[], self.limits);
        let sandbox = sandbox.ok_or_else(|| missing(NOTHING_TO_RUN))?;
        let Record { resolved, pulled, .. } = &stored.image.record;
        let pulled = Time::default() + pulled.duration_since(UNIX_EPOCH).unwrap_or_default();
        let content = ImageContent { digest: resolved.as_str().into(), resolved: Some(pulled) };
        let started = pod::start(sandbox, stored, &self.sockets.short_path(""), args).await;
        let (child, place, control) = started.map_err(|error| Reason::new("not_started", explain(&error)))?;
        Ok(Pod { child, place, content: Some(content), control: Box::new(control) })
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
        if let Some(missing) = not_enforced(&limits) {
            tracing::warn!("{missing}");
        }
        Ok(Self {
            limits,
            sockets: store.run_folder()?,
            registries: Arc::new(Images::new(Arc::clone(&client) as Arc<_>, ttl)),
            store,
            client,
            pulls: Cache::new(MAX_PULLS),
            places: Limiter::for_pulls(),
        })
    }

    /// Returns the image. Pulls it before if it is not here or outdated.
    async fn stored(&self, image: &Image, pulling: Pulling<'_>) -> Result<Stored, StoreError> {
        let turn = self.pulls.get_with_by_ref(image.as_str(), Arc::default);
        let _turn = turn.lock().await;
        let outdated = match self.find(image).await? {
            Some(stored) if !self.is_outdated(image, &stored) => return Ok(stored),
            outdated => outdated,
        };
        pulling();
        match (self.pull(image).await, outdated) {
            (Err(error), Some(outdated)) => {
                let error = error.to_string();
                tracing::warn!(%image, error, "the tag has moved, and the image cannot be pulled again");
                Ok(outdated)
            }
            (pulled, _) => pulled,
        }
    }

    /// Whether the image's registry has reported another digest since it was pulled.
    fn is_outdated(&self, image: &Image, Stored { image: stored, .. }: &Stored) -> bool {
        let Record { resolved, pulled, .. } = &stored.record;
        let known = self.registries.known(image);
        known.is_some_and(|known| *known.digest != **resolved && known.since > *pulled)
    }

    async fn find(&self, image: &Image) -> Result<Option<Stored>, StoreError> {
        let image = image.clone();
        self.store.blocking(move |store| store.find(&image)).await
    }

    async fn pull(&self, image: &Image) -> Result<Stored, StoreError> {
        // Callers choose the registries, and some hang.
        let place = self.places.acquire(image.registry()).await.ok_or(RegistryError::Unreachable)?;
        let began = Instant::now();
        tracing::info!(%image, "pulling an image");
        let pulled = self.store.pull(&self.client, image, &|_| {}).await;
        place.finish(!matches!(pulled, Err(StoreError::Registry(RegistryError::Unreachable))));
        pulled?;
        tracing::info!(%image, took = ?began.elapsed(), "pulled an image");
        self.find(image).await?.ok_or(StoreError::Missing)
    }
}

/// Why an image cannot have pods here. The kind makes it `NOT_FOUND` for the caller.
fn missing(error: impl std::fmt::Display) -> Reason {
    Reason::new(IMAGE_MISSING, error.to_string())
}
