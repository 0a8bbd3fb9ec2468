//! The store trusts only what it has hashed: neither the names in an archive, nor what it has
//! stored before. A damaged store runs nothing wrong, and heals.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use porch_fn_tests::image::layout::{LayerOf, Layout, config};
use porch_fn_tests::image::{Layer, serve};
use porch_fn_tests::image_user::ImageUser;
use serde_json::{Value, json};

use super::{stderr, stdout};

const TRUSTED: &str = "trusted\n";
const ATTACKER: &str = "attacker";

fn base() -> Layer {
    static BASE: OnceLock<Layer> = OnceLock::new();
    BASE.get_or_init(|| Layer::of_programs(&["sh", "cat"])).clone()
}

/// A layout with the image `x/trusted:v1`, and the image's digest.
fn trusted() -> (Layout, String) {
    let mut layout = Layout::default();
    let layers = [layout.layer(base()), layout.layer(Layer::new().script("function", "echo trusted"))];
    let digest = layout.image("x/trusted:v1", &layers, &config(&["/function"]));
    (layout, digest)
}

/// The layers of an attacker's image.
fn of_attacker(layout: &mut Layout) -> Vec<LayerOf> {
    vec![layout.layer(base()), layout.layer(Layer::new().script("function", "echo attacker"))]
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_blob_with_a_false_name_is_not_taken() {
    let (layout, digest) = trusted();
    let manifest: Value = serde_json::from_slice(layout.blob_of(&digest).unwrap()).unwrap();
    let of_config = manifest["config"]["digest"].as_str().unwrap().to_owned();
    let of_layer = manifest["layers"][1]["digest"].as_str().unwrap().to_owned();
    let registry = serve(layout).await;
    for (victim, what) in [(of_config, "configuration"), (of_layer, "layer")] {
        let mut evil = Layout::default();
        let mut layers = of_attacker(&mut evil);
        let diff_ids: Vec<_> = layers.iter().map(|layer| layer.diff_id.clone()).collect();
        let document = json!({
            "architecture": "amd64", "os": "linux", "config": config(&["/function"]),
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let content = match what {
            "configuration" => document.to_string().into_bytes(),
            _ => evil.blob_of(&layers[1].diff_id).unwrap().to_vec(),
        };
        let false_layer = LayerOf::new(&victim, content.len(), &layers[1].diff_id);
        evil.blob_as(&victim, content);
        layers.push(false_layer);
        evil.image("example.com/harmless:v1", &layers, &config(&["/function"]));
        for user in ImageUser::all() {
            let imported = user.run(&["images", "import", "-"], &evil.archive()).await;
            for image in [format!("{registry}/x/trusted@{digest}"), format!("{registry}/x/trusted:v1")] {
                let ended = user.run(&["run", &image], b"").await;
                assert_eq!(stdout(&ended), TRUSTED, "{what}: {ended:?}");
            }
            assert!(!imported.status.success(), "{what}: the false name is accepted: {imported:?}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_name_with_a_digest_is_only_that_image() {
    let (_, digest) = trusted();
    for user in ImageUser::all() {
        for name in [format!("example.com/x/good@{digest}"), format!("example.com/x/good:v1@{digest}")] {
            for (label, flags) in [(&*name, vec![]), ("example.com/x/other:v1", vec!["--as", &name])] {
                let mut evil = Layout::default();
                let layers = of_attacker(&mut evil);
                evil.image(label, &layers, &config(&["/function"]));
                let flags = [&["images", "import", "-"], &flags[..]].concat();
                let imported = user.run(&flags, &evil.archive()).await;
                for name in [&name, &format!("example.com/x/good@{digest}")] {
                    let ended = user.run(&["run", "--pull", "never", name], b"").await;
                    assert!(!stdout(&ended).contains(ATTACKER), "{name} runs {ended:?}");
                    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
                }
                assert!(!imported.status.success(), "{label} with {flags:?}: {imported:?}");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_true_digest_in_a_name_goes_from_machine_to_machine() {
    let (layout, digest) = trusted();
    let name = format!("{}/x/trusted@{digest}", serve(layout).await);
    for (user, other) in ImageUser::all().into_iter().zip(ImageUser::all()) {
        let pulled = user.run(&["images", "pull", &name], b"").await;
        assert!(pulled.status.success(), "{pulled:?}");
        let archive = user.run(&["images", "export", &name, "-"], b"").await.stdout;
        other.import_archive(&archive).await;
        let ended = other.run(&["run", "--pull", "never", &name], b"").await;
        assert_eq!(stdout(&ended), TRUSTED, "{ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_known_diff_id_shows_no_layer_of_another_image() {
    for user in ImageUser::all() {
        let mut private = Layout::default();
        let secret = private.layer(Layer::new().file("secret", 0o644, b"private content"));
        let layers = [private.layer(base()), secret.clone()];
        private.image("example.com/x/private:v1", &layers, &config(&["cat", "/secret"]));
        user.import_archive(&private.archive()).await;
        let ended = user.run(&["run", "example.com/x/private:v1"], b"").await;
        assert_eq!(stdout(&ended), "private content", "{ended:?}");
        for junk in [&b"junk"[..], b"", b"\x1f\x8b\x08\0\0\0\0\0\0\0", b"\xfd7zXZ\0", &[0; 1024]] {
            let mut thief = Layout::default();
            let base = thief.layer(base());
            let blob = thief.blob(junk);
            let stolen = LayerOf::new(&blob, junk.len(), &secret.diff_id);
            thief.image("x/thief:v1", &[base, stolen], &config(&["cat", "/secret"]));
            let archive = thief.clone().with_prefix("example.com/").archive();
            let registry = serve(thief).await;
            for (archive, image) in
                [(Some(archive), "example.com/x/thief:v1"), (None, &format!("{registry}/x/thief:v1"))]
            {
                let taken = match archive {
                    Some(archive) => user.run(&["images", "import", "-"], &archive).await,
                    None => user.run(&["images", "pull", image], b"").await,
                };
                let ended = user.run(&["run", "--pull", "never", image], b"").await;
                assert!(!stdout(&ended).contains("private"), "{image} with {junk:?}: {ended:?}");
                assert!(!taken.status.success(), "{image} with {junk:?}: {taken:?}");
            }
        }
    }
}

/// Changes a store.
type Change = fn(&Path);

/// What happens to a store.
const DAMAGES: [(&str, Change); 10] = [
    ("no folder of a layer is left", |store| {
        for folder in names_in(&store.join("layers")) {
            fs::remove_dir_all(folder).unwrap();
        }
    }),
    ("the records of layers are empty", |store| {
        for file in names_in(&store.join("layers")).iter().flat_map(|layer| names_in(layer)) {
            if file.is_file() {
                fs::write(file, "").unwrap();
            }
        }
    }),
    ("the files of layers are lost", |store| {
        for folder in names_in(&store.join("layers")).iter().flat_map(|layer| names_in(layer)) {
            if folder.is_dir() {
                fs::remove_dir_all(folder).unwrap();
            }
        }
    }),
    ("blobs are empty", |store| each_file(store, "blobs", |_| Some(Vec::new()))),
    ("blobs are truncated", |store| {
        each_file(store, "blobs", |bytes| Some(bytes[..bytes.len() / 2].to_vec()));
    }),
    ("blobs have other bytes", |store| {
        each_file(store, "blobs", |mut bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            Some(bytes)
        });
    }),
    ("blobs are lost", |store| each_file(store, "blobs", |_| None)),
    ("records of images are truncated", |store| {
        each_file(store, "images", |bytes| Some(bytes[..bytes.len() / 2].to_vec()));
    }),
    ("unpacked files are changed", |store| {
        for tree in names_in(&store.join("layers")) {
            each_file(&tree, "fs", |bytes| Some([b"#!/bin/sh\necho changed\n", &*bytes].concat()));
        }
    }),
    ("unpacked files are lost", |store| {
        for tree in names_in(&store.join("layers")) {
            each_file(&tree, "fs", |_| None);
        }
    }),
];

fn names_in(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Replaces or removes each file below a folder of the store.
fn each_file(store: &Path, folder: &str, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) {
    let mut folders = vec![store.join(folder)];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for path in names_in(&folder) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            match change(fs::read(&path).unwrap()) {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
        }
    }
    assert!(files > 0, "the store has no {folder}");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_damaged_store_heals() {
    let (layout, _) = trusted();
    let registry = serve(layout.clone()).await;
    let image = format!("{registry}/x/trusted:v1");
    let archive = layout.with_prefix(&format!("{registry}/")).archive();
    for user in ImageUser::all() {
        let mut problems = Vec::new();
        for (damage, change) in DAMAGES {
            for remedy in ["import", "pull", "run --pull always", "prune"] {
                let _ = fs::remove_dir_all(user.store());
                user.import_archive(&archive).await;
                change(&user.store());
                // A run does not read the files of layers.
                if !damage.starts_with("unpacked files") {
                    let ended = user.run(&["run", "--pull", "never", &image], b"").await;
                    assert!([Some(0), Some(125)].contains(&ended.status.code()), "{damage}: {ended:?}");
                    assert!(!ended.status.success() || stdout(&ended) == TRUSTED, "{damage}: {ended:?}");
                }
                let healed = match remedy {
                    "import" => user.run(&["images", "import", "-"], &archive).await,
                    "pull" => user.run(&["images", "pull", &image], b"").await,
                    "prune" => user.run(&["images", "prune"], b"").await,
                    _ => user.run(&["run", "--pull", "always", &image], b"").await,
                };
                let pull = if remedy == "prune" { "missing" } else { "never" };
                let ended = user.run(&["run", "--pull", pull, &image], b"").await;
                let exported = user.run(&["images", "export", &image, "-"], b"").await;
                if stdout(&ended) != TRUSTED || !healed.status.success() || !exported.status.success() {
                    let texts = stderr(&healed) + &stderr(&ended) + &stderr(&exported);
                    problems.push(format!("{damage}, {remedy}: {}", texts.trim_end()));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_damaged_blob_is_not_exported() {
    let (layout, _) = trusted();
    let archive = layout.with_prefix("example.com/").archive();
    for user in ImageUser::all() {
        for (damage, change) in DAMAGES.into_iter().filter(|(damage, _)| damage.starts_with("blobs")) {
            let _ = fs::remove_dir_all(user.store());
            user.import_archive(&archive).await;
            change(&user.store());
            let ended = user.run(&["images", "export", "example.com/x/trusted:v1", "-"], b"").await;
            assert!(!ended.status.success(), "{damage}: {} bytes", ended.stdout.len());
            let to = user.sandbox().path("home/exported.tar");
            let to = to.to_str().unwrap();
            let ended = user.run(&["images", "export", "example.com/x/trusted:v1", to], b"").await;
            assert!(!ended.status.success(), "{damage}: {ended:?}");
            let ended = ImageUser::own().run(&["images", "import", to], b"").await;
            assert!(!ended.status.success(), "{damage}: what was exported is an image: {ended:?}");
        }
    }
}
