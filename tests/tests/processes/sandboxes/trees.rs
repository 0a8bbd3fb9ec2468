//! Trees of images, compared with those of Debian's umoci.

mod generate;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use porch_fn_image::Image;
use porch_fn_images::Store;
use porch_fn_tests::image_user::ImageUser;
use porch_fn_tests::process::figure;
use porch_fn_tests::tree::{self, Tree, groups, of_folder, of_stack, try_of_stack};
use rustix::process::geteuid;
use serde_json::{Value, json};

use self::generate::{CLASSES, Set, sets};

const NAME: &str = "example.com/trees/t:v1";

/// What only we refuse, by a part of the message, and why. What both refuse is not in the table.
const REFUSED: [(&str, &str); 3] = [
    ("whiteout names no file", "umoci 0.4.7 removes the whole folder, or one outside the root"),
    ("announces some", "Go skips the data that the header announces, and others take it for an entry"),
    ("deeper than 256", "umoci has no limit"),
];

/// Writes an image in the OCI layout, as a folder that umoci reads.
fn layout(folder: &Path, layers: &[Vec<u8>]) {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let blob = |bytes: &[u8], kind: &str| {
        let hex = porch_fn_tests::image::sha256(bytes)["sha256:".len()..].to_owned();
        fs::write(blobs.join(&hex), bytes).unwrap();
        let media_type = format!("application/vnd.oci.image.{kind}");
        json!({"mediaType": media_type, "digest": format!("sha256:{hex}"), "size": bytes.len()})
    };
    let layers: Vec<_> = layers.iter().map(|layer| blob(layer, "layer.v1.tar")).collect();
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Entrypoint": ["x"]},
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|it| it["digest"].clone()).collect::<Vec<_>>()},
    });
    let mut manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"});
    manifest["config"] = blob(config.to_string().as_bytes(), "config.v1+json");
    manifest["layers"] = layers.into();
    let mut entry = blob(manifest.to_string().as_bytes(), "manifest.v1+json");
    entry["annotations"] =
        json!({"org.opencontainers.image.ref.name": "v1", "io.containerd.image.name": NAME});
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    fs::write(folder.join("index.json"), index.to_string()).unwrap();
    fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

fn archive(folder: &Path) -> Vec<u8> {
    let tar = Command::new("tar").arg("-C").arg(folder).args(["-cf", "-", "."]).output().unwrap();
    assert!(tar.status.success());
    tar.stdout
}

/// The tree of `umoci unpack`, or its last message.
fn umoci(folder: &Path, bundle: &Path) -> Result<Tree, String> {
    let image = format!("{}:v1", folder.display());
    let ended = Command::new("umoci").args(["unpack", "--image", &image]).arg(bundle).output().unwrap();
    if ended.status.success() {
        return Ok(of_folder(&bundle.join("rootfs")));
    }
    Err(String::from_utf8_lossy(&ended.stderr).lines().last().unwrap_or_default().trim().to_owned())
}

/// The folders that a sandbox of the image stacks.
fn stack(user: &ImageUser) -> Vec<PathBuf> {
    // Only root may open another user's store.
    let store = Store::open(&user.store(), 1 << 30).unwrap();
    store.find(&Image::parse(NAME, "").unwrap()).unwrap().expect("a complete image").stack()
}

async fn ours(user: &ImageUser, archive: &[u8]) -> Result<Tree, String> {
    let ended = user.run(&["images", "import", "-"], archive).await;
    if ended.status.success() {
        Ok(of_stack(&stack(user)))
    } else {
        Err(super::stderr(&ended).trim().to_owned())
    }
}

/// How aa7fc13d stacks the image: each layer alone.
fn stack_before(store: &Path) -> Vec<PathBuf> {
    let record = fs::read_dir(store.join("images")).unwrap().next().unwrap().unwrap().path();
    let record: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    let layers = record["layers"].as_array().unwrap().iter();
    layers.map(|it| store.join("layers").join(it.as_str().unwrap().replace(':', "-")).join("fs")).collect()
}

/// What differs by design: a folder is open for its owner, and a file readable.
fn expected(mut tree: Tree) -> Tree {
    // Devices and pipes are left out.
    tree.retain(|_, item| matches!(item.kind, 'd' | 'f' | 'l'));
    for item in tree.values_mut() {
        item.mode |= match item.kind {
            'd' => 0o700,
            'f' => 0o400,
            _ => 0,
        };
    }
    tree
}

/// A message without its beginning and without names.
fn cause(message: &str) -> String {
    message.trim_start_matches("porch-fn images: ").split(" (").next().unwrap_or_default().to_owned()
}

/// The paths and groups of hard links that differ.
fn differences(ours: &Tree, theirs: &Tree, set: &Set) -> Vec<String> {
    let mut different = tree::differences(ours, theirs);
    let (our_groups, their_groups) = (groups(ours), groups(theirs));
    let is_finer = our_groups.iter().all(|ours| their_groups.iter().any(|theirs| ours.is_subset(theirs)));
    // An overlay copies the one name of a lower layer to which a new name is linked.
    if our_groups != their_groups && !(set.links_lower && is_finer) {
        different.push(format!("hard links: {our_groups:?}, not {their_groups:?}"));
    }
    different
}

/// Whether umoci can be compared with. It restores owners, so it needs root.
fn has_umoci() -> bool {
    let has_umoci = geteuid().is_root() && Command::new("umoci").arg("--version").output().is_ok();
    if !has_umoci {
        figure("SKIPPED: trees of umoci need root and Debian's package umoci");
    }
    has_umoci
}

/// Imports the image into a store that lies on an overlay.
const ON_OVERLAY: &str = r#"
set -e
cd "$1"
mkdir lower upper work store
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work store
chmod 700 store
PORCH_FN_IMAGE_DIR=$1/store "$2" images import archive.tar
"#;

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn plain_trees_are_those_of_umoci() {
    if !has_umoci() {
        return;
    }
    let user = ImageUser::own();
    let mut compared = 0;
    for set in sets().into_iter().step_by(8) {
        let folder = user.sandbox().path("set");
        layout(&folder, &set.layers);
        fs::write(folder.join("archive.tar"), archive(&folder)).unwrap();
        let Ok(theirs) = umoci(&folder, &folder.join("bundle")) else {
            fs::remove_dir_all(folder).unwrap();
            continue;
        };
        let mut command = user.command("unshare");
        command.args(["-m", "sh", "-c", ON_OVERLAY, "sh"]).arg(&folder).arg(user.program());
        let ended = command.output().await.unwrap();
        assert!(ended.status.success(), "{}", super::stderr(&ended));
        // The image's own tree, and that of its lowest layer.
        let trees = fs::read_dir(folder.join("upper/layers")).unwrap();
        let trees = trees.map(|tree| of_folder(&tree.unwrap().path().join("fs")));
        let (theirs, mut all) = (expected(theirs), Vec::new());
        all.extend(trees.map(|ours| differences(&ours, &theirs, &set)));
        assert!(all.len() <= 2 && all.iter().any(Vec::is_empty), "{all:#?}\n{:#?}", set.entries);
        compared += 1;
        fs::remove_dir_all(folder).unwrap();
    }
    assert!(compared >= 15, "only {compared} sets were compared");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn trees_are_those_of_umoci() {
    if !has_umoci() {
        return;
    }
    let before = std::env::var_os("PORCH_FN_BEFORE").map(PathBuf::from);
    let user = ImageUser::own();
    let (mut classes, mut refused, mut split, mut differ) = (BTreeMap::new(), BTreeMap::new(), 0, 0);
    for (number, set) in sets().into_iter().enumerate() {
        let folder = user.sandbox().path(&format!("set-{number}"));
        layout(&folder, &set.layers);
        let archive = archive(&folder);
        let theirs = umoci(&folder, &folder.join("bundle")).map(expected);
        let found = ours(&user, &archive).await;
        for class in &set.classes {
            *classes.entry(*class).or_insert(0) += 1;
        }
        match (&found, &theirs) {
            (Ok(ours), Ok(theirs)) => {
                let different = differences(ours, theirs, &set);
                assert!(
                    different.is_empty(),
                    "set {number}, {:?}: {different:#?}\n{:#?}",
                    set.classes,
                    set.entries
                );
                split += u32::from(groups(ours) != groups(theirs));
            }
            (Err(text), Err(_)) => *refused.entry(cause(text)).or_insert(0) += 1,
            (Err(text), Ok(_)) => {
                let known = REFUSED.iter().any(|(part, _)| text.contains(part));
                assert!(known, "set {number} is refused: {text}\n{:#?}", set.entries);
                *refused.entry(cause(text)).or_insert(0) += 1;
            }
            // A pipe, which we leave out, is in the way of umoci.
            (Ok(_), Err(text)) if set.classes.contains(&"devices") => {
                assert!(
                    text.contains("not a directory") || text.contains("no such file"),
                    "set {number}: {text}"
                );
                *refused.entry("only by umoci: a pipe is in the way".to_owned()).or_insert(0) += 1;
            }
            (Ok(_), Err(text)) => panic!("set {number}: umoci refuses: {text}\n{:#?}", set.entries),
        }
        if let (Some(before), Ok(theirs)) = (&before, &theirs) {
            let store = folder.join("before");
            let mut command = user.command(before);
            command
                .env("PORCH_FN_IMAGE_DIR", &store)
                .args(["images", "import"])
                .arg(folder.join("archive.tar"));
            fs::write(folder.join("archive.tar"), &archive).unwrap();
            let is_same = command.output().await.unwrap().status.success()
                && try_of_stack(&stack_before(&store))
                    .is_ok_and(|before| differences(&before, theirs, &set).is_empty());
            differ += u32::from(!is_same);
        }
        fs::remove_dir_all(folder).unwrap();
    }
    for class in CLASSES {
        assert!(classes.get(class).is_some_and(|count| *count >= 15), "{class}: {classes:?}");
    }
    let total: u32 = refused.values().sum();
    assert!(total <= 40, "too many sets are refused: {refused:?}");
    figure(&format!("200 sets: classes {classes:?}, refused {refused:?}, split by copies: {split}"));
    if before.is_some() {
        figure(&format!("{differ} of 200 sets differ with the binary before"));
    }
}
