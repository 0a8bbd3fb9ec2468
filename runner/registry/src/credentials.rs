//! Where credentials come from: a file of Docker's form, which may change at any time.
//!
//! A changed file counts from the next [`reload`](CredentialFile::reload) on: at each tick of whoever follows it, and
//! at once when a registry refuses what we had. What was good before stays until something good replaces it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use parking_lot::Mutex;
use porch_fn_image::Image;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::docker_config::{Credential, DockerConfig, MAX_FILE};
use crate::file::{self, FileError};

/// Which file it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// `--registry-auth-secret-path`: while it cannot be used, what a registry does not give to everybody fails with
    /// the reason.
    Private(PathBuf),
    /// The first of these that is there, else none: all is asked for anonymously.
    Default(Vec<PathBuf>),
}

/// The credentials of all registries. Cheap to clone; clones share one state.
#[derive(Clone)]
pub struct CredentialFile {
    inner: Arc<Inner>,
}

struct Inner {
    source: CredentialSource,
    /// One reads at a time; who waited takes what it found.
    reading: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    content: watch::Sender<Option<CredentialsFileContent>>,
}

#[derive(Default)]
struct State {
    /// Whether anything was read yet.
    read: bool,
    good: Option<Arc<DockerConfig>>,
    error: Option<String>,
    /// Left to a program by the default file: said once.
    helper: Option<&'static str>,
}

/// A file that could be read, whole, for its copy in a Kubernetes Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialsFileContent {
    /// As in the file.
    pub bytes: Bytes,
    /// When it was written, if the file system says so.
    pub modified: Option<SystemTime>,
}

// === impl CredentialSource ===

impl CredentialSource {
    /// Docker's places: `$DOCKER_CONFIG/config.json`, or else `~/.docker/config.json`.
    pub fn default_places() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let place = variable("DOCKER_CONFIG").or_else(|| variable("HOME").map(|home| home.join(".docker")));
        Self::Default(place.map(|place| place.join("config.json")).into_iter().collect())
    }

    /// Reads and checks the file. Blocks.
    fn read(&self) -> Result<Option<(file::Read, DockerConfig)>, String> {
        let paths = match self {
            Self::Private(path) => std::slice::from_ref(path),
            Self::Default(paths) => &paths[..],
        };
        for path in paths {
            match file::read(path, MAX_FILE) {
                Err(FileError::NotFound) if matches!(self, Self::Default(_)) => {}
                Err(error) => return Err(self.problem(path, &error)),
                Ok(read) => {
                    let config =
                        DockerConfig::parse(&read.bytes).map_err(|error| self.problem(path, &error))?;
                    self.check(path, &config)?;
                    return Ok(Some((read, config)));
                }
            }
        }
        Ok(None)
    }

    /// What only matters where these credentials are the ones to use.
    fn check(&self, path: &Path, config: &DockerConfig) -> Result<(), String> {
        if matches!(self, Self::Default(_)) {
            return Ok(());
        }
        if let Some(helper) = config.helper {
            let problem = format!(
                "it leaves credentials to a program ({helper}), and there is none here: write the credentials \
                 into auths, and remove {helper}"
            );
            return Err(self.problem(path, &problem));
        }
        if config.has_auths { Ok(()) } else { Err(self.problem(path, &"it has no auths")) }
    }

    fn problem(&self, path: &Path, problem: &dyn fmt::Display) -> String {
        let path = path.display();
        match self {
            Self::Private(_) => format!(
                "the registry credentials of --registry-auth-secret-path {path} cannot be used: {problem}; mount a \
                 Secret of type kubernetes.io/dockerconfigjson there"
            ),
            Self::Default(_) => format!("the registry credentials of {path} cannot be used: {problem}"),
        }
    }
}

// === impl CredentialFile ===

impl CredentialFile {
    /// The file is read when it is first needed.
    pub fn new(source: CredentialSource) -> Self {
        let inner = Inner {
            source,
            reading: tokio::sync::Mutex::new(()),
            state: Mutex::default(),
            content: watch::Sender::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Reads the file again. What was good stays when it is broken now; whoever reads at the same time is waited for.
    pub async fn reload(&self) {
        let _reading = self.inner.reading.lock().await;
        self.read().await;
    }

    /// Why the file as it was last read is not used, if it is not.
    pub fn last_error(&self) -> Option<String> {
        self.inner.state.lock().error.clone()
    }

    /// The last content that could be used; `None` until the file was read once, or while there is none.
    pub fn subscribe(&self) -> watch::Receiver<Option<CredentialsFileContent>> {
        self.inner.content.subscribe()
    }

    /// What to show for this image.
    ///
    /// # Errors
    /// Why `--registry-auth-secret-path` was never usable: then nothing can be shown.
    pub(crate) async fn lookup(&self, image: &Image) -> Result<Option<Credential>, String> {
        let is_private = matches!(self.inner.source, CredentialSource::Private(_));
        let wanting = |state: &State| !state.read || (is_private && state.good.is_none());
        if wanting(&self.inner.state.lock()) {
            let _reading = self.inner.reading.lock().await;
            if wanting(&self.inner.state.lock()) {
                self.read().await;
            }
        }
        let state = self.inner.state.lock();
        match (&state.good, &state.error) {
            (Some(good), _) => Ok(good.lookup(image).cloned()),
            (None, Some(error)) if is_private => Err(error.clone()),
            (None, _) => Ok(None),
        }
    }

    async fn read(&self) {
        let inner = Arc::clone(&self.inner);
        let read = spawn_blocking(move || inner.source.read()).await;
        // The runtime ends: nobody will ask any more.
        let Ok(read) = read else { return };
        let mut state = self.inner.state.lock();
        state.read = true;
        let found = match read {
            Ok(found) => found,
            Err(error) => {
                if state.error.as_ref() != Some(&error) {
                    tracing::warn!(%error, kept = state.good.is_some(), "registry credentials were not read");
                }
                state.error = Some(error);
                return;
            }
        };
        if state.error.take().is_some() {
            tracing::info!("registry credentials are read again");
        }
        let (content, config) = match found {
            Some((read, config)) => {
                let content = CredentialsFileContent { bytes: read.bytes, modified: read.modified };
                (Some(content), Some(config))
            }
            None => (None, None),
        };
        let helper = config.as_ref().and_then(|config| config.helper);
        if let Some(helper) = helper.filter(|_| state.helper != helper) {
            tracing::warn!(
                helper,
                "Docker's config.json leaves credentials to a program: only its auths are used"
            );
        }
        state.helper = helper;
        state.good = config.map(Arc::new);
        drop(state);
        self.inner.content.send_if_modified(|known| {
            let changed = *known != content;
            *known = content;
            changed
        });
    }
}

impl fmt::Debug for CredentialFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialFile").field("source", &self.inner.source).finish_non_exhaustive()
    }
}

// === impl CredentialsFileContent ===

impl fmt::Debug for CredentialsFileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes.len();
        f.debug_struct("CredentialsFileContent")
            .field("bytes", &format_args!("[{length} bytes]"))
            .field("modified", &self.modified)
            .finish()
    }
}
