//! The images of a test registry.

use std::collections::HashMap;

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::server::{Reply, Seen};

/// Manifests and blobs by path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    at: HashMap<String, Bytes>,
}

impl Store {
    /// Has the images `a` and `b` with the tags `v1` and `v2`.
    pub(crate) fn of_images() -> Self {
        let mut store = Self::default();
        for (name, tag) in [("a", "v1"), ("a", "v2"), ("b", "v1"), ("b", "v2")] {
            store.image(name, tag);
        }
        store
    }

    /// Adds an image with the command `/function TAG`, and returns its manifest's digest.
    pub(crate) fn image(&mut self, name: &str, tag: &str) -> String {
        let config = json!({"os": "linux", "config": {"Entrypoint": ["/function"], "Cmd": [tag]}});
        let config = Bytes::from(config.to_string());
        let digest = sha256(&config);
        let manifest = json!({"schemaVersion": 2, "config": {"digest": digest}, "layers": []});
        self.at.insert(format!("/v2/{name}/blobs/{digest}"), config);
        self.manifest(name, tag, &manifest)
    }

    /// Adds an index of these entries, `(digest, os, architecture)`, and returns its digest.
    pub(crate) fn index(&mut self, name: &str, tag: &str, entries: &[(&str, &str, &str)]) -> String {
        let entry = |(digest, os, architecture): &(&str, &str, &str)| json!({"digest": digest, "size": 1, "platform": {"os": os, "architecture": architecture}});
        let manifests: Vec<_> = entries.iter().map(entry).collect();
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        self.manifest(name, tag, &index)
    }

    pub(crate) fn manifest(&mut self, name: &str, tag: &str, manifest: &Value) -> String {
        let manifest = Bytes::from(manifest.to_string());
        let digest = sha256(&manifest);
        for reference in [tag, &digest] {
            self.at.insert(format!("/v2/{name}/manifests/{reference}"), manifest.clone());
        }
        digest
    }

    /// Answers like an open registry.
    pub(crate) fn answer(&self, seen: &Seen) -> Reply {
        let Some(bytes) = self.at.get(&seen.path) else { return Reply::new(404, "{}") };
        let reply = Reply::new(200, bytes.clone());
        let is_manifest = seen.path.contains("/manifests/");
        if is_manifest { reply.with("docker-content-digest", sha256(bytes)) } else { reply }
    }

    /// Answers like a registry that requires this `Authorization` and sends this challenge.
    pub(crate) fn guarded(&self, seen: &Seen, authorization: &str, challenge: &str) -> Reply {
        if seen.authorization() == Some(authorization) {
            self.answer(seen)
        } else {
            Reply::new(401, "{}").with("www-authenticate", challenge)
        }
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold("sha256:".to_owned(), |hex, byte| format!("{hex}{byte:02x}"))
}
