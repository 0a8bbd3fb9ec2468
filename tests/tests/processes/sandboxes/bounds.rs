//! What an image may take: memory, disk, depth, and the time of others. Each of these images is
//! small, and its author unknown.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use futures_util::future::join_all;
use porch_fn_tests::image::layout::{LayerOf, Layout, config};
use porch_fn_tests::image::{Layer, serve, serve_slowly, sha256};
use porch_fn_tests::image_user::{ImageUser, Up};
use tar::{EntryType, Header};
use tokio::time::timeout;
use tonic::Code;

use super::super::INPUT;
use super::{DEADLINE, stderr, stdout};

/// In KiB. A build without optimisation takes more than a release.
pub(super) const MOST_MEMORY: u64 = 150 << 10;
const WRONG: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// Adds the image `x/good:v1`, which answers.
fn add_good(layout: &mut Layout) {
    let layer = layout.layer(Layer::of_programs(&["sh", "cat"]));
    layout.image("x/good:v1", &[layer], &config(&["cat"]));
}

/// Removes a folder that is too deep for the tests' own code.
struct Deep(PathBuf);

impl Drop for Deep {
    fn drop(&mut self) {
        let _ = Command::new("rm").arg("-rf").arg(&self.0).status();
    }
}

/// A layer of folders in folders: each link leads to the end of the one before it.
fn deep(levels: usize) -> Layer {
    const STEP: usize = 500;
    let step = vec!["d"; STEP].join("/");
    let mut layer = Layer::new().folder(&step, 0o755).symlink("l0", &step);
    for number in 1..levels / STEP {
        let end = format!("l{}/{step}", number - 1);
        layer = layer.file(&format!("{end}/x"), 0o644, b"").symlink(&format!("l{number}"), &end);
    }
    layer
}

/// A layout with the image `x/deep:v1`, whose layer is refused only after it was unpacked.
fn deep_image(levels: usize) -> Layout {
    let mut layout = Layout::default();
    add_good(&mut layout);
    let layer = layout.layer(deep(levels));
    let layer = LayerOf { diff_id: WRONG.to_owned(), ..layer };
    layout.image("x/deep:v1", &[layer], &config(&["/none"]));
    layout
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn up_survives_an_image_of_15_000_levels() {
    let registry = serve(deep_image(15_000)).await;
    let good = format!("{registry}/x/good:v1");
    for user in ImageUser::all() {
        let _deep = Deep(user.store());
        let up = Up::start(&user, &[]).await;
        let client = up.client();
        assert_eq!(client.call(&good, INPUT).await.code, Code::Ok);
        let answer = client.call(&format!("{registry}/x/deep:v1"), INPUT).await;
        assert_ne!(answer.code, Code::Ok, "{answer:?}");
        assert_eq!(client.call(&good, INPUT).await.code, Code::Ok, "up goes on");
        up.kill().await;
        let up = Up::start(&user, &[]).await;
        assert_eq!(up.client().call(&good, INPUT).await.code, Code::Ok, "up starts again");
        for args in [&["images", "list"][..], &["run", &good], &["images", "prune"]] {
            let ended = user.run(args, INPUT.as_bytes()).await;
            assert!(ended.status.success(), "{args:?}: {ended:?}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_deep_import_needs_few_descriptors() {
    for levels in [1500, 15_000] {
        let archive = deep_image(levels).with_prefix("example.com/").archive();
        let mut good = Layout::default();
        add_good(&mut good);
        for user in ImageUser::all() {
            let _deep = Deep(user.store());
            user.import_archive(&good.clone().with_prefix("example.com/").archive()).await;
            let limited = async |args: &[&str], input: &[u8]| {
                let program = user.program().to_str().unwrap();
                let start = ["-c", "ulimit -n 1024; exec \"$@\"", "sh", program];
                user.run_program("sh", &[&start, args].concat(), input).await
            };
            let imported = limited(&["images", "import", "-"], &archive).await;
            assert_eq!(imported.status.code(), Some(1), "{imported:?}");
            let good = "example.com/x/good:v1";
            for args in [&["images", "list"][..], &["run", good], &["images", "prune"], &["images", "list"]] {
                let ended = limited(args, INPUT.as_bytes()).await;
                assert!(ended.status.success(), "{levels} levels: {args:?}: {ended:?}");
            }
        }
    }
}

/// The bytes of all files below a folder.
fn size(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size_of = |entry: fs::DirEntry| {
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() { size(&entry.path()) } else { metadata.len() }
    };
    entries.map(|entry| size_of(entry.unwrap())).sum()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sizes_that_overflow_a_sum_are_refused() {
    let mut layout = Layout::default();
    let mut layers = Vec::new();
    for name in ["one", "other"] {
        // The registry sends such a blob without end.
        let mut layer = LayerOf::new(&sha256(name.as_bytes()), 0, WRONG);
        layer.descriptor["size"] = (1_u64 << 63).into();
        layers.push(layer);
    }
    layout.image("x/huge:v1", &layers, &config(&["/none"]));
    let image = format!("{}/x/huge:v1", serve(layout).await);
    for user in ImageUser::all() {
        // No file may become larger than 200 MiB, so that a program without this check fails.
        let script = "ulimit -f 409600; exec \"$0\" images pull --image-max-size 100000000 \"$1\"";
        let args = ["-c", script, user.program().to_str().unwrap(), &image];
        let ended = user.run_program("sh", &args, b"").await;
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(size(&user.store()) < 100_000_000, "{} bytes", size(&user.store()));
    }
}

/// A layer whose tar stream is compressed by zstd while it is written.
fn compressed(layout: &mut Layout, diff_id: Option<&str>, write: impl Fn(&mut dyn FnMut(&[u8]))) -> LayerOf {
    let mut zstd = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    write(&mut |bytes| {
        zstd.write_all(bytes).unwrap();
        hash.update(bytes);
    });
    let hash = hash.finish();
    let hash = hash.as_ref().iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"));
    let blob = zstd.finish().unwrap();
    let size = blob.len();
    LayerOf::new(&layout.blob(blob), size, diff_id.unwrap_or(&hash))
}

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_path("zeros").unwrap();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(size);
    header.set_cksum();
    header
}

const MIB: usize = 1 << 20;

/// A layer with a file of so many MiB.
fn zeros(layout: &mut Layout, mib: usize) -> LayerOf {
    compressed(layout, None, |write| {
        write(header(EntryType::Regular, (mib * MIB) as u64).as_bytes());
        let zeros = vec![0; MIB];
        (0..mib).for_each(|_| write(&zeros));
        write(&[0; 1024]);
    })
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_import_keeps_to_the_largest_size() {
    const LIMIT: u64 = 64 << 20;
    let flag = format!("--image-max-size={LIMIT}");
    let mut large = Layout::default();
    // Each layer alone is small enough.
    let layers = [40, 41, 42, 43].map(|mib| zeros(&mut large, mib));
    large.image("example.com/large:v1", &layers, &config(&["/none"]));
    let several = |number: usize| {
        let mut layout = Layout::default();
        add_good(&mut layout);
        let layers = [layout.layer(Layer::of_programs(&["sh", "cat"])), zeros(&mut layout, 20 + number)];
        layout.image(&format!("x/part{number}:v1"), &layers, &config(&["cat"]));
        layout.with_prefix("example.com/").archive()
    };
    let parts: Vec<_> = (0..5).map(several).collect();
    for user in ImageUser::all() {
        let ended = user.run(&["images", "import", &flag, "-"], &large.archive()).await;
        assert!(!ended.status.success(), "{ended:?}");
        assert!(size(&user.store()) < LIMIT, "{} bytes", size(&user.store()));
        for (number, archive) in parts.iter().enumerate() {
            let ended = user.run(&["images", "import", &flag, "-"], archive).await;
            assert!(ended.status.success(), "{number}: {ended:?}");
            let ended = user.run(&["run", &format!("example.com/x/part{number}:v1")], INPUT.as_bytes()).await;
            assert_eq!(stdout(&ended), INPUT, "{number}: {ended:?}");
        }
        assert!(size(&user.store()) < LIMIT + LIMIT / 4, "{} bytes", size(&user.store()));
    }
}

/// Runs the program, and returns its largest memory, with that of its own processes, in KiB.
pub(super) async fn peak(user: &ImageUser, args: &[&str], input: &[u8]) -> (Output, u64) {
    let number = if cfg!(target_arch = "aarch64") { 165 } else { 98 };
    let script = format!(
        "my $code = system(@ARGV); my $usage = qq(\\0) x 144; syscall({number}, -1, $usage);\n\
         print STDERR qq(\\npeak=), (unpack('q*', $usage))[4]; exit($code ? 1 : 0)"
    );
    let start = ["-e", &script, user.program().to_str().unwrap()];
    let ended = user.run_program("perl", &[&start, args].concat(), input).await;
    let text = stderr(&ended);
    let (_, peak) = text.rsplit_once("\npeak=").expect("its memory");
    let peak = peak.parse().unwrap();
    (ended, peak)
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn lists_of_an_image_take_little_memory() {
    const ENTRIES: usize = 30_000;
    let folder = vec!["x".repeat(240); 14].join("/");
    let whiteouts =
        (0..ENTRIES).fold(Layer::new(), |layer, number| layer.whiteout(&folder, &number.to_string()));
    let opaque = (0..ENTRIES).fold(Layer::new(), |layer, _| layer.opaque(&folder));
    let longest_name = |layout: &mut Layout| {
        compressed(layout, Some(WRONG), |write| {
            write(header(EntryType::GNULongName, 1 << 30).as_bytes());
            let name = vec![b'x'; MIB];
            (0..1 << 10).for_each(|_| write(&name));
            write(header(EntryType::Regular, 0).as_bytes());
        })
    };
    let [mut marked, mut opaque_image, mut named] = [(); 3].map(|()| Layout::default());
    for (layout, layer) in [(&mut marked, whiteouts), (&mut opaque_image, opaque)] {
        let tar = layer.finish();
        let layers =
            [layout.layer(Layer::of_programs(&["sh", "cat"])), compressed(layout, None, |write| write(&tar))];
        layout.image("example.com/f:v1", &layers, &config(&["cat"]));
    }
    let layer = longest_name(&mut named);
    named.image("example.com/f:v1", &[layer], &config(&["cat"]));
    for user in ImageUser::all() {
        for (what, layout) in [("whiteouts", &marked), ("opaque", &opaque_image), ("a long name", &named)] {
            let archive = layout.archive();
            let (imported, memory) = peak(&user, &["images", "import", "-"], &archive).await;
            assert!(memory < MOST_MEMORY, "the import of {what} took {memory} KiB: {imported:?}");
            if what == "a long name" {
                assert!(!imported.status.success(), "{imported:?}");
                continue;
            }
            for args in [&["run", "example.com/f:v1"][..], &["images", "list"]] {
                let (ended, memory) = peak(&user, args, INPUT.as_bytes()).await;
                assert!(memory < MOST_MEMORY, "{what}: {args:?} took {memory} KiB: {ended:?}");
                if imported.status.success() {
                    assert!(ended.status.success(), "{what}: {ended:?}");
                }
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn what_is_behind_the_end_of_a_layer_is_bounded() {
    let mut padded = Layout::default();
    let layer = compressed(&mut padded, None, |write| {
        write(&Layer::new().file("x", 0o644, b"").finish());
        let zeros = vec![0; MIB];
        (0..512).for_each(|_| write(&zeros));
    });
    padded.image("example.com/padded:v1", &[layer], &config(&["/none"]));
    let mut members = Layout::default();
    let tar = Layer::new().file("x", 0o644, b"").finish();
    let empty = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()).finish().unwrap();
    let mut whole = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    whole.write_all(&tar).unwrap();
    let blob = [whole.finish().unwrap(), empty.repeat(4 << 20)].concat();
    let layer = LayerOf::new(&sha256(&blob), blob.len(), &sha256(&tar));
    members.blob(blob);
    members.image("example.com/members:v1", &[layer], &config(&["/none"]));
    for user in ImageUser::all() {
        for (what, layout) in [("padding", &padded), ("empty members", &members)] {
            let args = ["images", "import", "--image-max-size=67108864", "-"];
            let (ended, memory) = peak(&user, &args, &layout.archive()).await;
            assert!(!ended.status.success(), "{what}: {ended:?}");
            assert!(memory < MOST_MEMORY, "{what}: {memory} KiB");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn slow_registries_hold_nobody_else() {
    let mut layout = Layout::default();
    add_good(&mut layout);
    for user in ImageUser::all() {
        let mut slow = Vec::new();
        for _ in 0..4 {
            slow.push(serve_slowly(layout.clone()).await);
        }
        let fast = serve(layout.clone()).await;
        let up = Up::start(&user, &[]).await;
        let client = up.client();
        let names: Vec<_> = slow.iter().map(|slow| format!("{}/x/good:v1", slow.address)).collect();
        let held = join_all(names.iter().map(|name| client.call_within(name, INPUT, DEADLINE / 2)));
        let others = async {
            for registry in &mut slow {
                timeout(DEADLINE, registry.wait_reader()).await.expect("a pull has begun");
            }
            let answer = client.call_within(&format!("{fast}/x/good:v1"), INPUT, DEADLINE).await;
            assert_eq!(answer.code, Code::Ok, "{answer:?}");
            for args in [&["images", "prune"][..], &["images", "list"]] {
                let mut command = user.command(user.program());
                let ended = command.args(args).stdin(Stdio::null()).output().await.unwrap();
                assert!(ended.status.success(), "{args:?}: {ended:?}");
            }
        };
        let (held, ()) = tokio::join!(held, others);
        for answer in held {
            assert_eq!(answer.code, Code::DeadlineExceeded, "{answer:?}");
            assert!(answer.message.contains("pull"), "the caller does not learn why: {}", answer.message);
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn marks_of_a_folder_cost_no_more_than_its_entries() {
    const COUNT: usize = 8_000;
    let mut layer = Layer::new();
    for number in 0..COUNT {
        layer = layer.file(&format!("d/{number}"), 0o644, b"");
    }
    for number in 0..COUNT {
        layer = if number % 2 == 0 { layer.opaque("d") } else { layer.whiteout(".", "d") };
    }
    let mut layout = Layout::default();
    let layer = layout.layer(layer);
    layout.image("x/marks:v1", &[layer], &config(&["/none"]));
    // It would take minutes, and this waits for half of one.
    ImageUser::own().import_archive(&layout.with_prefix("example.com/").archive()).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn imports_that_fail_leave_no_more_than_the_limit() {
    const MIB: usize = 1 << 20;
    let user = ImageUser::own();
    for number in 0..4_u8 {
        let mut layout = Layout::default();
        // Its layer fits, and its files as well do not.
        let content: Vec<_> = (0..6 * MIB).map(|at| (at % 251) as u8 ^ number).collect();
        let layer = layout.tar(Layer::new().file("f", 0o644, &content).finish());
        layout.image("x/large:v1", &[layer], &config(&["/none"]));
        let archive = layout.with_prefix("example.com/").archive();
        let ended = user.run(&["images", "import", "--image-max-size", "8Mi", "-"], &archive).await;
        assert!(stderr(&ended).contains("--image-max-size"), "{ended:?}");
        let size = size(&user.store());
        assert!(size <= 9 * MIB as u64, "{size} bytes after import {number}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_archive_has_an_image_and_few_names() {
    let user = ImageUser::own();
    for names in [0, 101] {
        let mut layout = Layout::default();
        let layer = layout.layer(Layer::new());
        if names > 0 {
            layout.image("x/first:v1", &[layer], &config(&["/none"]));
        }
        let digest = layout.digest_of("x/first:v1").map(str::to_owned);
        for number in 1..names {
            let digest = digest.as_deref().unwrap();
            let size = layout.blob_of(digest).unwrap().len();
            layout.name(&format!("x/f{number}:v1"), digest, size);
        }
        let archive = layout.with_prefix("example.com/").archive();
        let ended = user.run(&["images", "import", "-"], &archive).await;
        assert!(!ended.status.success() && stderr(&ended).contains("100 names"), "{names}: {ended:?}");
    }
}
