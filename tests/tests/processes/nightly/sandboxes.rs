//! `porch-fn up` is killed while it pulls, unpacks and serves. The next start must be clean.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use porch_fn_tests::image::layout::{Layout, config};
use porch_fn_tests::image::{Compressed, Image, Layer, push, serve_slowly};
use porch_fn_tests::image_user::{ImageUser, Up};
use porch_fn_tests::process::{Sandbox, eventually, figure};
use porch_fn_tests::registry::{Access, Registry};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

const INPUT: &str = "kind: ResourceList\n";
const KILLS: u32 = 20;
/// How long a registry may take that sends almost nothing.
const SLOWEST_PULL: Duration = Duration::from_mins(5);

/// Bytes that do not become smaller, in files of 64 KiB.
fn large(layer: Layer) -> Layer {
    let mut state = 1_u64;
    let mut next = || {
        // Numbers of a linear congruential generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..1024).fold(layer, |layer, number| {
        let content: Vec<u8> = std::iter::repeat_with(&mut next).take(64 << 10).collect();
        layer.file(&format!("data/{number}"), 0o644, &content)
    })
}

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly sandboxes runs it"]
async fn up_is_killed_twenty_times() {
    let sandbox = Sandbox::new();
    let registry = Registry::start(&sandbox, "registry", Ipv4Addr::LOCALHOST.into(), Access::default()).await;
    let image = Image::new(&["sh", "-c", "cat; sleep 0.2"])
        .layer(Layer::of_programs(&["sh", "cat", "sleep"]))
        .layer_as(large(Layer::new()), Compressed::Gzip);
    push(registry.address(), "f/large:v1", &image).await;
    let name = registry.image("f/large:v1");
    for user in ImageUser::all() {
        user.run(&["images", "list"], b"").await;
        let (mounts, empty) = (mounts(), size(&user.store()));
        // How long all three phases take together.
        let up = Up::start(&user, &[]).await;
        let begun = Instant::now();
        assert_eq!(up.client().call(&name, INPUT).await.code, Code::Ok);
        let whole = begun.elapsed();
        up.kill().await;
        let full = size_when_ended(&user, &mounts).await;
        for number in 0..KILLS {
            prune(&user).await;
            assert_eq!(size(&user.store()), empty, "bytes before kill {number}");
            let up = Up::start(&user, &[]).await;
            let (client, called) = (up.client(), name.clone());
            let call = tokio::spawn(async move { client.try_call(&called, INPUT, None).await.is_ok() });
            // A moment in the pull, in the unpacking or in a call.
            sleep(whole * number / (KILLS - 1)).await;
            up.kill().await;
            let was_answered = call.await.unwrap_or(false);
            size_when_ended(&user, &mounts).await;
            let up = Up::start(&user, &[]).await;
            assert_eq!(up.client().call(&name, INPUT).await.code, Code::Ok, "after kill {number}");
            up.kill().await;
            let size = size_when_ended(&user, &mounts).await;
            assert!(size.abs_diff(full) < 1 << 20, "{size} bytes after kill {number}, {full} without");
            figure(&format!(
                "kill {number} after {:?}: answered: {was_answered}",
                whole * number / (KILLS - 1)
            ));
        }
    }
}

/// Waits until no process of the user is left, and returns the store's size in bytes. Its next user
/// has then removed what was unfinished.
async fn size_when_ended(user: &ImageUser, mounts: &str) -> u64 {
    eventually("no process is left", async || user.processes().is_empty().then_some(())).await;
    assert_eq!(self::mounts(), mounts, "something is mounted");
    user.run(&["images", "list"], b"").await;
    assert_eq!(fs::read_dir(user.store().join("tmp")).unwrap().count(), 0, "something is unfinished");
    size(&user.store())
}

async fn prune(user: &ImageUser) {
    let ended = user.run(&["images", "prune"], b"").await;
    assert!(ended.status.success(), "{ended:?}");
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mounts").unwrap()
}

/// The sizes of all files below a folder, in bytes.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let size_of = |entry: fs::DirEntry| {
        let metadata = fs::symlink_metadata(entry.path()).unwrap();
        if metadata.is_dir() { size(&entry.path()) } else { metadata.len() }
    };
    entries.map(size_of).sum()
}

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly sandboxes runs it"]
async fn a_pull_from_a_registry_that_is_too_slow_ends() {
    let mut layout = Layout::default();
    let layer = layout.layer(Layer::of_programs(&["cat"]));
    layout.image("x/slow:v1", &[layer], &config(&["cat"]));
    let registry = serve_slowly(layout).await;
    let image = format!("{}/x/slow:v1", registry.address);
    for user in ImageUser::all() {
        let begun = Instant::now();
        let mut command = user.command(user.program());
        command.args(["images", "pull", &image]).stdin(Stdio::null()).stderr(Stdio::piped());
        let ended = timeout(SLOWEST_PULL, command.spawn().unwrap().wait_with_output()).await;
        let ended = ended.expect("the pull ends").unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && text.contains("slow"), "{text}");
        figure(&format!("a pull of a byte per second ended after {:?}", begun.elapsed()));
    }
}

/// An owner of a pod waits a minute before it replaces the pod.
const REPLACED_WITHIN: Duration = Duration::from_mins(4);

#[tokio::test]
#[ignore = "takes minutes; tests/run nightly sandboxes runs it"]
async fn a_tag_that_moves_gets_new_pods_and_no_call_fails() {
    let sandbox = Sandbox::new();
    let registry = Registry::start(&sandbox, "registry", Ipv4Addr::LOCALHOST.into(), Access::default()).await;
    let name = registry.image("f/moves:v1");
    for user in ImageUser::all() {
        let mut up = None;
        for content in ["first", "second"] {
            let script = format!("cat; echo '# {content}'");
            let layer = Layer::of_programs(&["sh", "cat"]);
            push(registry.address(), "f/moves:v1", &Image::new(&["sh", "-c", &script]).layer(layer)).await;
            if up.is_none() {
                up = Some(Up::start(&user, &["--", "--image-metadata-ttl=2s"]).await);
            }
            let client = up.as_ref().unwrap().client();
            let begun = Instant::now();
            loop {
                let answer = client.call(&name, INPUT).await;
                assert_eq!(answer.code, Code::Ok, "{answer:?}");
                if String::from_utf8_lossy(&answer.resource_list).contains(content) {
                    break;
                }
                assert!(begun.elapsed() < REPLACED_WITHIN, "the pods are old: {answer:?}");
                sleep(Duration::from_millis(100)).await;
            }
            figure(&format!("the {content} content after {:?}", begun.elapsed()));
        }
        up.unwrap().kill().await;
    }
}
