//! Registry credentials: from a file in Docker's format, which may change at any time, or those of
//! the user.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use porch_fn_files::{FileSource, WatchedFiles};
use porch_fn_image::Image;

use crate::RegistryError;
use crate::docker_config::{Credential, DockerConfig};
use crate::file;
use crate::user_credentials::UserCredentials;

/// Where a client gets credentials from.
#[derive(Clone)]
pub enum Credentials {
    /// The file of a server, which runs no credential helper.
    File(CredentialFile),
    /// What the user has, for a command line.
    User(UserCredentials),
}

/// The file with the credentials of all registries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// `--registry-auth-secret-path`.
    Private(PathBuf),
    /// Docker's own file, which may be missing. With `None`, all requests are anonymous.
    Default(Option<PathBuf>),
}

/// The credentials, updated when the file changes. If a registry refuses them, the file is read
/// again at once.
pub type CredentialFile = WatchedFiles<CredentialSource>;

/// The content of a valid file. Cheap to clone. It has no `Debug`, because the bytes are secret.
#[derive(Clone)]
pub struct CredentialsFileContent {
    /// The whole file, to copy it into a Kubernetes Secret.
    pub bytes: Bytes,
    config: Arc<DockerConfig>,
}

// === impl CredentialsFileContent ===

impl CredentialsFileContent {
    /// Parses the content of a file.
    ///
    /// # Errors
    /// Why the content is not a valid Docker config.
    pub fn parse(bytes: Bytes) -> Result<Self, String> {
        let config = DockerConfig::parse(&bytes)?.into();
        Ok(Self { bytes, config })
    }
}

// === impl CredentialSource ===

impl CredentialSource {
    /// Docker's default path.
    pub fn default_place() -> Self {
        Self::Default(file::of_docker())
    }

    /// The file is read when it is needed for the first time.
    pub fn watch(self) -> CredentialFile {
        WatchedFiles::unread(self, None)
    }

    /// Describes a problem of the file to the user.
    fn problem(&self, problem: &str) -> String {
        match self {
            Self::Private(path) => format!(
                "the registry credentials of --registry-auth-secret-path {} cannot be used: {problem}; mount a \
                 Secret of type kubernetes.io/dockerconfigjson there",
                path.display()
            ),
            Self::Default(path) => format!(
                "the registry credentials of {} cannot be used: {problem}; fix the file, or name another one with \
                 --enable-private-registries and --registry-auth-secret-path",
                path.as_deref().unwrap_or(Path::new("")).display()
            ),
        }
    }
}

impl FileSource for CredentialSource {
    type Content = Option<Bytes>;
    type Value = Option<CredentialsFileContent>;
    type Error = String;

    fn name(&self) -> String {
        "registry credentials".to_owned()
    }

    fn read(&self, _: Option<&Self::Content>) -> Result<Self::Content, String> {
        let (Self::Private(path) | Self::Default(Some(path))) = self else { return Ok(None) };
        match file::read(path) {
            Ok(None) if matches!(self, Self::Private(_)) => Err(self.problem("there is no such file")),
            read => read.map_err(|problem| self.problem(&problem)),
        }
    }

    fn parse(&self, content: &Self::Content) -> Result<Self::Value, String> {
        let Some(bytes) = content.clone() else { return Ok(None) };
        let content = CredentialsFileContent::parse(bytes).map_err(|problem| self.problem(&problem))?;
        match (self, content.config.helper_key()) {
            (Self::Private(_), Some(helper)) => {
                return Err(self.problem(&format!(
                    "it uses a credential helper ({helper}), which the runner cannot run: write the credentials into \
                     the key auths, and remove the key {helper}"
                )));
            }
            (Self::Private(_), None) if !content.config.has_auths => {
                return Err(self.problem("it has no auths"));
            }
            (Self::Default(_), Some(helper)) => tracing::warn!(
                helper,
                "Docker's config.json uses a credential helper, which the runner cannot run: only its auths are used"
            ),
            _ => {}
        }
        Ok(Some(content))
    }
}

// === impl Credentials ===

impl Credentials {
    /// Returns the credential for this image.
    ///
    /// # Errors
    /// Why the file cannot be used, if no earlier version of it was usable. Why a helper failed.
    pub(crate) async fn lookup(&self, image: &Image) -> Result<Option<Credential>, String> {
        let file = match self {
            Self::File(file) => file,
            Self::User(user) => return user.lookup(image).await,
        };
        match file.value_or_reload(Option::is_some).await {
            Some(content) => Ok(content.config.lookup(image).cloned()),
            None => file.last_error().map_or(Ok(None), Err),
        }
    }

    /// Like [`lookup`](Self::lookup), after the credentials were read again.
    pub(crate) async fn reload(&self, image: &Image) -> Result<Option<Credential>, String> {
        match self {
            Self::File(file) => file.reload().await,
            Self::User(user) => user.forget(image),
        }
        self.lookup(image).await
    }

    /// The error for an image that the registry refuses with this credential, or without any.
    pub(crate) fn refused(&self, image: &Image, credential: Option<&Credential>) -> RegistryError {
        let (again, registry) = (if credential.is_some() { " again" } else { "" }, image.registry());
        match self {
            Self::File(_) => RegistryError::Unauthorized,
            Self::User(_) => RegistryError::Credentials(format!(
                "the image's registry refuses access to the image: check the image's name, or log in{again} with \
                 `docker login {registry}` or `podman login {registry}`"
            )),
        }
    }
}
