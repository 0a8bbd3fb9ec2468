//! Tests of the client against servers on loopback that behave like registries, well or badly.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod authentication;
mod children;
mod places;
mod requests;
mod server;
mod store;
mod transport;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use porch_fn_image::Image;
use porch_fn_registry::{
    Client, CredentialFile, CredentialSource, Credentials, Options, Platform, RegistryError, Roots, roots,
};
use serde_json::{Value, json};

use crate::server::{Server, fixture};
use crate::store::Store;

/// Options without credentials, with plain HTTP on loopback, for linux/amd64.
fn options() -> Options {
    Options {
        platform: Platform::parse("linux/amd64").unwrap(),
        credentials: Credentials::File(CredentialSource::Default(None).watch()),
        roots: plain(&["127.0.0.1"]),
        mirrors: Vec::new(),
        report: Arc::new(|_, _, _| {}),
    }
}

/// The roots of a client that uses plain HTTP for these registries.
fn plain(insecure: &[&str]) -> Roots {
    roots(None, insecure.iter().map(|&registry| registry.to_owned()).collect()).unwrap()
}

fn client() -> Client {
    Client::new(options())
}

/// A client with these credentials.
fn client_with(credentials: CredentialFile) -> Client {
    Client::new(Options { credentials: Credentials::File(credentials), ..options() })
}

/// An image of this registry; `rest` is, for example, `fn:v1`.
fn image(server: &Server, rest: &str) -> Image {
    Image::parse(&format!("{}/{rest}", server.address), "").unwrap()
}

/// Starts an open registry with these images.
async fn open(store: Store) -> Server {
    Server::start(move |seen| store.answer(seen)).await
}

fn malformed(what: &'static str, reason: &str) -> RegistryError {
    RegistryError::Malformed { what, reason: reason.into() }
}

/// A directory with a `config.json` or a CA's certificate.
struct TempDir(tempfile::TempDir);

impl TempDir {
    /// A directory whose `config.json` has this entry for the server.
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
