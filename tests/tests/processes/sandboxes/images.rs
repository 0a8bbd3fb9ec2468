//! The image store through the command line: archives, layers, refusals, collection.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use porch_fn_tests::image::{Compressed, Image, Layer};
use porch_fn_tests::image_user::ImageUser;
use porch_fn_tests::process::eventually;

use super::{NAME, programs, shell, stderr, stdout};

/// Layers that hide, replace and link.
fn layered() -> Image {
    let first = Layer::new()
        .file("data/kept", 0o644, b"first")
        .file("data/hidden", 0o644, b"first")
        .file("data/replaced", 0o644, b"first")
        .file("all/a", 0o644, b"first")
        .folder("link-target", 0o755)
        .symlink("link", "link-target");
    let second = Layer::new()
        .whiteout("data", "hidden")
        .file("data/replaced", 0o644, b"second")
        .hard_link("data/again", "data/replaced")
        .opaque("all")
        .file("all/b", 0o644, b"second");
    Image::new(&["sh", "-c", "cd /data; head -n1 *; ls /all; ls -d /link/"])
        .layer_as(programs(), Compressed::Zstd)
        .layer_as(first, Compressed::Gzip)
        .layer_as(second, Compressed::Not)
}

const SEEN: &str = "==> again <==\nsecond\n==> kept <==\nfirst\n==> replaced <==\nsecondb\n/link/\n";

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn layers_are_stacked_or_merged() {
    for user in ImageUser::all() {
        user.import(NAME, &layered()).await;
        let ended = user.run(&["run", NAME], b"").await;
        assert_eq!(stdout(&ended), SEEN, "{ended:?}");
        // Without overlayfs's marks, the layers must be merged. The result is the same.
        for layer in fs::read_dir(user.store().join("layers")).unwrap() {
            let path = layer.unwrap().path().join("contents.json");
            let contents = fs::read_to_string(&path).unwrap();
            fs::write(path, contents.replace("\"has_marks\":true", "\"has_marks\":false")).unwrap();
        }
        let ended = user.run(&["run", NAME], b"").await;
        assert_eq!(stdout(&ended), SEEN, "{ended:?}");
        assert_eq!(fs::read_dir(user.store().join("merged")).unwrap().count(), 1);
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn archives_of_docker_and_our_own_are_read() {
    let user = ImageUser::own();
    user.import_archive(&shell("echo docker").docker_archive(NAME)).await;
    assert_eq!(stdout(&user.run(&["run", NAME], b"").await), "docker\n");
    let list = stdout(&user.run(&["images", "list"], b"").await);
    assert!(list.starts_with("IMAGE") && list.contains(NAME), "{list}");
    let exported = user.run(&["images", "export", NAME, "-"], b"").await;
    let other = ImageUser::own();
    other.import_archive(&exported.stdout).await;
    assert_eq!(stdout(&other.run(&["run", NAME], b"").await), "docker\n");
    let again = other.run(&["images", "export", NAME, "-"], b"").await;
    assert!(again.stdout == exported.stdout, "an image keeps its digests");
    let ended = other.run(&["images", "import", "-", "--as", "example.com/other:v2"], &exported.stdout).await;
    assert_eq!(stdout(&ended), "example.com/other:v2\n");
    for (archive, expected) in [
        (&b"no archive"[..], "archive"),
        (&Layer::default().file("x", 0o644, b"").finish(), "neither index.json nor manifest.json"),
    ] {
        let ended = user.run(&["images", "import", "-"], archive).await;
        assert!(!ended.status.success() && stderr(&ended).contains(expected), "{}", stderr(&ended));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_hostile_layer_is_refused_and_leaves_nothing() {
    for user in ImageUser::all() {
        user.run(&["images", "list"], b"").await;
        for (layer, expected) in [
            (Layer::new().file("../../../out", 0o644, b"x"), "`..`"),
            (Layer::new().hard_link("x", "../../home/secret"), "`..`"),
            (Layer::new().symlink("l", "/").file("l/../../out", 0o644, b"x"), "`..`"),
            (Layer::new().symlink("l", "/proc/self/root").file("l/x", 0o644, b"x"), "leads through"),
            (Layer::new().file("a/.wh...", 0o644, b""), "whiteout"),
        ] {
            let archive = Image::new(&["x"]).layer(layer).oci_archive(NAME);
            let ended = user.run(&["images", "import", "-"], &archive).await;
            assert!(!ended.status.success() && stderr(&ended).contains(expected), "{}", stderr(&ended));
        }
        for folder in ["layers", "images", "tmp"] {
            let left = fs::read_dir(user.store().join(folder)).unwrap().count();
            assert_eq!(left, 0, "{folder}");
        }
        assert!(!user.sandbox().path("out").exists() && !user.sandbox().path("home/out").exists());
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn images_in_use_are_not_removed() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("touch /out/started; sleep 600")).await;
        let out = user.sandbox().path("out");
        fs::create_dir(&out).unwrap();
        fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).unwrap();
        user.import("example.com/other:v1", &shell("echo other")).await;
        let mount = format!("type=bind,src={},dst=/out,rw", out.display());
        let mut command = user.command(user.program());
        command.args(["run", "--mount", &mount, NAME]).stdin(Stdio::null());
        let mut running = command.spawn().unwrap();
        eventually("the function runs", async || out.join("started").exists().then_some(())).await;
        let ended = user.run(&["images", "prune"], b"").await;
        assert!(stdout(&ended).starts_with("removed 1 images"), "{ended:?}");
        let list = stdout(&user.run(&["images", "list"], b"").await);
        assert!(running.try_wait().unwrap().is_none(), "the function runs");
        assert!(list.contains(NAME), "{list}");
        running.kill().await.unwrap();
        eventually("the sandbox has ended", async || {
            let ended = user.run(&["images", "prune"], b"").await;
            assert!(ended.status.success(), "{}", stderr(&ended));
            stdout(&ended).starts_with("removed 1 images").then_some(())
        })
        .await;
        for folder in ["images", "layers", "blobs", "tmp"] {
            assert_eq!(fs::read_dir(user.store().join(folder)).unwrap().count(), 0, "{folder}");
        }
    }
}
