//! Where credentials come from: a file of Docker's form, which may change at any time.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use porch_fn_files::{FileContent, FileSource, WatchedFiles};
use porch_fn_image::Image;
use tokio::sync::watch;

use crate::docker_config::{Credential, DockerConfig};
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
///
/// A changed file is used from the next [`reload`](Self::reload) on: while [`follow`](Self::follow)
/// runs, and at once when a registry refuses the credentials.
#[derive(Clone)]
pub struct CredentialFile {
    is_private: bool,
    file: WatchedFiles<CredentialSource>,
}

/// A file that could be read. Cheap to clone.
#[derive(Clone)]
pub struct CredentialsFileContent {
    /// Whole, for its copy in a Kubernetes Secret.
    pub file: FileContent,
    config: Arc<DockerConfig>,
}

// === impl CredentialsFileContent ===

impl CredentialsFileContent {
    /// The credentials in `file`.
    ///
    /// # Errors
    /// The reason why it is not a docker config.
    pub fn parse(file: FileContent) -> Result<Self, String> {
        let config = DockerConfig::parse(&file.bytes)?.into();
        Ok(Self { file, config })
    }
}

// === impl CredentialSource ===

impl CredentialSource {
    /// Docker's places: `$DOCKER_CONFIG/config.json`, or else `~/.docker/config.json`.
    pub fn default_places() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let place = variable("DOCKER_CONFIG").or_else(|| variable("HOME").map(|home| home.join(".docker")));
        Self::Default(place.map(|place| place.join("config.json")).into_iter().collect())
    }

    /// The text of an error about the file at `path`.
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

    fn parse_config(&self, bytes: &[u8], last_helper: Option<&str>) -> Result<DockerConfig, String> {
        let config = DockerConfig::parse(bytes)?;
        match (self, config.helper) {
            (Self::Private(_), Some(helper)) => Err(format!(
                "it leaves credentials to a program ({helper}), and there is none here: write the credentials \
                 into auths, and remove {helper}"
            )),
            (Self::Private(_), None) if !config.has_auths => Err("it has no auths".to_owned()),
            (Self::Default(_), Some(helper)) if last_helper != Some(helper) => {
                tracing::warn!(
                    helper,
                    "Docker's config.json leaves credentials to a program: only its auths are used"
                );
                Ok(config)
            }
            _ => Ok(config),
        }
    }
}

impl FileSource for CredentialSource {
    /// The file that was found.
    type Content = Option<(PathBuf, FileContent)>;
    type Value = Option<CredentialsFileContent>;
    type Error = String;

    fn name(&self) -> String {
        "registry credentials".to_owned()
    }

    fn read(&self, _: Option<&Self::Content>) -> Result<Self::Content, String> {
        let paths = match self {
            Self::Private(path) => std::slice::from_ref(path),
            Self::Default(paths) => paths,
        };
        for path in paths {
            match file::read(path) {
                Err(FileError::NotFound) if matches!(self, Self::Default(_)) => {}
                Err(error) => return Err(self.problem(path, &error)),
                Ok(content) => return Ok(Some((path.clone(), content))),
            }
        }
        Ok(None)
    }

    fn parse(&self, content: &Self::Content, last: Option<&Self::Value>) -> Result<Self::Value, String> {
        let Some((path, file)) = content else { return Ok(None) };
        let last_helper = last.and_then(Option::as_ref).and_then(|last| last.config.helper);
        let config = self.parse_config(&file.bytes, last_helper);
        let config = config.map_err(|problem| self.problem(path, &problem))?;
        Ok(Some(CredentialsFileContent { file: file.clone(), config: config.into() }))
    }
}

// === impl CredentialFile ===

impl CredentialFile {
    /// The file is read when it is first needed.
    pub fn new(source: CredentialSource) -> Self {
        let is_private = matches!(source, CredentialSource::Private(_));
        Self { is_private, file: WatchedFiles::unread(source, None) }
    }

    /// Reads the file again. What was good stays when it is broken now.
    pub async fn reload(&self) {
        self.file.reload().await;
    }

    /// Reads the file at every `interval`, for ever, and calls `report` with whether it can be used.
    pub async fn follow(self, interval: Duration, report: impl Fn(bool)) {
        self.file.follow(interval, report).await;
    }

    /// Why the file as it was last read is not used, if it is not.
    pub fn last_error(&self) -> Option<String> {
        self.file.last_error()
    }

    /// The last content that could be used; `None` until the file was read once, or while there is none.
    pub fn subscribe(&self) -> watch::Receiver<Option<CredentialsFileContent>> {
        self.file.subscribe()
    }

    /// What to show for this image.
    ///
    /// # Errors
    /// Why `--registry-auth-secret-path` was never usable: then nothing can be shown.
    pub(crate) async fn lookup(&self, image: &Image) -> Result<Option<Credential>, String> {
        match (self.file.value_or_reload(Option::is_some).await, self.last_error()) {
            (Some(good), _) => Ok(good.config.lookup(image).cloned()),
            (None, Some(error)) if self.is_private => Err(error),
            (None, _) => Ok(None),
        }
    }
}

impl fmt::Debug for CredentialFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialFile").field("is_private", &self.is_private).finish_non_exhaustive()
    }
}

// === impl CredentialsFileContent ===

impl fmt::Debug for CredentialsFileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialsFileContent").field("file", &self.file).finish_non_exhaustive()
    }
}
