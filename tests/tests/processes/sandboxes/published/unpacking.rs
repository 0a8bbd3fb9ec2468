//! Published faults of programs that read and unpack images.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use porch_fn_tests::image::layout::{Layout, config};
use porch_fn_tests::image::{Layer, serve};
use porch_fn_tests::image_user::ImageUser;
use serde_json::json;
use tar::EntryType;

use super::super::bounds::{MOST_MEMORY, peak};
use super::super::{NAME, programs, shell, stdout};
use super::{SECRET, outside, state};

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2021_29136_no_entry_replaces_the_root() {
    for user in ImageUser::all() {
        let folder = outside(&user);
        let before = state(&folder);
        let target = folder.to_str().unwrap();
        for name in [".", "./", "/", "//", "", "..", "a/..", "./."] {
            for kind in [EntryType::Symlink, EntryType::Link] {
                let layer = Layer::new()
                    .folder("a", 0o755)
                    .entry(kind, name, 0o777, Some(target), b"")
                    .file("secret", 0o644, b"replaced")
                    .file("new", 0o644, b"new")
                    .whiteout(".", "secret");
                let image = shell("cat /secret").layer(layer);
                let _ = user.run(&["images", "import", "-"], &image.oci_archive(NAME)).await;
                let ended = user.run(&["run", "--pull", "never", NAME], b"").await;
                assert!(!stdout(&ended).contains(SECRET), "{kind:?} {name:?}: {ended:?}");
                assert!(state(&folder) == before, "{kind:?} {name:?} changed a folder of the machine");
                let _ = user.run(&["images", "prune"], b"").await;
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2021_32760_unpacking_changes_no_mode_of_the_machine() {
    for user in ImageUser::all() {
        let folder = outside(&user);
        fs::set_permissions(folder.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        let before = state(&folder);
        let (file, folder_name) = (format!("{}/secret", folder.display()), folder.display().to_string());
        for layer in [
            Layer::new().symlink("a", &file).entry(EntryType::Link, "b", 0o4777, Some("a"), b""),
            Layer::new().symlink("a", &file).entry(EntryType::Symlink, "a", 0o4777, Some(&file), b""),
            Layer::new().symlink("a", &folder_name).folder("a", 0o700),
            Layer::new().symlink("a", &folder_name).folder("a/", 0o700),
            Layer::new().symlink("a", &file).file("a", 0o4777, b"replaced"),
            Layer::new().symlink("a", &folder_name).file("a/secret", 0o4777, b"replaced"),
            Layer::new().symlink("a", &folder_name).whiteout("a", "secret"),
            Layer::new().symlink("a", &folder_name).opaque("a"),
        ] {
            let image = shell("cat /a /b").layer(Layer::new().file("c", 0o644, b"")).layer(layer);
            let _ = user.run(&["images", "import", "-"], &image.oci_archive(NAME)).await;
            let ended = user.run(&["run", "--pull", "never", NAME], b"").await;
            assert!(!stdout(&ended).contains(SECRET), "{ended:?}");
            assert!(state(&folder) == before, "{:?}", state(&folder));
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2021_41190_a_document_is_only_one_of_manifest_and_index() {
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    for user in ImageUser::all() {
        for fields in [
            json!({"mediaType": INDEX}),
            json!({"manifests": [{"mediaType": "x", "digest": "sha256:0", "size": 1}]}),
            json!({"mediaType": INDEX, "manifests": []}),
        ] {
            let mut layout = Layout::default();
            let layers = [layout.layer(programs().script("function", "echo ran"))];
            layout.image_with("x/both:v1", &layers, &config(&["/function"]), &json!({}), &fields);
            let archive = layout.clone().with_prefix("example.com/").archive();
            let image = format!("{}/x/both:v1", serve(layout).await);
            let pulled = user.run(&["images", "pull", &image], b"").await;
            let imported = user.run(&["images", "import", "-"], &archive).await;
            assert!(
                !pulled.status.success() && !imported.status.success(),
                "{fields}: {pulled:?} {imported:?}"
            );
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2023_25153_no_document_of_an_archive_fills_the_memory() {
    let large = vec![b' '; 256 << 20];
    let digest = "1".repeat(64);
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": format!("sha256:{digest}"), "size": large.len(),
        "annotations": {"io.containerd.image.name": NAME},
    }]});
    let tags = json!([{"Config": "config", "RepoTags": [NAME], "Layers": ["layer"]}]);
    for layer in [
        Layer::new().file("index.json", 0o644, &large),
        Layer::new().file("manifest.json", 0o644, &large),
        Layer::new().file("index.json", 0o644, index.to_string().as_bytes()).file(
            &format!("blobs/sha256/{digest}"),
            0o644,
            &large,
        ),
        Layer::new().file("manifest.json", 0o644, tags.to_string().as_bytes()).file("config", 0o644, &large),
    ] {
        let archive = layer.finish();
        let user = ImageUser::own();
        let (ended, memory) = peak(&user, &["images", "import", "-"], &archive).await;
        assert!(!ended.status.success() && memory < MOST_MEMORY, "{memory} KiB: {ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2025_62518_an_entrys_size_has_one_meaning() {
    // The PAX record says 1024 bytes, the header none. What follows looks like an entry.
    let smuggled = Layer::new().file("smuggled", 0o755, b"x").finish();
    let content = &smuggled[..1024];
    let pax = Layer::new().entry(EntryType::XHeader, "pax", 0o644, None, b"13 size=1024\n").finish();
    let header = Layer::new().file("nested", 0o644, b"").finish();
    let entries = [&pax[..1024], &header[..512], content].concat();
    let layer = [&entries[..], &Layer::new().file("last", 0o644, b"last").finish()].concat();
    for user in ImageUser::all() {
        let mut layout = Layout::default();
        let script =
            "cd /; ls -d smuggled; ls last; set -- $(head -c 2000 nested | od -An -v -t u1 -w1); echo $#";
        let base = Layer::of_programs(&["sh", "ls", "head", "od"]);
        let layers = [layout.layer(base), layout.tar(layer.clone())];
        layout.image("example.com/f:v1", &layers, &config(&["sh", "-c", script]));
        let imported = user.run(&["images", "import", "-"], &layout.archive()).await;
        assert!(imported.status.success(), "{imported:?}");
        let ended = user.run(&["run", "example.com/f:v1"], b"").await;
        assert_eq!(stdout(&ended), "last\n1024\n", "{ended:?}");
        // The same in the archive around it: a document must not be hidden from one of two readers.
        let index = Layer::new().file("index.json", 0o644, b"{}").finish();
        let outer = [&pax[..1024], &header[..512], &index[..1024], &layout.archive()].concat();
        let imported = user.run(&["images", "import", "-"], &outer).await;
        assert!(imported.status.success(), "{imported:?}");
    }
}
