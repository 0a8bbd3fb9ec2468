//! The client against servers on loopback that do what registries do, and what they should not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod authentication;
mod children;
mod places;
mod requests;
mod server;
mod store;
mod transport;

use std::path::{Path, PathBuf};

use porch_fn_image::Image;
use porch_fn_registry::{Client, CredentialFile, CredentialSource, Options, Platform, RegistryError, roots};
use serde_json::{Value, json};

use crate::server::{Server, fixture};

/// No credentials, plain HTTP on loopback, linux/amd64.
fn options() -> Options {
    Options {
        platform: Platform::parse("linux/amd64").unwrap(),
        insecure: vec!["127.0.0.1".into()],
        credentials: CredentialSource::Default(None).watch(),
        roots: roots(None),
    }
}

fn client() -> Client {
    Client::new(options())
}

/// With these credentials.
fn with(credentials: CredentialFile) -> Client {
    Client::new(Options { credentials, ..options() })
}

/// Of this registry, as `fn:v1`.
fn image(server: &Server, rest: &str) -> Image {
    Image::parse(&format!("{}/{rest}", server.address), "").unwrap()
}

fn malformed(what: &'static str, reason: &str) -> RegistryError {
    RegistryError::Malformed { what, reason: reason.into() }
}

/// A `config.json` of its own directory, or a CA's certificate in one.
struct TempDir(tempfile::TempDir);

impl TempDir {
    /// With this entry for the server.
    fn config(server: &Server, entry: &Value) -> Self {
        let file = Self(tempfile::tempdir().unwrap());
        file.write(&json!({"auths": {server.address.to_string(): entry}}).to_string());
        file
    }

    fn ca(certificate: &str) -> Self {
        let directory = Self(tempfile::tempdir().unwrap());
        directory.put("ca.crt", certificate);
        directory
    }

    fn put(&self, name: &str, certificate: &str) {
        std::fs::copy(fixture(certificate), self.path().join(name)).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self) -> PathBuf {
        self.path().join("config.json")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.file(), text).unwrap();
    }

    fn credentials(&self) -> CredentialFile {
        CredentialSource::Private(self.file()).watch()
    }
}
