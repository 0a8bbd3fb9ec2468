//! Any sequence of changes of an image store: an image that is there has its own files and no others.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use porch_fn_image::Image as Name;
use porch_fn_images::Store;
use porch_fn_tests::image::{Image, Layer, push};
use porch_fn_tests::image_user::ImageUser;
use porch_fn_tests::process::{Sandbox, figure};
use porch_fn_tests::random::Random;
use porch_fn_tests::registry::{Access, Registry};
use porch_fn_tests::tree::{self, Tree};
use tokio::time::sleep;

const STEPS: u32 = 150;
const SEED: u64 = 0x1ce_cafe;

/// Images that share layers, whose results differ by their parents.
fn images() -> Vec<Image> {
    let base = || {
        (0..200).fold(Layer::new().symlink("lib", "usr/lib").folder("usr/lib", 0o755), |layer, number| {
            layer.file(&format!("data/{}/{number}", number % 7), 0o644, &[b'x'; 3000])
        })
    };
    let through_link = || Layer::new().file("lib/new", 0o644, b"new").hard_link("again", "data/1/1");
    let hides = || Layer::new().whiteout("data", "1").file("data/2/2", 0o644, b"other").opaque("usr");
    let replaces = || Layer::new().folder("lib", 0o755).file("lib/own", 0o644, b"own");
    let image = || Image::new(&["x"]).layer(base());
    vec![
        image(),
        image().layer(through_link()),
        image().layer(hides()),
        image().layer(through_link()).layer(hides()),
        image().layer(hides()).layer(replaces()),
        image().layer(replaces()).layer(through_link()).layer(hides()),
    ]
}

/// The files of an image in a user's store, if it is there.
fn found(user: &ImageUser, name: &str) -> Option<Tree> {
    let store = Store::open(&user.store(), 1 << 30).unwrap();
    let stored = store.find(&Name::parse(name, "").unwrap()).unwrap()?;
    Some(tree::of_stack(&stored.stack()))
}

/// Damages something. Returns what.
fn damage(random: &mut Random, store: &Path) -> String {
    let all = |folder: &str| {
        let mut paths: Vec<_> =
            fs::read_dir(store.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let kind = random.below(5);
    let paths = all(["layers", "layers", "blobs", "blobs", "images"][kind]);
    if paths.is_empty() {
        return "nothing".to_owned();
    }
    let path = paths[random.below(paths.len())].clone();
    match kind {
        0 => drop(fs::remove_file(path.join("tree.json"))),
        1 => drop(fs::rename(path.join("fs"), path.join("lost"))),
        2 => fs::write(&path, b"").unwrap(),
        3 => {
            // Of the same size.
            let mut bytes = fs::read(&path).unwrap();
            let at = random.below(bytes.len().max(1));
            bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 0xff);
            fs::write(&path, bytes).unwrap();
        }
        _ => fs::write(&path, b"{\"reference\":").unwrap(),
    }
    format!("{kind} of {}", path.display())
}

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly stores runs it"]
async fn an_image_that_is_there_has_its_own_files() {
    let sandbox = Sandbox::new();
    let registry = Registry::start(&sandbox, "registry", Ipv4Addr::LOCALHOST.into(), Access::default()).await;
    let (mut names, mut archives, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
    for (number, image) in images().iter().enumerate() {
        let path = format!("f/{number}:v1");
        push(registry.address(), &path, image).await;
        let name = registry.image(&path);
        archives.push(image.oci_archive(&name));
        let alone = ImageUser::own();
        alone.import_archive(&archives[number]).await;
        fresh.push(found(&alone, &name).expect("an image"));
        names.push(name);
    }
    let plain = format!("--insecure-registries={}", registry.address());
    let user = ImageUser::own();
    user.run(&["images", "list"], b"").await;
    let mut random = Random(SEED);
    // The images that must be there. After damage or a kill, an image may be there or not.
    let mut there = BTreeSet::new();
    let mut done = [0; 6];
    for step in 0..STEPS {
        let number = random.below(names.len());
        let name = &*names[number];
        let what = random.below(10);
        let text = match what {
            0..=2 => {
                user.import_archive(&archives[number]).await;
                there.insert(number);
                done[0] += 1;
                format!("import of {number}")
            }
            3 | 4 => {
                let ended = user.run(&["images", "pull", &plain, name], b"").await;
                assert!(ended.status.success(), "step {step}: {ended:?}");
                there.insert(number);
                done[1] += 1;
                format!("pull of {number}")
            }
            5 => {
                there.clear();
                done[2] += 1;
                format!("damage {}", damage(&mut random, &user.store()))
            }
            6 => {
                let ended = user.run(&["images", "rm", name], b"").await;
                assert!(found(&user, name).is_none(), "step {step}: {ended:?}");
                there.remove(&number);
                done[3] += 1;
                format!("rm of {number}")
            }
            7 => {
                let ended = user.run(&["images", "prune", "--unused-for=1h"], b"").await;
                assert!(ended.status.success(), "step {step}: {ended:?}");
                done[4] += 1;
                "prune".to_owned()
            }
            _ => {
                let mut command = user.command(user.program());
                command.args(["images", "pull", &plain, name]).stdout(Stdio::null()).stderr(Stdio::null());
                let mut child = command.spawn().unwrap();
                // Some moment of the pull.
                sleep(Duration::from_millis(random.below(120) as u64)).await;
                child.kill().await.unwrap();
                done[5] += 1;
                format!("kill of a pull of {number}")
            }
        };
        for (number, name) in names.iter().enumerate() {
            match found(&user, name) {
                Some(tree) => {
                    let different = tree::differences(&tree, &fresh[number]);
                    assert!(different.is_empty(), "step {step}, {text}: image {number}: {different:#?}");
                }
                None => assert!(!there.contains(&number), "step {step}, {text}: image {number} is gone"),
            }
        }
    }
    // Nothing is left behind.
    for name in &names {
        user.run(&["images", "rm", name], b"").await;
    }
    user.run(&["images", "prune"], b"").await;
    for folder in ["layers", "blobs", "images", "tmp"] {
        assert_eq!(fs::read_dir(user.store().join(folder)).unwrap().count(), 0, "{folder}");
    }
    figure(&format!("{STEPS} steps: imports, pulls, damages, removals, prunes, kills: {done:?}"));
}
