//! Makes function images: archives that our command line imports, and images in a registry.

pub mod layout;
mod private;
mod push;
mod serve;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

pub use private::serve_private;
pub use push::{push, push_index};
pub use serve::{Slow, serve, serve_slowly};

/// How the layers of an image are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressed {
    Not,
    Gzip,
    Zstd,
}

/// One layer: the tar stream of its files.
pub struct Layer(Builder<Vec<u8>>);

/// An image: layers, lowest first, and the configuration of its process.
#[derive(Debug, Clone)]
pub struct Image {
    layers: Vec<(Vec<u8>, Compressed)>,
    config: Value,
    architecture: String,
}

/// A blob of an image, by its digest.
#[derive(Clone)]
struct Blob {
    digest: String,
    bytes: Vec<u8>,
}

/// The documents and layers of an image.
struct Parts {
    manifest: Blob,
    config: Blob,
    layers: Vec<Blob>,
}

/// The digest of these bytes, as images name it.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest.as_ref().iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

// === impl Layer ===

impl Clone for Layer {
    fn clone(&self) -> Self {
        Self(Builder::new(self.0.get_ref().clone()))
    }
}

impl Default for Layer {
    fn default() -> Self {
        Self::new()
    }
}

impl Layer {
    pub fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    /// A layer with programs of this machine and the libraries that they need.
    pub fn of_programs(programs: &[&str]) -> Self {
        let mut files = Vec::new();
        for program in programs {
            let found = output("sh", &["-c", &format!("command -v {program}")]);
            files.push((format!("bin/{program}"), found.trim().to_owned()));
            files.extend(libraries(found.trim()));
        }
        Self::of_files(files)
    }

    /// A layer with the libraries that a program of this machine needs.
    pub fn of_libraries(program: &str) -> Self {
        Self::of_files(libraries(program).collect())
    }

    /// A layer with these files: their names in it, and their paths on this machine.
    fn of_files(mut files: Vec<(String, String)>) -> Self {
        files.sort();
        files.dedup();
        files.into_iter().fold(Self::new(), |layer, (name, path)| {
            layer.file(&name, 0o755, &std::fs::read(&path).expect("a program or library"))
        })
    }

    /// A layer with this machine's Python and its library.
    pub fn of_python() -> Self {
        let facts = output(
            "python3",
            &[
                "-c",
                "import os, sys, sysconfig; print(os.path.realpath(sys.executable)); \
            print(sysconfig.get_path('stdlib'))",
            ],
        );
        let (program, library) = facts.trim().split_once('\n').expect("two lines");
        // Of some installations, `python3` is only a script that finds the program.
        let libraries = output("ldd", &[program]);
        let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        let layer = [program].into_iter().chain(libraries).fold(Self::new(), |layer, path| {
            layer.file(path.trim_start_matches('/'), 0o755, &std::fs::read(path).expect("a file"))
        });
        layer.tree(Path::new(library)).symlink("bin/python", program)
    }

    /// Adds a folder with all that it contains, without what only developers need.
    fn tree(self, folder: &Path) -> Self {
        const LEFT_OUT: [&str; 6] =
            ["__pycache__", "dist-packages", "idlelib", "site-packages", "test", "tkinter"];
        let entries =
            std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.fold(self, |layer, path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if LEFT_OUT.contains(&name) || name.starts_with("config-") {
                return layer;
            }
            if path.is_dir() {
                return layer.tree(&path);
            }
            match std::fs::read(&path) {
                Ok(content) => {
                    layer.file(path.to_str().expect("text").trim_start_matches('/'), 0o755, &content)
                }
                Err(_) => layer,
            }
        })
    }

    pub fn file(self, name: &str, mode: u32, content: &[u8]) -> Self {
        self.entry(EntryType::Regular, name, mode, None, content)
    }

    pub fn script(self, name: &str, body: &str) -> Self {
        self.file(name, 0o755, format!("#!/bin/sh\n{body}\n").as_bytes())
    }

    pub fn folder(self, name: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, name, mode, None, b"")
    }

    pub fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, 0o777, Some(target), b"")
    }

    pub fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, 0o644, Some(target), b"")
    }

    /// Hides a name of lower layers.
    pub fn whiteout(self, parent: &str, name: &str) -> Self {
        self.file(&format!("{parent}/.wh.{name}"), 0o644, b"")
    }

    /// Hides all names of a folder in lower layers.
    pub fn opaque(self, folder: &str) -> Self {
        self.file(&format!("{folder}/.wh..wh..opq"), 0o644, b"")
    }

    /// An entry of any kind. The name is written as it is, also if it leads out of the image.
    pub fn entry(
        mut self,
        kind: EntryType,
        name: &str,
        mode: u32,
        target: Option<&str>,
        data: &[u8],
    ) -> Self {
        const LONGEST: usize = 100;
        if let Some(target) = target.filter(|target| target.len() > LONGEST) {
            let long = self.entry(EntryType::GNULongLink, "././@LongLink", 0o644, None, target.as_bytes());
            return long.entry(kind, name, mode, Some(&target[..LONGEST]), data);
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_700_000_000);
        header.set_size(data.len() as u64);
        if name.len() >= 100 {
            // The library writes a header of its own for a long name.
            self.0.append_data(&mut header, name, data).expect("memory");
            return self;
        }
        let gnu = header.as_gnu_mut().expect("a header of that kind");
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        if let Some(target) = target {
            gnu.linkname[..target.len()].copy_from_slice(target.as_bytes());
        }
        header.set_cksum();
        self.0.append(&header, data).expect("memory");
        self
    }

    /// The tar stream.
    pub fn finish(self) -> Vec<u8> {
        self.0.into_inner().expect("memory")
    }
}

/// The libraries of a program: their names in an image, and their paths. A static program has none.
pub fn libraries(program: &str) -> impl Iterator<Item = (String, String)> {
    let lines = output("ldd", &[program]);
    let words: Vec<_> =
        lines.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect();
    words.into_iter().map(|word| (word.trim_start_matches('/').to_owned(), word))
}

/// The output of a program; empty if it fails.
fn output(program: &str, args: &[&str]) -> String {
    let ended = Command::new(program).args(args).output().expect("a program of this machine");
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

// === impl Image ===

impl Image {
    /// An image whose process is this command.
    pub fn new(entrypoint: &[&str]) -> Self {
        let config = json!({"Entrypoint": entrypoint, "Env": ["PATH=/usr/bin:/bin"]});
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        Self { layers: Vec::new(), config, architecture: architecture.to_owned() }
    }

    pub fn layer(self, layer: Layer) -> Self {
        self.layer_as(layer, Compressed::Gzip)
    }

    pub fn layer_as(mut self, layer: Layer, compressed: Compressed) -> Self {
        self.layers.push((layer.finish(), compressed));
        self
    }

    /// Sets a field of the configuration, such as `User`.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.config[field] = value.into();
        self
    }

    pub fn for_architecture(mut self, architecture: &str) -> Self {
        architecture.clone_into(&mut self.architecture);
        self
    }

    fn parts(&self) -> Parts {
        let diff_ids: Vec<_> = self.layers.iter().map(|(tar, _)| sha256(tar)).collect();
        let config = json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = Blob::new(config.to_string().into_bytes());
        let layers: Vec<_> = self.layers.iter().map(|(tar, how)| Blob::new(compress(tar, *how))).collect();
        let describe = |blob: &Blob, kind: &str| {
            let media_type = format!("application/vnd.oci.image.{kind}");
            json!({"mediaType": media_type, "digest": blob.digest, "size": blob.bytes.len()})
        };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": describe(&config, "config.v1+json"),
            "layers": layers.iter().map(|layer| describe(layer, "layer.v1.tar")).collect::<Vec<_>>(),
        });
        Parts { manifest: Blob::new(manifest.to_string().into_bytes()), config, layers }
    }

    /// An OCI archive.
    pub fn oci_archive(&self, name: &str) -> Vec<u8> {
        let Parts { manifest, config, layers } = self.parts();
        let index = json!({
            "schemaVersion": 2,
            "manifests": [{
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": manifest.digest,
                "size": manifest.bytes.len(),
                "annotations": {"io.containerd.image.name": name},
            }],
        });
        let archive = Layer::new().file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#).file(
            "index.json",
            0o644,
            index.to_string().as_bytes(),
        );
        let blobs = layers.iter().chain([&manifest, &config]);
        let file = |archive: Layer, blob: &Blob| {
            archive.file(&format!("blobs/{}", blob.digest.replace(':', "/")), 0o644, &blob.bytes)
        };
        blobs.fold(archive, file).finish()
    }

    /// An archive as old versions of `docker save` write it.
    pub fn docker_archive(&self, name: &str) -> Vec<u8> {
        let config = self.parts().config;
        let names: Vec<_> = (0..self.layers.len()).map(|number| format!("{number}/layer.tar")).collect();
        let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": names}]);
        let archive = Layer::new().file("manifest.json", 0o644, manifest.to_string().as_bytes()).file(
            "config.json",
            0o644,
            &config.bytes,
        );
        let layers = names.iter().zip(&self.layers);
        layers.fold(archive, |archive, (name, (tar, _))| archive.file(name, 0o644, tar)).finish()
    }
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        Self { digest: sha256(&bytes), bytes }
    }
}

fn compress(tar: &[u8], how: Compressed) -> Vec<u8> {
    match how {
        Compressed::Not => tar.to_vec(),
        Compressed::Gzip => {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            gzip.write_all(tar).expect("memory");
            gzip.finish().expect("memory")
        }
        Compressed::Zstd => zstd::stream::encode_all(tar, 1).expect("memory"),
    }
}
