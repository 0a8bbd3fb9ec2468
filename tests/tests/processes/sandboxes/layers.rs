//! Layers give the tree that other tools give: small images with known right answers, which
//! `umoci unpack` gives, too. A difference would lose or reveal files.

use std::sync::OnceLock;

use porch_fn_tests::image::layout::{Layout, config};
use porch_fn_tests::image::{Compressed, Image, Layer, serve};
use porch_fn_tests::image_user::ImageUser;

use super::{NAME, in_all_ways, stdout};

/// The programs of all images here. Their names do not meet those of the cases.
fn base() -> Layer {
    static BASE: OnceLock<Layer> = OnceLock::new();
    BASE.get_or_init(|| Layer::of_programs(&["sh", "cat", "ls"])).clone()
}

/// Runs a script in an image of these layers, and compares its output.
async fn check(user: &ImageUser, what: &str, layers: [Layer; 2], script: &str, expected: &str) {
    let [lower, upper] = layers;
    let image = Image::new(&["sh", "-c", script]).layer_as(base(), Compressed::Not).layer(lower).layer(upper);
    let imported = user.run(&["images", "import", "-"], &image.oci_archive(NAME)).await;
    assert!(imported.status.success(), "{what}: {imported:?}");
    let ended = user.run(&["run", NAME], b"").await;
    assert_eq!(stdout(&ended), expected, "{what}: {ended:?}");
}

fn file(name: &str) -> Layer {
    Layer::new().file(name, 0o644, b"lower\n")
}

fn below_a_link() -> Layer {
    file("usr/data/old").symlink("data", "usr/data")
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_file_below_a_link_of_a_lower_layer_goes_through_the_link() {
    let upper = || Layer::new().file("data/new", 0o644, b"upper\n");
    for user in ImageUser::all() {
        let script = "cd /usr/data; ls; cat /data/old /data/new";
        check(&user, "a link", [below_a_link(), upper()], script, "new\nold\nlower\nupper\n").await;
        let absolute = file("usr/data/old").symlink("data", "/usr/data");
        check(&user, "an absolute link", [absolute, upper()], script, "new\nold\nlower\nupper\n").await;
        let twice = below_a_link().symlink("other", "data");
        let upper_twice = Layer::new().file("other/new", 0o644, b"upper\n");
        check(&user, "two links", [twice, upper_twice], script, "new\nold\nlower\nupper\n").await;
        // An entry of the folder replaces the link.
        let replaced = Layer::new().folder("data", 0o755).file("data/new", 0o644, b"upper\n");
        let script = "cd /usr/data; ls; cd /data; ls";
        check(&user, "an entry", [below_a_link(), replaced], script, "old\nnew\n").await;
        let hidden = Layer::new().whiteout("data", "old").file("data/new", 0o644, b"upper\n");
        check(&user, "a whiteout", [below_a_link(), hidden], "cd /usr/data; ls", "new\n").await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_deleted_file_does_not_come_back() {
    let lower = || file("a/secret").file("a/b/secret", 0o644, b"lower\n");
    let new = |layer: Layer| layer.folder("a", 0o755).file("a/new", 0o644, b"upper\n");
    for user in ImageUser::all() {
        let script = "cd /a; ls";
        let upper = new(Layer::new().whiteout(".", "a"));
        check(&user, "the whiteout first", [lower(), upper], script, "new\n").await;
        let upper = new(Layer::new()).whiteout(".", "a");
        check(&user, "the whiteout last", [lower(), upper], script, "new\n").await;
        let upper = Layer::new().file("a/new", 0o644, b"upper\n").whiteout(".", "a");
        check(&user, "without an entry of the folder", [lower(), upper], script, "new\n").await;
        let upper = Layer::new().file("a/b/new", 0o644, b"upper\n").opaque("a");
        check(&user, "an opaque folder, last", [lower(), upper], "cd /a; ls; cd b; ls", "b\nnew\n").await;
        let upper = Layer::new().whiteout("a", "b").file("a/b", 0o644, b"file\n");
        check(&user, "a file in its place", [lower(), upper], "cat /a/b; cd /a; ls", "file\nb\nsecret\n")
            .await;
        // What the layer itself has made stays.
        let upper = Layer::new().file("a/secret", 0o644, b"upper\n").whiteout("a", "secret");
        check(&user, "the layer's own file", [lower(), upper], "cat /a/secret", "upper\n").await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_hard_link_to_a_file_of_a_lower_layer_is_that_file() {
    for user in ImageUser::all() {
        let upper = Layer::new().hard_link("again", "a/file");
        check(&user, "a file", [file("a/file"), upper], "cat /again /a/file", "lower\nlower\n").await;
        let upper = Layer::new().hard_link("data/again", "data/old");
        check(&user, "below a link", [below_a_link(), upper], "cat /usr/data/again", "lower\n").await;
        let lower = file("a").symlink("link", "a");
        let upper = Layer::new().hard_link("again", "link");
        let script = "cat /again; [ -L /again ] && echo link";
        check(&user, "a link itself", [lower, upper], script, "lower\nlink\n").await;
        let upper = Layer::new().hard_link("again", "a/file").whiteout("a", "file");
        check(&user, "hidden later", [file("a/file"), upper], "cat /again; ls /a", "lower\n").await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_layer_that_ends_with_its_last_byte_is_read() {
    let whole = Layer::new().file("first", 0o644, b"first\n").file("last", 0o644, b"last\n").finish();
    // Two headers, a padded and an unpadded content.
    let cut = whole[..3 * 512 + 5].to_vec();
    let without_end = whole[..4 * 512].to_vec();
    for user in ImageUser::all() {
        for (what, tar) in [("no padding", cut.clone()), ("no end", without_end.clone())] {
            let mut layout = Layout::default();
            let layers = [layout.layer(base()), layout.tar(tar)];
            layout.image("x/cut:v1", &layers, &config(&["cat", "/first", "/last"]));
            let archive = layout.clone().with_prefix("example.com/").archive();
            let image = format!("{}/x/cut:v1", serve(layout).await);
            for (ended, image) in [
                (user.run(&["images", "import", "-"], &archive).await, "example.com/x/cut:v1"),
                (user.run(&["images", "pull", &image], b"").await, &image),
            ] {
                assert!(ended.status.success(), "{what}: {ended:?}");
                let ended = user.run(&["run", image], b"").await;
                assert_eq!(stdout(&ended), "first\nlast\n", "{what}: {ended:?}");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn all_ways_show_the_same_layers() {
    let lower = below_a_link().file("a/secret", 0o644, b"lower\n").file("b/file", 0o644, b"lower\n");
    let upper = Layer::new()
        .file("data/new", 0o644, b"upper\n")
        .whiteout(".", "a")
        .file("a/new", 0o644, b"upper\n")
        .hard_link("again", "b/file");
    let script = "exec >&2; cd /data; ls; cat /again; cd /a; ls";
    let image = Image::new(&["sh", "-c", script]).layer_as(base(), Compressed::Not).layer(lower).layer(upper);
    for user in ImageUser::all() {
        user.import(NAME, &image).await;
        for (way, output) in in_all_ways(&user).await {
            assert!(output.contains("new\nold\nlower\nnew\n"), "{way}: {output}");
        }
    }
}
