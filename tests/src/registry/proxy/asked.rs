//! What a registry is asked.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Request};

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Whether there is a registry.
    Ping,
    /// A manifest or index.
    Manifest,
    /// A layer or image configuration.
    Blob,
    /// The tag list, or a page of it.
    Tags,
    /// A token.
    Token,
    /// Anything else.
    Other,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// `HEAD`, `GET`.
    pub method: Method,
    /// What for.
    pub kind: Kind,
    /// Of which repository; of a token, that of its scope.
    pub repository: String,
    /// The tag or digest.
    pub reference: String,
    /// The HTTP status of the answer.
    pub status: u16,
}

// === impl Asked ===

impl Asked {
    pub(super) fn of(request: &Request<Bytes>) -> Self {
        let (kind, repository, reference) = Self::read(request);
        Self { method: request.method().clone(), kind, repository, reference, status: 0 }
    }

    fn read(request: &Request<Bytes>) -> (Kind, String, String) {
        let path = request.uri().path();
        if path == "/token" {
            let scope = fields(request).remove("scope").unwrap_or_default();
            return (Kind::Token, scope.split(':').nth(1).unwrap_or_default().to_owned(), String::new());
        }
        let Some(path) = path.strip_prefix("/v2/") else {
            return (Kind::Other, String::new(), String::new());
        };
        let kinds = [("/manifests/", Kind::Manifest), ("/blobs/", Kind::Blob), ("/tags/list", Kind::Tags)];
        let found = kinds.iter().find_map(|&(part, kind)| Some((kind, path.rsplit_once(part)?)));
        match found {
            Some((kind, (repository, reference))) => (kind, repository.to_owned(), reference.to_owned()),
            None if path.is_empty() => (Kind::Ping, String::new(), String::new()),
            None => (Kind::Other, String::new(), String::new()),
        }
    }
}

/// The fields of a request's query or, with `POST`, of its form.
pub(super) fn fields(request: &Request<Bytes>) -> BTreeMap<String, String> {
    let form = String::from_utf8_lossy(request.body());
    let text =
        if request.method() == Method::POST { &form } else { request.uri().query().unwrap_or_default() };
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decoded(name), decoded(value))).collect()
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (byte, hex) {
            (b'%', Some(hex)) => {
                decoded.push(hex);
                at += 2;
            }
            (b'+', _) => decoded.push(b' '),
            _ => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
