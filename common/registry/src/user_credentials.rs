//! The credentials of the user who runs the program: the files of podman, skopeo and Docker, and
//! the helpers that these files name. Servers have no user, and do not use this.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use moka::sync::Cache;
use porch_fn_image::Image;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::credentials::{docker_file, variable};
use crate::docker_config::{Credential, DOCKER_HUB, DockerConfig, Origin};
use crate::file;
use crate::secret::Secret;

/// How long a helper may take. It may ask the user to unlock a key ring.
const HELPER_WITHIN: Duration = Duration::from_secs(10);
/// A pull sends a request for each layer, and some helpers take a second for each answer.
const KEPT_FOR: Duration = Duration::from_mins(1);
const MAX_KEPT: u64 = 1024;

type Found = Result<Option<Credential>, String>;

/// The files, and what they and their helpers answered lately. Cheap to clone.
#[derive(Clone)]
pub struct UserCredentials {
    files: Arc<[PathBuf]>,
    /// By repository, because an entry may be for a part of a registry.
    known: Cache<String, Found>,
}

// === impl UserCredentials ===

impl UserCredentials {
    /// The files in which podman looks, in its order: `$REGISTRY_AUTH_FILE` and no other, or else
    /// `containers/auth.json` in the user's folder for this session and in that for settings, and
    /// Docker's `config.json`.
    pub fn default_places() -> Self {
        let settings = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
        let podman = [variable("XDG_RUNTIME_DIR"), settings];
        let podman = podman.into_iter().flatten().map(|folder| folder.join("containers/auth.json"));
        match variable("REGISTRY_AUTH_FILE") {
            Some(file) => Self::new([file]),
            None => Self::new(podman.chain(docker_file())),
        }
    }

    /// These files, the first with a credential for an image counts. Files may be missing.
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let known = Cache::builder().max_capacity(MAX_KEPT).time_to_live(KEPT_FOR).build();
        Self { files: files.into_iter().collect(), known }
    }

    pub(crate) async fn lookup(&self, image: &Image) -> Found {
        if let Some(found) = self.known.get(image.repository()) {
            return found;
        }
        let found = self.find(image).await;
        self.known.insert(image.repository().to_owned(), found.clone());
        found
    }

    /// The next lookup reads the files again. A failure stays: the helper may have hung.
    pub(crate) fn forget(&self, image: &Image) {
        if self.known.get(image.repository()).is_some_and(|found| found.is_ok()) {
            self.known.invalidate(image.repository());
        }
    }

    async fn find(&self, image: &Image) -> Found {
        for path in &*self.files {
            let place = path.display();
            let unusable = |problem| {
                format!(
                    "the registry credentials of {place} cannot be used: {problem}; fix or remove the file"
                )
            };
            let Some(bytes) = file::read(path).map_err(unusable)? else { continue };
            let config = DockerConfig::parse(&bytes).map_err(unusable)?;
            let found = match config.origin(image) {
                None => None,
                Some(Origin::Entry(credential)) => Some(credential.clone()),
                Some(Origin::Helper(helper)) => {
                    let server = server(image);
                    ask(helper, server).await.map_err(|problem| {
                        format!(
                            "the credential helper docker-credential-{helper}, which {place} names, {problem}: try \
                             `echo {server} | docker-credential-{helper} get`"
                        )
                    })?
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// What to do after a registry's refusal.
    pub(crate) fn refused(image: &Image, credential: Option<&Credential>) -> String {
        let (what, again) = match credential {
            Some(_) => ("the credentials for it", " again"),
            None => ("access to the image", ""),
        };
        let registry = image.registry();
        format!(
            "the image's registry refuses {what}: check the image's name, or log in{again} with `docker login \
             {registry}` or `podman login {registry}`"
        )
    }
}

/// The name by which helpers know the image's registry.
fn server(image: &Image) -> &str {
    match image.registry() {
        DOCKER_HUB => "https://index.docker.io/v1/",
        registry => registry,
    }
}

/// Runs a helper. The errors have no text of it, which may contain a secret.
async fn ask(helper: &str, server: &str) -> Found {
    let (send, answer) = oneshot::channel();
    let (config, server) = (json!({"credsStore": helper}).to_string(), server.to_owned());
    // Not a blocking task of tokio: a runtime waits for these when it ends, also if a helper hangs.
    thread::spawn(move || send.send(get_credential_from_reader(config.as_bytes(), &server)));
    let Ok(Ok(answer)) = timeout(HELPER_WITHIN, answer).await else {
        return Err(format!("did not answer in {} s", HELPER_WITHIN.as_secs()));
    };
    match answer {
        Ok(DockerCredential::IdentityToken(token)) => {
            Ok(Some(Credential::Identity { token: Secret::new(&token) }))
        }
        Ok(DockerCredential::UsernamePassword(user, _)) if user.is_empty() => Ok(None),
        Ok(DockerCredential::UsernamePassword(user, password)) => {
            Ok(Some(Credential::Basic { user, password: Secret::new(&password) }))
        }
        // The text by which Docker knows this case.
        Err(CredentialRetrievalError::HelperFailure { stdout, .. })
            if stdout.contains("credentials not found") =>
        {
            Ok(None)
        }
        Err(CredentialRetrievalError::HelperFailure { .. }) => Err("failed".to_owned()),
        Err(CredentialRetrievalError::MalformedHelperResponse) => Err("sent a malformed answer".to_owned()),
        Err(_) => Err("cannot be run, or reads no input".to_owned()),
    }
}
