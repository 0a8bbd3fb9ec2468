//! Images as a registry has them.

use std::collections::HashMap;

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::server::{Reply, Seen};

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// What is under which path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    at: HashMap<String, (&'static str, Bytes)>,
}

impl Store {
    /// The images `a` and `b` with the tags `v1` and `v2`.
    pub(crate) fn of_images() -> Self {
        let mut store = Self::default();
        for (name, tag) in [("a", "v1"), ("a", "v2"), ("b", "v1"), ("b", "v2")] {
            store.image(name, tag, OCI_MANIFEST);
        }
        store
    }

    /// An image that runs `/function TAG`; its manifest's digest.
    pub(crate) fn image(&mut self, name: &str, tag: &str, media_type: &'static str) -> String {
        let config = json!({"os": "linux", "config": {"Entrypoint": ["/function"], "Cmd": [tag]}});
        let config = Bytes::from(config.to_string());
        let digest = sha256(&config);
        let manifest =
            json!({"schemaVersion": 2, "mediaType": media_type, "config": {"digest": digest}, "layers": []});
        self.at.insert(format!("/v2/{name}/blobs/{digest}"), ("application/octet-stream", config));
        self.manifest(name, tag, media_type, &manifest)
    }

    /// An index of these: `(digest, os, architecture)`.
    pub(crate) fn index(
        &mut self,
        name: &str,
        tag: &str,
        media_type: &'static str,
        entries: &[(&str, &str, &str)],
    ) -> String {
        let entry = |(digest, os, architecture): &(&str, &str, &str)| json!({"digest": digest, "size": 1, "platform": {"os": os, "architecture": architecture}});
        let manifests: Vec<_> = entries.iter().map(entry).collect();
        let index = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": manifests});
        self.manifest(name, tag, media_type, &index)
    }

    pub(crate) fn manifest(
        &mut self,
        name: &str,
        tag: &str,
        media_type: &'static str,
        manifest: &Value,
    ) -> String {
        let manifest = Bytes::from(manifest.to_string());
        let digest = sha256(&manifest);
        for reference in [tag, &digest] {
            self.at.insert(format!("/v2/{name}/manifests/{reference}"), (media_type, manifest.clone()));
        }
        digest
    }

    /// Answers like an open registry.
    pub(crate) fn answer(&self, seen: &Seen) -> Reply {
        let Some((media_type, bytes)) = self.at.get(&seen.path) else { return Reply::new(404, "{}") };
        let reply = Reply::new(200, bytes.clone()).with("content-type", *media_type);
        let is_manifest = seen.path.contains("/manifests/");
        if is_manifest { reply.with("docker-content-digest", sha256(bytes)) } else { reply }
    }

    /// Answers like one that wants this in `Authorization`, and asks for it with this challenge.
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
