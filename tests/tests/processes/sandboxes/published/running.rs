//! Published faults of programs that run images.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use porch_fn_tests::image::{Image, Layer};
use porch_fn_tests::image_user::{ImageUser, Up};
use serde_json::json;

use super::super::super::INPUT;
use super::super::{NAME, in_all_ways, open_folder, perl, shell, stderr, stdout};
use super::{SECRET, outside, state};

/// The program in a file that the user owns, as after a build of the user's own.
fn own_program(user: &ImageUser) -> std::path::PathBuf {
    let program = user.sandbox().path("home/porch-fn");
    if !program.exists() {
        fs::copy(user.program(), &program).unwrap();
        let owner = user.number().unwrap_or(65534);
        chown(&program, Some(owner), Some(owner)).unwrap();
    }
    program
}

/// Images whose mount's target is a link, and how the function sees the place below it.
fn linked_targets(folder: &str) -> Vec<Layer> {
    let up = format!("../../../../../../../../..{folder}");
    let root = format!("/proc/self/root{folder}");
    let of_first = format!("/proc/1/root/../../../../../../../../..{folder}");
    [folder, &up, &root, &of_first].map(|target| Layer::new().symlink("in", target)).into()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2019_5736_the_program_does_not_run_inside() {
    for user in ImageUser::all() {
        let version = stdout(&user.run(&["--version"], b"").await);
        let libraries = || Layer::of_libraries(user.program().to_str().unwrap());
        let up = Up::start(&user, &[]).await;
        let scripts = ["/proc/self/exe", "/proc/1/exe", "/proc/thread-self/exe"];
        let entrypoints = scripts.map(|script| (script, vec![script, "--version"]));
        let links = scripts.map(|script| (script, vec!["/linked", "--version"]));
        let lines = scripts.map(|script| (script, vec!["/script"]));
        for (number, (target, entrypoint)) in entrypoints.into_iter().chain(links).chain(lines).enumerate() {
            let name = format!("example.com/x/exe{number}:v1");
            let layer = Layer::new().symlink("linked", target).file(
                "script",
                0o755,
                format!("#!{target} --version\n").as_bytes(),
            );
            user.import(&name, &Image::new(&entrypoint).layer(libraries()).layer(layer)).await;
            let ended = user.run(&["run", &name], b"").await;
            assert!([126, 127].contains(&ended.status.code().unwrap()), "{entrypoint:?}: {ended:?}");
            let answer = up.client().call(&name, INPUT).await;
            let called = String::from_utf8_lossy(&answer.log) + &*answer.message;
            let output = stdout(&ended) + &stderr(&ended) + &called;
            assert!(!output.contains(version.trim()), "{entrypoint:?} of {target}: {output}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2019_5736_the_program_cannot_be_written_from_inside() {
    for user in ImageUser::all() {
        let program = own_program(&user);
        let before = facts(&program);
        let script = "exec >&2; for i in 1 2 3; do for exe in /proc/[0-9]*/exe /proc/self/exe; do\n\
                      (exec 3>>$exe) 2>/dev/null && echo \"opened $exe\"; done; done\n\
                      for path in /proc/[0-9]*/root /proc/[0-9]*/cwd; do (: > $path/new) 2>/dev/null && echo opened; done\n\
                      while read -r line; do case $line in *porch-fn*) (: >> ${line##* }) 2>/dev/null && echo opened;; esac; done \
                      </proc/self/mountinfo; echo tried; exit 3";
        user.import(NAME, &shell(script)).await;
        for flags in [&["--user", "0:0"][..], &[]] {
            let args: Vec<_> = ["run"].iter().chain(flags).chain(&[NAME]).copied().collect();
            let ended = user.run_program(&program, &args, b"").await;
            assert_eq!(stderr(&ended), "tried\n", "{ended:?}");
        }
        for (way, output) in in_all_ways(&user).await {
            assert!(output.contains("tried") && !output.contains("opened"), "{way}: {output}");
        }
        assert_eq!(facts(&program), before, "the program was changed");
    }
}

fn facts(path: &Path) -> (u64, i64, u32) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.len(), metadata.mtime(), metadata.mode())
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2020_15257_abstract_names_of_the_machine_are_not_reached() {
    let name = format!("porch-fn-test-{}", std::process::id());
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let program = format!(
        "socket(my $s, 1, 1, 0) or print(qq(refused: $!\n)), exit; my $to = pack('S a*', 1, qq(\\0{name}));\n\
         print(connect($s, $to) ? qq(connected\\n) : qq(refused: $!\\n));"
    );
    for user in ImageUser::all() {
        user.import(NAME, &perl(&program)).await;
        for network in ["none", "host"] {
            let ended = user.run(&["run", "--network", network, NAME], b"").await;
            assert!(stdout(&ended).starts_with("refused"), "{network}: {ended:?}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2020_15257_no_process_of_ours_has_an_abstract_name() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("cat; sleep 1")).await;
        let before = abstract_names();
        let up = Up::start(&user, &[]).await;
        let client = up.client();
        let call = client.call(NAME, INPUT);
        let (_, during) = tokio::join!(call, async { abstract_names() });
        let own =
            |name: &&String| name.contains("porch") && !before.contains(name) && !name.contains("-test-");
        let new: Vec<_> = during.iter().chain(&abstract_names()).filter(own).cloned().collect();
        assert!(new.is_empty(), "{new:?}");
    }
}

fn abstract_names() -> Vec<String> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().filter_map(|line| line.split_once('@')).map(|(_, name)| name.to_owned()).collect()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2021_30465_a_mount_stays_below_the_images_root() {
    for user in ImageUser::all() {
        let folder = outside(&user);
        let before = state(&folder);
        let source = open_folder(user.sandbox(), "source");
        user.sandbox().write("source/file", "content\n");
        for layer in linked_targets(folder.to_str().unwrap()) {
            user.import(NAME, &shell("cat /in/file /in/sub/file; cat /in/secret; : > /in/new").layer(layer))
                .await;
            for target in ["/in", "/in/sub", "/in/../in"] {
                let mount = format!("type=bind,src={},dst={target},rw", source.display());
                let ended = user.run(&["run", "--mount", &mount, NAME], b"").await;
                let output = stdout(&ended) + &stderr(&ended);
                assert!(!output.contains(SECRET), "{target}: {output}");
                assert!(state(&folder) == before, "{target}: a folder of the machine was changed");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2022_0492_no_cgroup_is_mounted() {
    let script = "exec >&2; unshare -UrmC sh -c 'mount -t cgroup -o rdma none /tmp' && echo mounted\n\
                  for kind in cgroup cgroup2 proc sysfs tmpfs; do mount -t $kind none /tmp && echo mounted; done\n\
                  for file in $(find / -name release_agent -o -name cgroup.procs 2>/dev/null); do (echo 0 > $file) \
                  2>/dev/null && echo \"wrote $file\"; done; echo tried; exit 1";
    for user in ImageUser::all() {
        let layer = Layer::of_programs(&["sh", "unshare", "mount", "find"]).script("function", script);
        user.import(NAME, &Image::new(&["/function"]).layer(layer).with("User", "0:0")).await;
        for (way, output) in in_all_ways(&user).await {
            assert!(output.contains("tried"), "{way}: {output}");
            assert!(!output.contains("mounted\n") && !output.contains("wrote"), "{way}: {output}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2022_23648_a_volume_shows_no_file_of_the_machine() {
    for user in ImageUser::all() {
        let folder = outside(&user);
        let path = folder.to_str().unwrap();
        let up = format!("/../../../../../../../..{path}");
        let script = format!("exec >&2; cat {path}/secret /volume/secret /linked/secret /*/secret; exit 1");
        let layer = Layer::new().symlink("linked", &up).folder("volume", 0o755);
        let volumes = json!({&up: {}, path: {}, "/linked": {}, "/volume/../../../..": {}});
        user.import(NAME, &shell(&script).layer(layer).with("Volumes", volumes)).await;
        let before = state(&folder);
        for (way, output) in in_all_ways(&user).await {
            assert!(output.contains("No such file") && !output.contains(SECRET), "{way}: {output}");
        }
        assert!(state(&folder) == before);
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2024_23652_and_2024_45310_a_mounts_target_is_made_and_removed_only_inside() {
    for user in ImageUser::all() {
        let folder = outside(&user);
        fs::create_dir(folder.join("empty")).unwrap();
        fs::write(folder.join("empty-file"), "").unwrap();
        let before = state(&folder);
        let source = open_folder(user.sandbox(), "source");
        let file = user.sandbox().write("source/file", "content\n");
        for layer in linked_targets(folder.to_str().unwrap()) {
            user.import(NAME, &shell("ls -R /in >/dev/null; echo ran").layer(layer)).await;
            for target in ["/in/empty", "/in/empty/new", "/in/empty-file", "/in/new", "/in/new/deep/er"] {
                for source in [&source, &file] {
                    let mount = format!("type=bind,src={},dst={target},rw", source.display());
                    let ended = user.run(&["run", "--mount", &mount, NAME], b"").await;
                    assert!(state(&folder) == before, "{mount}: {ended:?}: {:?}", state(&folder));
                }
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2024_40635_a_number_above_the_largest_is_not_root() {
    for user in ImageUser::all() {
        for number in [
            "4294967296",
            "4294967295",
            "2147483648",
            "-1",
            "18446744073709551616",
            "99999999999999999999",
            "+0x0",
        ] {
            for of_user in [number.to_owned(), format!("{number}:{number}"), format!("7:{number}")] {
                user.import(NAME, &shell("id -u; id -g").with("User", &*of_user)).await;
                let flag = format!("--user={of_user}");
                for args in [&["run", NAME][..], &["run", &flag, NAME]] {
                    let ended = user.run(args, b"").await;
                    let ids = stdout(&ended);
                    // Without a group, it is root's, as with Docker.
                    let ids = ids.split_whitespace().take(1 + usize::from(of_user.contains(':')));
                    assert!(!ids.into_iter().any(|id| id == "0"), "{of_user}: {ended:?}");
                    assert!(
                        ended.status.success() || ended.status.code() == Some(125),
                        "{of_user}: {ended:?}"
                    );
                }
            }
        }
    }
}

/// Names that the kernel's own files and devices must have, whatever the image has there.
fn false_folders() -> Vec<(&'static str, Layer)> {
    let files = |layer: Layer| {
        ["self/attr/current", "self/attr/exec", "sys/kernel/core_pattern", "sysrq-trigger", "self/fd/0"]
            .iter()
            .fold(layer, |layer, name| layer.file(&format!("false/{name}"), 0o666, b"false\n"))
    };
    vec![
        ("null is a file", Layer::new().file("dev/null", 0o666, b"false\n")),
        ("null is a link", Layer::new().symlink("dev/null", "/proc/sysrq-trigger")),
        ("null is a link to a setting", Layer::new().symlink("dev/null", "/proc/sys/kernel/core_pattern")),
        ("null is a folder", Layer::new().folder("dev/null", 0o777)),
        ("dev is a link", files(Layer::new().symlink("dev", "false"))),
        ("proc is a link", files(Layer::new().symlink("proc", "false"))),
        ("proc has files", files(Layer::new()).file("proc/self/attr/exec", 0o666, b"false\n")),
        ("proc/self is a link", Layer::new().symlink("proc/self", "/false").file("false/x", 0o644, b"")),
        ("proc/sys is a link", files(Layer::new().symlink("proc/sys", "/false/sys"))),
    ]
}

/// Prints what is false.
const TRUE_FOLDERS: &str = "exec >&2; set -- $(stat -c '%t:%T' /dev/null); [ \"$1\" = 1:3 ] || echo \"WRONG null is $1\"\n\
    [ \"$(stat -f -c %T /proc)\" = proc ] || echo WRONG proc\n\
    [ -c /dev/null ] && [ \"$(cat /dev/null)\" = '' ] || echo WRONG content\n\
    for path in /proc/kcore /proc/keys /proc/timer_list /proc/latency_stats /proc/sched_debug /proc/acpi /proc/scsi; do\n\
    [ -f $path ] || [ -c $path ] && [ \"$(head -c 1 $path 2>/dev/null)\" ] && echo \"WRONG $path\"; done\n\
    for path in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/irq/default_smp_affinity; do\n\
    (: >> $path) 2>/dev/null && echo \"WRONG $path can be written\"; done\n\
    echo looked; exit 1";

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn cve_2025_31133_and_2025_52881_the_image_has_no_say_in_proc_and_dev() {
    for user in ImageUser::all() {
        for flags in [&[][..], &["--user", "0:0"]] {
            for (what, layer) in false_folders() {
                let base =
                    Layer::of_programs(&["sh", "stat", "head", "cat"]).script("function", TRUE_FOLDERS);
                user.import(NAME, &Image::new(&["/function"]).layer(base).layer(layer)).await;
                let ended = user.run(&[&["run"], flags, &[NAME]].concat(), b"").await;
                let text = stderr(&ended);
                assert!(!text.contains("WRONG"), "{what}: {text}");
                // A refusal is as good.
                assert!(text.contains("looked") || ended.status.code() == Some(125), "{what}: {ended:?}");
            }
        }
        for (way, output) in in_all_ways(&user).await {
            assert!(!output.contains("WRONG"), "{way}: {output}");
        }
    }
}
