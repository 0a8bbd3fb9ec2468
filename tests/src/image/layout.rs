//! Images that need not tell the truth: blobs, names and digests are what a test says. An archive
//! or a registry ([`serve`](super::serve)) shows them.

use serde_json::{Value, json};

use super::{Layer, sha256};

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The blobs of images, and the entries of their index.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    blobs: Vec<(String, Vec<u8>)>,
    entries: Vec<Value>,
}

/// A layer of a [`Layout`], as a manifest and a configuration name it.
#[derive(Debug, Clone)]
pub struct LayerOf {
    /// Its entry in manifests.
    pub descriptor: Value,
    /// The digest of its tar stream, as the configuration names it.
    pub diff_id: String,
}

// === impl Layout ===

impl Layout {
    /// Adds a blob under its digest, which is returned. A blob is there once.
    pub fn blob(&mut self, bytes: impl Into<Vec<u8>>) -> String {
        let bytes = bytes.into();
        let digest = sha256(&bytes);
        self.blob_as(&digest, bytes);
        digest
    }

    /// Adds a blob under any digest.
    pub fn blob_as(&mut self, digest: &str, bytes: impl Into<Vec<u8>>) {
        if self.blob_of(digest).is_none() {
            self.blobs.push((digest.to_owned(), bytes.into()));
        }
    }

    pub fn blob_of(&self, digest: &str) -> Option<&[u8]> {
        self.blobs.iter().find(|(name, _)| name == digest).map(|(_, bytes)| &bytes[..])
    }

    /// Adds a layer without compression.
    pub fn layer(&mut self, layer: Layer) -> LayerOf {
        self.tar(layer.finish())
    }

    /// Adds a layer of these bytes.
    pub fn tar(&mut self, tar: Vec<u8>) -> LayerOf {
        let size = tar.len();
        let digest = self.blob(tar);
        LayerOf::new(&digest, size, &digest)
    }

    /// Adds an image of this machine's architecture. Returns its digest.
    pub fn image(&mut self, name: &str, layers: &[LayerOf], config: &Value) -> String {
        self.image_with(name, layers, config, &json!({}), &json!({}))
    }

    /// Adds an image. Fields of its configuration's document and of its manifest may be replaced.
    pub fn image_with(
        &mut self,
        name: &str,
        layers: &[LayerOf],
        config: &Value,
        of_document: &Value,
        of_manifest: &Value,
    ) -> String {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let diff_ids: Vec<_> = layers.iter().map(|layer| &layer.diff_id).collect();
        let document = json!({
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let document = merged(document, of_document).to_string();
        let size = document.len();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": self.blob(document), "size": size},
            "layers": layers.iter().map(|layer| &layer.descriptor).collect::<Vec<_>>(),
        });
        let manifest = merged(manifest, of_manifest).to_string();
        let size = manifest.len();
        let digest = self.blob(manifest);
        self.name(name, &digest, size);
        digest
    }

    /// Gives a manifest a name.
    pub fn name(&mut self, name: &str, digest: &str, size: usize) {
        self.entries.push(json!({
            "mediaType": MANIFEST,
            "digest": digest,
            "size": size,
            "annotations": {"io.containerd.image.name": name},
        }));
    }

    /// The digest that a name has.
    pub fn digest_of(&self, name: &str) -> Option<&str> {
        let entry =
            self.entries.iter().find(|entry| entry["annotations"]["io.containerd.image.name"] == name);
        entry.and_then(|entry| entry["digest"].as_str())
    }

    /// The same images under longer names.
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        for entry in &mut self.entries {
            let name = &mut entry["annotations"]["io.containerd.image.name"];
            *name = format!("{prefix}{}", name.as_str().unwrap_or_default()).into();
        }
        self
    }

    /// The OCI archive.
    pub fn archive(&self) -> Vec<u8> {
        let index = json!({"schemaVersion": 2, "manifests": self.entries}).to_string();
        let start = Layer::new().file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#).file(
            "index.json",
            0o644,
            index.as_bytes(),
        );
        let file = |archive: Layer, (digest, bytes): &(String, Vec<u8>)| {
            archive.file(&format!("blobs/{}", digest.replace(':', "/")), 0o644, bytes)
        };
        self.blobs.iter().fold(start, file).finish()
    }
}

// === impl LayerOf ===

impl LayerOf {
    /// A layer that is described by any digests.
    pub fn new(digest: &str, size: usize, diff_id: &str) -> Self {
        let descriptor = json!({"mediaType": LAYER, "digest": digest, "size": size});
        Self { descriptor, diff_id: diff_id.to_owned() }
    }
}

/// The configuration of an image whose process is this command.
pub fn config(entrypoint: &[&str]) -> Value {
    json!({"Entrypoint": entrypoint, "Env": ["PATH=/usr/bin:/bin"]})
}

/// An object with the fields of another one.
fn merged(mut object: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().into_iter().flatten() {
        object[name] = value.clone();
    }
    object
}
