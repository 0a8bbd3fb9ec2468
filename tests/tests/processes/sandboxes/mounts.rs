//! Mounts of a sandbox whose folders change while it is built, or that lie in and below each other.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::spawn;

use porch_fn_tests::image_user::ImageUser;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::geteuid;

use super::{NAME, open_folder, shell, stderr, stdout};

/// Sandboxes that are built while another process exchanges what lies at two paths.
const BUILT: usize = 60;

/// Does the work while a thread exchanges what lies at two paths, all the time.
async fn while_exchanged(one: &Path, other: &Path, work: impl AsyncFnOnce()) {
    let paths = [one.to_owned(), other.to_owned()];
    let is_over = Arc::new(AtomicBool::new(false));
    let end = is_over.clone();
    let thread = spawn(move || {
        while !end.load(Ordering::Relaxed) {
            renameat_with(CWD, &paths[0], CWD, &paths[1], RenameFlags::EXCHANGE).unwrap();
        }
    });
    work().await;
    is_over.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}

fn bind(source: &Path, target: &str, more: &str) -> String {
    format!("type=bind,src={},dst={target}{more}", source.display())
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_read_only_mount_stays_so_while_its_parent_is_exchanged() {
    for user in ImageUser::all() {
        let script = "for f in /in/a/m /in/b/m; do (: > $f/new) 2>/dev/null; done; true";
        user.import(NAME, &shell(script)).await;
        for folder in ["in", "in/a", "in/b", "in/a/m", "in/b/m", "kept"] {
            open_folder(user.sandbox(), folder);
        }
        let [writable, one, other, kept] =
            ["in", "in/a", "in/b", "kept"].map(|name| user.sandbox().path(name));
        let mounts = [bind(&writable, "/in", ",rw"), bind(&kept, "/in/a/m", "")];
        while_exchanged(&one, &other, async || {
            for number in 0..BUILT {
                let args = ["run", "--mount", &mounts[0], "--mount", &mounts[1], NAME];
                let ended = user.run(&args, b"").await;
                assert!(!kept.join("new").exists(), "run {number} wrote: {ended:?}");
            }
        })
        .await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn nothing_is_created_outside_while_a_folder_becomes_a_link() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("true")).await;
        for folder in ["in", "in/a", "kept", "outside"] {
            open_folder(user.sandbox(), folder);
        }
        let [writable, folder, link, kept, outside] =
            ["in", "in/a", "in/link", "kept", "outside"].map(|name| user.sandbox().path(name));
        symlink(&outside, &link).unwrap();
        while_exchanged(&folder, &link, async || {
            for number in 0..BUILT {
                let target = format!("/in/a/{number}/below");
                let mounts = [bind(&writable, "/in", ",rw"), bind(&kept, &target, "")];
                user.run(&["run", "--mount", &mounts[0], "--mount", &mounts[1], NAME], b"").await;
                let created: Vec<_> = fs::read_dir(&outside).unwrap().collect();
                assert!(created.is_empty(), "run {number}: {created:?}");
            }
        })
        .await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn mounts_lie_in_each_other_in_any_order() {
    for user in ImageUser::all() {
        let script = "cat /in/name /in/sub/name; (: > /in/new) 2>/dev/null && echo wrote above\n\
                      (: > /in/sub/new) 2>/dev/null && echo wrote below; true";
        user.import(NAME, &shell(script)).await;
        for folder in ["above", "above/sub", "below"] {
            open_folder(user.sandbox(), folder);
        }
        user.sandbox().write("above/name", "above\n");
        user.sandbox().write("below/name", "below\n");
        let [above, below] = ["above", "below"].map(|name| user.sandbox().path(name));
        for (of_above, of_below, expected) in
            [("", ",rw", "above\nbelow\nwrote below\n"), (",rw", "", "above\nbelow\nwrote above\n")]
        {
            let mut mounts = [bind(&above, "/in", of_above), bind(&below, "/in/sub", of_below)];
            for _ in 0..2 {
                let args = ["run", "--mount", &mounts[0], "--mount", &mounts[1], NAME];
                let ended = user.run(&args, b"").await;
                assert_eq!(stdout(&ended), expected, "{mounts:?}: {ended:?}");
                mounts.reverse();
            }
        }
        // The later of two mounts at one place is seen, and has its own rights.
        let mounts = [bind(&above, "/in", ",rw"), bind(&below, "/in", "")];
        let ended = user.run(&["run", "--mount", &mounts[0], "--mount", &mounts[1], NAME], b"").await;
        assert_eq!(stdout(&ended), "below\n", "{ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_sandboxs_own_folders_are_not_shown_by_mounts_of_the_machine() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("ls /host/kernel")).await;
        let ended = user.run(&["run", "--mount", "type=bind,src=/sys,dst=/host,rw", NAME], b"").await;
        let shown: Vec<_> = stdout(&ended).lines().map(str::to_owned).collect();
        let real = fs::read_dir("/sys/kernel").unwrap().count();
        assert_eq!(shown.len(), real, "{ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_hidden_file_system_is_refused_and_named() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can mount a file system below a folder");
        return;
    }
    for user in ImageUser::all() {
        user.import(NAME, &shell("echo ran")).await;
        let source = open_folder(user.sandbox(), "in");
        open_folder(user.sandbox(), "in/sub");
        let number = user.number().unwrap_or_default();
        let start = format!(
            "mount -t tmpfs none {0}/sub && mkdir {0}/sub/deep && mount -t tmpfs none {0}/sub/deep &&\n\
             mount -t tmpfs none {0}/sub || exit 99\n\
             exec setpriv --reuid={number} --regid={number} --clear-groups {1} run --mount {2} {NAME}",
            source.display(),
            user.program().display(),
            bind(&source, "/in", ""),
        );
        let mut command = user.command("unshare");
        command.uid(0).gid(0).args(["--mount", "sh", "-c", &start]).stdin(Stdio::null());
        let ended = command.output().await.unwrap();
        assert_eq!(ended.status.code(), Some(125), "{ended:?}");
        assert!(stderr(&ended).contains("at sub, "), "{ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_working_directory_below_a_mount_is_created_there() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("pwd").with("WorkingDir", "/in/work/folder")).await;
        let source = open_folder(user.sandbox(), "in");
        let ended = user.run(&["run", "--mount", &bind(&source, "/in", ",rw"), NAME], b"").await;
        assert_eq!(stdout(&ended), "/in/work/folder\n", "{ended:?}");
        let source = open_folder(user.sandbox(), "other");
        let ended = user.run(&["run", "--mount", &bind(&source, "/in", ""), NAME], b"").await;
        assert_eq!(ended.status.code(), Some(125), "{ended:?}");
        assert!(stderr(&ended).contains("/in/work"), "{ended:?}");
        File::open(user.sandbox().path("in/work/folder")).unwrap();
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn faults_of_mounts_are_faults_of_the_flag() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("echo ran")).await;
        let source = open_folder(user.sandbox(), "in");
        for target in ["/proc", "/proc/x", "/bin/sh", "/bin/sh/x"] {
            let ended = user.run(&["run", "--mount", &bind(&source, target, ""), NAME], b"").await;
            assert_eq!(ended.status.code(), Some(125), "{target}: {ended:?}");
            let text = stderr(&ended);
            assert!(text.contains(target) && text.contains("--mount"), "{target}: {text}");
            assert!(!text.contains("change the image"), "{target}: {text}");
        }
    }
}
