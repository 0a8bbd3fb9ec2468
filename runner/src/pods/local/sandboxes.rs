//! Pods in sandboxes: each is a wrapper-server in a sandbox with an image's files. A child process
//! of the runner creates it (`child.rs`), because a process with threads cannot.

pub(super) mod child;

use std::collections::HashMap;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_image::Image;
use porch_fn_images::{Owner, RunFolder, Store, StoreError, Stored};
use porch_fn_pool::{ImageContent, ImageKey, Reason};
use porch_fn_registry::{Client, Images};
use porch_fn_runner_config::{ImageStoreFlags, SandboxFlags};
use porch_fn_sandbox::{Limits, Network, Sandbox, UNPRIVILEGED};
use rustix::process::geteuid;
use tokio::sync::{Mutex as AsyncMutex, broadcast};
use tokio::time::Instant;

use self::child::Order;
use crate::clock::now;

/// Images whose content has changed and whose pods were not replaced yet. A receiver that is
/// further behind replaces all outdated pods.
const MAX_CHANGES: usize = 1024;
/// Images whose content is remembered, the latest ones. The pods of another image do not follow its
/// tag until the image gets its next pod.
const MAX_CONTENTS: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// Images that are pulled at the same time.
const MAX_PULLS: usize = 4;

/// How sandboxes are made.
#[derive(Debug, Clone)]
pub struct SandboxOptions {
    /// The command line that runs [`crate::sandbox_child`].
    pub program: Vec<OsString>,
    /// `--image-dir` and `--image-max-size`.
    pub images: porch_fn_images::Options,
    /// Access to registries.
    pub client: Arc<Client>,
    /// How long the digest of a tag counts (`--image-metadata-ttl`).
    pub ttl: Duration,
    /// Limits of each sandbox.
    pub limits: Limits,
}

/// The sandboxes of one process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sandboxes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: SandboxOptions,
    store: Store,
    registries: Images,
    /// The wrapper-servers' sockets.
    sockets: RunFolder,
    next_socket: AtomicU64,
    /// The content of each image that had a pod, as it is in the store.
    contents: Mutex<LruCache<ImageKey, ImageContent>>,
    changes: broadcast::Sender<ImageKey>,
    /// One pull per image at a time.
    pulls: Mutex<HashMap<ImageKey, Arc<AsyncMutex<()>>>>,
    places: tokio::sync::Semaphore,
}

/// An image that is here, and the order for its next sandbox.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) order: Order,
    pub(super) socket: PathBuf,
    pub(super) content: Option<ImageContent>,
    /// Keeps the image's layers while the pod exists.
    _stored: Stored,
}

// === impl SandboxOptions ===

impl SandboxOptions {
    /// Options according to the flags. `ttl` is `--image-metadata-ttl`.
    ///
    /// # Errors
    /// `--image-dir` is needed.
    pub fn new(flags: &SandboxFlags, client: Arc<Client>, ttl: Duration) -> Result<Self, String> {
        // The program may be replaced while it runs. This is still the same.
        let program = ["/proc/self/exe", child::NAME].map(OsString::from).into();
        let images = store_options(&flags.store)?;
        let limits = Limits::of_flags(
            flags.sandbox_memory.0,
            flags.sandbox_pids,
            flags.sandbox_cpus,
            flags.sandbox_tmp_size.0,
        );
        Ok(Self { program, images, client, ttl, limits })
    }
}

/// The image store that the flags choose. If this process is root, all files of images belong to
/// the user of all sandboxes.
///
/// # Errors
/// `--image-dir` is needed.
pub fn store_options(flags: &ImageStoreFlags) -> Result<porch_fn_images::Options, String> {
    let owner = geteuid().is_root().then_some(Owner { uid: UNPRIVILEGED, gid: UNPRIVILEGED });
    Ok(porch_fn_images::Options { folder: flags.folder()?, max_bytes: flags.image_max_size.0, owner })
}

// === impl Sandboxes ===

impl Sandboxes {
    /// Opens the image store. Blocks.
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn open(options: SandboxOptions) -> Result<Self, StoreError> {
        let store = Store::open(options.images.clone())?;
        porch_fn_sandbox::take_own_cgroup();
        porch_fn_sandbox::remove_unused_cgroups();
        let missing = porch_fn_sandbox::not_enforced(&options.limits);
        if !missing.is_empty() {
            tracing::info!("limits of sandboxes need a cgroup that is delegated to this process: {missing}");
        }
        Ok(Self(Arc::new(Inner {
            sockets: store.run_folder()?,
            registries: Images::new(Arc::clone(&options.client) as Arc<_>, options.ttl),
            store,
            options,
            next_socket: AtomicU64::new(0),
            contents: Mutex::new(LruCache::new(MAX_CONTENTS)),
            changes: broadcast::channel(MAX_CHANGES).0,
            pulls: Mutex::default(),
            places: tokio::sync::Semaphore::new(MAX_PULLS),
        })))
    }

    pub(super) fn program(&self) -> &[OsString] {
        &self.0.options.program
    }

    pub(crate) fn registries(&self) -> &Images {
        &self.0.registries
    }

    /// The content of the image in the store, if the image had a pod.
    pub(crate) fn content(&self, image: &ImageKey) -> Option<ImageContent> {
        self.0.contents.lock().get(image).cloned()
    }

    /// Receives each image whose tag has moved.
    pub(crate) fn changes(&self) -> broadcast::Receiver<ImageKey> {
        self.0.changes.subscribe()
    }

    /// Pulls the image if it is not here, and returns the order for a sandbox of it. `wrapper` are
    /// the wrapper-server's arguments.
    pub(super) async fn prepare(&self, image: &ImageKey, wrapper: Vec<String>) -> Result<Prepared, Reason> {
        let parsed = Image::parse(image.as_str(), "").map_err(missing)?;
        let stored = match self.find(&parsed).await.map_err(missing)? {
            Some(stored) => stored,
            None => self.pull(image, &parsed, None).await.map_err(missing)?,
        };
        let content = self.content_of(image, &parsed, &stored);
        let run = &stored.run;
        let command = run.command(&[]);
        if command.is_empty() {
            return Err(missing(
                "the image has neither ENTRYPOINT nor CMD, so there is nothing to run: add one to it",
            ));
        }
        let name = self.0.next_socket.fetch_add(1, Ordering::Relaxed).to_string();
        let order = Order {
            sandbox: Sandbox {
                layers: stored.stack(),
                user: run.user.clone(),
                command,
                env: run.env.clone(),
                folder: run.folder.clone(),
                network: Network::None,
                mounts: Vec::new(),
                limits: self.0.options.limits,
            },
            images: self.0.options.images.clone(),
            image: image.as_str().to_owned(),
            sockets: self.0.sockets.path().to_owned(),
            socket: name.clone(),
            wrapper,
        };
        Ok(Prepared { order, socket: self.0.sockets.short_path(&name), content, _stored: stored })
    }

    /// Asks the registry whether the image's tag has moved. If so, pulls the image again, and its
    /// pods are then outdated.
    pub(crate) async fn revalidate(self, image: ImageKey) {
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
        match self.pull(&image, &parsed, Some(known.digest.as_str())).await {
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

    /// Removes a pod's socket.
    pub(super) fn remove(&self, socket: &std::path::Path) {
        if let Some(name) = socket.file_name() {
            let _ = std::fs::remove_file(self.0.sockets.path().join(name));
        }
    }

    fn content_of(&self, image: &ImageKey, parsed: &Image, stored: &Stored) -> Option<ImageContent> {
        if parsed.digest().is_some() {
            return None;
        }
        let digest = porch_fn_pool::Digest::from(stored.digest.as_str());
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
    async fn pull(
        &self,
        key: &ImageKey,
        image: &Image,
        outdated: Option<&str>,
    ) -> Result<Stored, StoreError> {
        let turn = Arc::clone(self.0.pulls.lock().entry(key.clone()).or_default());
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
            && Some(&*stored.digest) != outdated
        {
            return Ok(stored);
        }
        self.pull_now(image).await?;
        let missing = || StoreError::Missing(self.0.store.folder().to_owned());
        self.find(image).await?.ok_or_else(missing)
    }

    async fn pull_now(&self, image: &Image) -> Result<(), StoreError> {
        let _place = self.0.places.acquire().await;
        let began = Instant::now();
        tracing::info!(%image, "pulling an image");
        self.0.store.pull(&self.0.options.client, image, &()).await?;
        tracing::info!(%image, took = ?began.elapsed(), "pulled an image");
        Ok(())
    }
}

/// Why an image cannot have pods here. The kind makes it `NOT_FOUND` for the caller.
fn missing(error: impl std::fmt::Display) -> Reason {
    Reason::new(crate::pods::IMAGE_MISSING, error.to_string())
}
