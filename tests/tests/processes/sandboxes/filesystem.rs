//! The folders that a function has: its working directory, its mounts, its outputs and the store.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use porch_fn_tests::image::{Image, Layer};
use porch_fn_tests::image_user::{ImageUser, Up};
use rustix::process::geteuid;

use super::super::INPUT;
use super::{NAME, engine, in_all_ways, open_folder, perl, programs, shell, stderr, stdout};

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_working_directory_that_no_layer_has_is_created() {
    let lower = || {
        Layer::new()
            .folder("real", 0o755)
            .symlink("link", "real")
            .symlink("absolute", "/real")
            .symlink("real/up", "../../../other")
            .file("hidden/file", 0o644, b"x")
            .file("opaque/file", 0o644, b"x")
            .folder("other", 0o755)
    };
    let upper = || Layer::new().whiteout(".", "hidden").opaque("opaque");
    for user in ImageUser::all() {
        for (folder, expected) in [
            ("/work/of/it", "/work/of/it"),
            ("/real/new", "/real/new"),
            ("/link/new/er", "/real/new/er"),
            ("/absolute/new", "/real/new"),
            ("/real/up/new", "/other/new"),
            ("/hidden/new", "/hidden/new"),
            ("/opaque/new", "/opaque/new"),
            ("/tmp/new", "/tmp/new"),
            ("/real/../new", "/new"),
        ] {
            let image = shell("pwd -P >&2; ls -A >&2").layer(lower()).layer(upper());
            user.import(NAME, &image.with("WorkingDir", folder)).await;
            let ended = user.run(&["run", NAME], b"").await;
            assert_eq!(stderr(&ended), format!("{expected}\n"), "{folder}: {ended:?}");
        }
        for (way, output) in in_all_ways(&user).await {
            assert!(output.contains("/new\n") || output.contains("'/new"), "{way}: {output}");
        }
        user.import(NAME, &shell("pwd").with("WorkingDir", "/function/below")).await;
        let ended = user.run(&["run", NAME], b"").await;
        assert_eq!(ended.status.code(), Some(125), "a file is no folder: {ended:?}");
        assert!(stderr(&ended).contains("/function"), "{ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_relative_store_is_the_same_for_all() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("cat; echo ran >&2; exit 1")).await;
        let flag = "--image-dir=home/images";
        let ended = user.run(&["run", flag, NAME], b"").await;
        assert_eq!(stderr(&ended), "ran\n", "{ended:?}");
        let up = Up::start(&user, &[flag]).await;
        let answer = up.client().call(NAME, INPUT).await;
        let output = String::from_utf8_lossy(&answer.log) + &*answer.message;
        assert!(output.contains("ran"), "{answer:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn what_is_mounted_below_a_read_only_mount_is_read_only() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can mount a file system below a folder");
        return;
    }
    for user in ImageUser::all() {
        let script = "(: > /in/new) 2>/dev/null && echo wrote; (: > /in/sub/new) 2>/dev/null && echo wrote-below\n\
                      (: > /in/sub/deep/er/new) 2>/dev/null && echo wrote-below-that\n\
                      cat /in/sub/file; grep ' /in' /proc/self/mountinfo";
        user.import(NAME, &shell(script)).await;
        let source = open_folder(user.sandbox(), "in");
        open_folder(user.sandbox(), "in/sub");
        let mount = format!("type=bind,src={},dst=/in", source.display());
        let number = user.number().unwrap_or_default();
        let start = format!(
            "cd {0} && mount -t tmpfs -o mode=777,noexec none sub && echo below > sub/file &&\n\
             mkdir -p sub/deep/er && mount -t tmpfs -o mode=777 none sub/deep/er || exit 99\n\
             cd {1}; exec setpriv --reuid={number} --regid={number} --clear-groups {2} run --mount {mount} {NAME}",
            source.display(),
            user.sandbox().directory().display(),
            user.program().display(),
        );
        let mut command = user.command("unshare");
        // Root mounts. The program is then the user's.
        command.uid(0).gid(0).args(["--mount", "sh", "-c", &start]).stdin(Stdio::null());
        let ended = command.output().await.unwrap();
        let output = stdout(&ended);
        assert!(output.starts_with("below\n"), "{ended:?}");
        let mounts: Vec<_> = output.lines().filter(|line| line.contains(" /in")).collect();
        assert_eq!(mounts.len(), 3, "{output}");
        for line in mounts {
            let options: Vec<_> = line.split(' ').nth(5).unwrap_or_default().split(',').collect();
            for option in ["ro", "nosuid", "nodev"] {
                assert!(options.contains(&option), "{line} is not {option}");
            }
        }
        assert!(output.contains("ro,nosuid,nodev,noexec"), "a mount keeps its own options: {output}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_mount_of_the_link_is_writable_without_readonly() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("(: > /x/new) 2>/dev/null && echo wrote; cat /x/file")).await;
        let folder = open_folder(user.sandbox(), "x");
        user.sandbox().write("x/file", "content\n");
        let link = engine(&user).await;
        for (more, expected) in [
            ("", "wrote\ncontent\n"),
            (",rw=true", "wrote\ncontent\n"),
            (",readonly", "content\n"),
            (",readonly=true", "content\n"),
            (",ro", "content\n"),
        ] {
            let mount = format!("type=bind,source={},target=/x{more}", folder.display());
            let ended = user.run_program(&link, &["run", "--rm", "-i", "--mount", &mount, NAME], b"").await;
            assert_eq!(stdout(&ended), expected, "{mount}: {ended:?}");
            let has_written = fs::remove_file(folder.join("new")).is_ok();
            assert_eq!(has_written, expected.starts_with("wrote"), "{mount}");
        }
    }
}

/// Tries to read and to empty what is behind the outputs.
const OF_OUTPUTS: &str = "for my $fd (0, 1, 2) { my $path = qq(/proc/self/fd/$fd); my $x;\n\
    if (sysopen(F, $path, 2048) && sysread(F, $x, 4096)) { print STDOUT qq(read: $x\\n) }\n\
    if (-d $path) { print STDOUT qq(folder\\n); opendir(D, $path) and print STDOUT qq(names: @{[readdir D]}\\n) }\n\
    sysopen(F, $path, 1 | 512 | 2048); truncate($path, 0); truncate(F, 0); close F }\n\
    truncate(STDOUT, 0); truncate(STDERR, 0); sysseek(STDERR, 0, 0); sysseek(STDOUT, 0, 0);\n\
    print STDERR qq(noted\\n); print STDOUT qq(answered\\n);";

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn files_as_outputs_are_only_added_to() {
    const EARLIER: &str = "an earlier line\n";
    for user in ImageUser::all() {
        user.import(NAME, &perl(OF_OUTPUTS)).await;
        for (out, err) in [("home/one", "home/other"), ("home/both", "home/both")] {
            for name in [out, err] {
                let path = user.sandbox().write(name, EARLIER);
                // Everybody may write, so that the function's user may open it by its name.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            }
            let open = |name: &str| {
                OpenOptions::new().read(true).append(true).open(user.sandbox().path(name)).unwrap()
            };
            let (out_file, err_file) = (open(out), open(err));
            let mut command = user.command(user.program());
            command.args(["run", NAME]).stdin(Stdio::null()).stdout(out_file).stderr(err_file);
            assert!(command.status().await.unwrap().success());
            let read = |name: &str| fs::read_to_string(user.sandbox().path(name)).unwrap();
            for (name, added) in [(out, "answered\n"), (err, "noted\n")] {
                let text = read(name);
                assert!(text.starts_with(EARLIER) && text.contains(added), "{name}: {text:?}");
                assert_eq!(text.matches(EARLIER).count(), 1, "it was read back: {text:?}");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_folder_as_standard_input_is_not_shown() {
    for user in ImageUser::all() {
        user.sandbox().write("home/folder/name-of-the-machine", "x");
        user.import(NAME, &perl(OF_OUTPUTS)).await;
        let mut command = user.command(user.program());
        command.args(["run", NAME]).stdin(File::open(user.sandbox().path("home/folder")).unwrap());
        let ended = command.output().await.unwrap();
        let output = stdout(&ended) + &stderr(&ended);
        assert!(!output.contains("name-of-the-machine") && !output.contains("folder\n"), "{output}");
    }
}

/// The user of these tests, if it is root.
fn root() -> Option<ImageUser> {
    if geteuid().is_root() {
        return Some(ImageUser::own());
    }
    eprintln!("skipped: the tests are not root");
    None
}

async fn import_to(user: &ImageUser, folder: &Path) -> Output {
    let flag = format!("--image-dir={}", folder.display());
    user.run(&["images", "import", &flag, "-"], &shell("echo ran").oci_archive(NAME)).await
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn root_has_no_store_that_others_may_change() {
    let Some(user) = root() else { return };
    let ended = import_to(&user, &open_folder(user.sandbox(), "open")).await;
    let text = stderr(&ended);
    assert!(!ended.status.success() && text.contains("writ") && text.contains("--image-dir"), "{ended:?}");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn root_has_no_store_that_others_may_replace() {
    let Some(user) = root() else { return };
    open_folder(user.sandbox(), "open");
    for folder in ["open/images", "open/deep/images"] {
        let ended = import_to(&user, &user.sandbox().path(folder)).await;
        assert!(!ended.status.success() && stderr(&ended).contains("writ"), "{folder}: {ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn root_follows_no_link_of_others_to_a_store() {
    let Some(user) = root() else { return };
    let home = user.sandbox().path("home-of-another");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(54321), Some(54321)).unwrap();
    // A folder of root's with a name that a store has, too.
    let kept = user.sandbox().write("of-root/tmp/kept", "kept");
    for (link, target) in
        [("dangling", PathBuf::from("/nowhere")), ("to-root", user.sandbox().path("of-root"))]
    {
        symlink(&target, home.join(link)).unwrap();
        lchown(home.join(link), Some(54321), Some(54321)).unwrap();
        let ended = import_to(&user, &home.join(link)).await;
        assert!(!ended.status.success() && !Path::new("/nowhere").exists(), "{link}: {ended:?}");
        assert!(kept.exists(), "{link}: root's own file is removed: {ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_daemon_does_not_hold_the_call() {
    let script = "setsid sleep 600 & setsid sh -c 'sleep 600; echo late' & cat; echo '# done'";
    for user in ImageUser::all() {
        let layer = programs().script("function", script);
        user.import(NAME, &Image::new(&["/function"]).layer(layer)).await;
        // Each way waits for less time than the daemons run.
        for (way, output) in in_all_ways(&user).await {
            assert!(output.contains("# done") && output.contains(INPUT), "{way}: {output}");
        }
    }
}
