//! The credentials of the user who runs the program: the files of podman, skopeo and Docker, and
//! the helpers that these files name. Servers have no user, and do not use this.

use std::io;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use porch_fn_image::Image;
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::docker_config::{Credential, DOCKER_HUB, DockerConfig};
use crate::file::{self, variable};

/// How long a helper may take. It may ask the user to unlock a key ring.
const HELPER_WITHIN: Duration = Duration::from_secs(10);
/// A pull sends a request for each layer, and some helpers take a second for each answer.
const KEPT_FOR: Duration = Duration::from_mins(1);
const MAX_KEPT: u64 = 1024;

/// What a helper prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

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
            None => Self::new(podman.chain(file::of_docker())),
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
                format!("the registry credentials of {place} cannot be used: {problem}; fix the file")
            };
            let Some(bytes) = file::read(path).map_err(unusable)? else { continue };
            let config = DockerConfig::parse(&bytes).map_err(unusable)?;
            let found = match config.helper(image) {
                Some(helper) => {
                    let failed = |problem| format!("a credential helper that {place} names {problem}");
                    ask(helper, image.registry()).await.map_err(failed)?
                }
                None => config.lookup(image).cloned(),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// Asks a helper. The errors have no text of it, which may contain a secret.
async fn ask(helper: &str, registry: &str) -> Found {
    let server = if registry == DOCKER_HUB { "https://index.docker.io/v1/" } else { registry };
    let problem = match timeout(HELPER_WITHIN, run(helper, server)).await {
        Ok(Ok(ended)) if ended.status.success() => match serde_json::from_slice(&ended.stdout) {
            Ok(Answer { username, secret: token }) if username == "<token>" => {
                return Ok(Some(Credential::Identity { token }));
            }
            Ok(Answer { username: user, secret: password }) => {
                return Ok(Some(Credential::Basic { user, password }));
            }
            Err(_) => "sent a malformed answer",
        },
        // The text by which Docker knows this case.
        Ok(Ok(ended)) if String::from_utf8_lossy(&ended.stdout).contains("credentials not found") => {
            return Ok(None);
        }
        Ok(Ok(_)) => "failed",
        Ok(Err(_)) => "cannot be run",
        Err(_) => "did not answer in 10 s",
    };
    Err(format!("{problem}: try `echo {server} | docker-credential-{helper} get`"))
}

/// Runs a helper. Dropping the future kills it.
async fn run(helper: &str, server: &str) -> io::Result<Output> {
    let mut command = Command::new(format!("docker-credential-{helper}"));
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // Fails if the helper does not read its input: it may need none.
        let _ = stdin.write_all(server.as_bytes()).await;
    }
    child.wait_with_output().await
}
