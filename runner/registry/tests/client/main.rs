//! The client against servers on loopback that do what registries do, and what they should not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod authentication;
mod children;
mod hidden;
mod limits;
mod places;
mod requests;
mod server;
mod store;
mod transport;

use std::path::{Path, PathBuf};
use std::time::Duration;

use porch_fn_image::Image;
use porch_fn_registry::{Client, CredentialFile, CredentialSource, LOOKUP_WITHIN, Options, Platform, Roots};

/// No credentials, plain HTTP on loopback, linux/amd64.
fn options() -> Options {
    Options {
        platform: Platform::parse("linux/amd64").unwrap(),
        insecure: vec!["127.0.0.1".into()],
        credentials: CredentialFile::new(CredentialSource::Default(Vec::new())),
        roots: Roots::system(),
        user_agent: "porch-fn-test".into(),
        within: LOOKUP_WITHIN,
    }
}

fn client() -> Client {
    Client::new(options())
}

fn image(registry: &str, rest: &str) -> Image {
    Image::parse(&format!("{registry}/{rest}"), "").unwrap()
}

/// A `config.json` of its own directory.
struct ConfigFile {
    directory: tempfile::TempDir,
}

impl ConfigFile {
    fn new(auths: &serde_json::Value) -> Self {
        let file = Self { directory: tempfile::tempdir().unwrap() };
        file.write(&serde_json::json!({ "auths": auths }).to_string());
        file
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("config.json")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }

    fn private(&self) -> CredentialFile {
        private(&self.path())
    }
}

fn private(path: &Path) -> CredentialFile {
    CredentialFile::new(CredentialSource::Private(path.to_owned()))
}

/// Lets time pass while no request is under way.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
