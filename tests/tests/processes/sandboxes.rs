//! Function images in sandboxes, as root and as an ordinary user.

mod admission;
mod bounds;
mod descriptors;
mod engine;
mod filesystem;
mod hostile;
mod images;
mod layers;
mod machine;
mod mounts;
mod published;
mod run;
mod sockets;
mod store_trust;
mod streams;
mod texts;
mod trees;
mod up;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Output;
use std::sync::OnceLock;
use std::time::Duration;

use porch_fn_tests::image::{Compressed, Image, Layer};
use porch_fn_tests::image_user::{ImageUser, Up};
use porch_fn_tests::process::Sandbox;

use super::INPUT;

/// Of calls that functions could hold for longer.
const DEADLINE: Duration = Duration::from_secs(30);
const NAME: &str = "example.com/functions/f:v1";

/// An image with a shell and a few programs of this machine, whose process is this script.
fn shell(script: &str) -> Image {
    // The tests' own compression is slow, and their store has the layer after the first image.
    let base = Image::new(&["/function"]).layer_as(programs(), Compressed::Not);
    base.layer(Layer::new().script("function", script))
}

fn programs() -> Layer {
    static PROGRAMS: OnceLock<Layer> = OnceLock::new();
    let programs = || {
        Layer::of_programs(&[
            "sh", "cat", "id", "ls", "touch", "sleep", "head", "bash", "env", "dd", "grep", "setpriv",
            "setsid", "tr", "unshare",
        ])
    };
    PROGRAMS.get_or_init(programs).clone()
}

/// An image whose process is this Perl program. Perl's own words make any system call, so no test
/// needs a compiler.
fn perl(program: &str) -> Image {
    let layer = Layer::of_programs(&["perl", "sh"]).file("function", 0o644, program.as_bytes());
    Image::new(&["perl", "/function"]).layer(layer)
}

/// Runs the image [`NAME`], which is here, by `run`, by the link for kpt and by `up`. Returns each
/// way with all that the function has written. `up` returns only what functions write to standard
/// error, unless they return resources.
async fn in_all_ways(user: &ImageUser) -> Vec<(&'static str, String)> {
    let ran = user.run(&["run", NAME], INPUT.as_bytes()).await;
    let engine = engine(user).await;
    let args = "run --rm -i --network none --user nobody --security-opt=no-new-privileges --pull never";
    let args: Vec<_> = args.split(' ').chain([NAME]).collect();
    let linked = user.run_program(&engine, &args, INPUT.as_bytes()).await;
    let up = Up::start(user, &[]).await;
    let called = up.client().call_within(NAME, INPUT, DEADLINE).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let called = text(&called.resource_list) + &text(&called.log) + &called.message;
    vec![
        ("run", stdout(&ran) + &stderr(&ran)),
        ("the link", stdout(&linked) + &stderr(&linked)),
        ("up", called),
    ]
}

/// The program under the name `podman`.
async fn engine(user: &ImageUser) -> PathBuf {
    let installed = user.run(&["shim", "install", "--as", "podman"], b"").await;
    assert!(installed.status.success(), "{installed:?}");
    user.sandbox().path("home/.local/share/porch-fn/bin/podman")
}

/// The arguments that run a program where cgroups cannot be used. Ordinary users have none.
fn without_cgroups(user: &ImageUser, program: &str) -> Vec<String> {
    let shadowed = "mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" \"$@\"";
    let start = ["unshare", "--mount", "sh", "-c", shadowed].map(str::to_owned);
    let own = [program.to_owned()];
    if user.is_root() { start.into_iter().chain(own).collect() } else { own.into() }
}

/// A folder of the sandbox that everybody may change.
fn open_folder(sandbox: &Sandbox, name: &str) -> PathBuf {
    let folder = sandbox.path(name);
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

fn stdout(ended: &Output) -> String {
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

fn stderr(ended: &Output) -> String {
    String::from_utf8_lossy(&ended.stderr).into_owned()
}
