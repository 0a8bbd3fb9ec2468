//! What a sandbox needs from the machine and from its user: folders, descriptors, limits, signals
//! and the program itself.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Stdio;
use std::time::Duration;

use porch_fn_tests::image::{Image, Layer};
use porch_fn_tests::image_user::ImageUser;
use porch_fn_tests::process::{PATIENCE, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use super::super::INPUT;
use super::{NAME, engine, in_all_ways, perl, shell, stderr, stdout, without_cgroups};

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn it_runs_in_a_folder_that_only_its_user_may_enter() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("echo ran")).await;
        let folder = user.sandbox().path("home/private");
        fs::create_dir(&folder).unwrap();
        let owner = user.number().unwrap_or_else(|| rustix::process::geteuid().as_raw());
        chown(&folder, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let link = engine(&user).await;
        for (program, args) in [(user.program(), &["run", NAME][..]), (&link, &["run", "--rm", "-i", NAME])] {
            let mut command = user.command(program);
            command.args(args).current_dir(&folder).stdin(Stdio::null());
            let ended = command.output().await.unwrap();
            assert_eq!(stdout(&ended), "ran\n", "{program:?}: {ended:?}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn its_standard_streams_open_by_their_names() {
    for user in ImageUser::all() {
        let script = "cat /dev/stdin; echo '# out' >/dev/stdout; echo err >/dev/stderr; cat /proc/self/fd/0";
        user.import(NAME, &shell(script)).await;
        for (way, output) in in_all_ways(&user).await {
            assert!(output.contains(INPUT) && output.contains("err\n"), "{way}: {output}");
            assert!(output.contains("# out\n"), "{way}: {output}");
        }
        let file = user.sandbox().write("home/input", INPUT);
        for mode in [0o600, 0o644] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let mut command = user.command(user.program());
            // The descriptor is opened by the test, so an ordinary user need not be able to.
            command.args(["run", NAME]).stdin(fs::File::open(&file).unwrap());
            let ended = command.output().await.unwrap();
            assert_eq!(stdout(&ended), format!("{INPUT}# out\n"), "{mode:o}: {ended:?}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn limits_without_cgroups_change_no_exit_code() {
    const TIMES: usize = 15;
    for user in ImageUser::all() {
        user.import(NAME, &shell("exit \"$1\"")).await;
        let words = without_cgroups(&user, user.program().to_str().unwrap());
        for number in 0..TIMES {
            for code in ["0", "7"] {
                let args = ["run", "--memory", "268435456", "--timeout", "50s", NAME, code];
                let args: Vec<_> = words[1..].iter().map(String::as_str).chain(args).collect();
                let ended = user.run_program(&words[0], &args, b"").await;
                assert_eq!(ended.status.code().unwrap().to_string(), code, "run {number}: {ended:?}");
                assert_eq!(stderr(&ended), "", "run {number}");
            }
        }
        user.import(NAME, &shell("sleep 60")).await;
        for number in 0..3 {
            let args = ["run", "--memory", "268435456", "--timeout", "200ms", NAME];
            let args: Vec<_> = words[1..].iter().map(String::as_str).chain(args).collect();
            let ended = user.run_program(&words[0], &args, b"").await;
            assert_eq!(ended.status.code(), Some(124), "run {number}: {ended:?}");
        }
    }
}

/// Processes of a user that do nothing. They end with the test.
async fn crowd(user: &ImageUser, count: u32) -> Child {
    let mut command = user.command("perl");
    let program = "$|=1; for (1..shift) { my $p = fork; die $! unless defined $p; if (!$p) { sleep } }\n\
                   print qq(all\\n); sleep";
    command.args(["-e", program, &count.to_string()]).stdout(Stdio::piped());
    // The processes of root's sandboxes are this user's.
    let owner = user.number().unwrap_or(65534);
    if user.is_root() {
        command.uid(owner).gid(owner);
    }
    let mut child = command.spawn().unwrap();
    wait_line(&mut child, "all").await;
    child
}

async fn wait_line(child: &mut Child, expected: &str) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.expect("a line in time").unwrap();
    assert_eq!(line.as_deref(), Some(expected));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn other_processes_of_the_user_do_not_count() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("cat; echo '# ran'")).await;
        let mut crowd = crowd(&user, 1100).await;
        let words = without_cgroups(&user, user.program().to_str().unwrap());
        let args: Vec<_> = words[1..].iter().map(String::as_str).chain(["run", NAME]).collect();
        let ended = user.run_program(&words[0], &args, b"").await;
        assert_eq!(stdout(&ended), "# ran\n", "{ended:?}");
        for (way, output) in in_all_ways(&user).await {
            assert!(output.contains("# ran"), "{way}: {output}");
        }
        crowd.kill().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn two_sandboxes_share_no_number_of_processes() {
    for user in ImageUser::all() {
        let program = "$|=1; for (1..650) { my $p = fork; if (!defined $p) { print qq(none: $!\\n); last }\n\
                       if (!$p) { sleep; exit } } print qq(all\\n); <STDIN>; kill 9, -1;";
        user.import(NAME, &perl(program)).await;
        let words = without_cgroups(&user, user.program().to_str().unwrap());
        let mut both = Vec::new();
        for _ in 0..2 {
            let mut command = user.command(&words[0]);
            command.args(&words[1..]).args(["run", NAME]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            wait_line(&mut child, "all").await;
            both.push(child);
        }
    }
}

/// The first process of the sandbox that this process has created, by its number on the machine.
fn first_process(of: u32) -> Option<i32> {
    let mut family = vec![of.to_string()];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next].clone();
        next += 1;
        for process in fs::read_dir("/proc").ok()?.filter_map(Result::ok) {
            let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if field("PPid:") != Some(&*parent) {
                continue;
            }
            let numbers: Vec<_> = field("NSpid:")?.split_whitespace().collect();
            if numbers.len() > 1 && numbers.last() == Some(&"1") {
                return numbers[0].parse().ok();
            }
            family.push(numbers[0].to_owned());
        }
    }
    None
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_killed_first_process_is_no_success() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("echo started; sleep 600")).await;
        for signal in [Signal::KILL, Signal::SEGV, Signal::ABORT] {
            let mut command = user.command(user.program());
            command.args(["run", NAME]).stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let parent = child.id().unwrap();
            wait_line(&mut child, "started").await;
            let first = eventually("a first process", async || first_process(parent)).await;
            kill_process(Pid::from_raw(first).unwrap(), signal).unwrap();
            if signal != Signal::KILL {
                // A first process may handle it.
                let _ = timeout(Duration::from_millis(500), child.wait()).await;
                let _ = kill_process(Pid::from_raw(first).unwrap(), Signal::KILL);
            }
            let ended = timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap();
            assert!(ended.code().is_some_and(|code| code >= 125), "{signal:?}: {ended:?}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_signal_that_ends_the_function_is_in_the_exit_code() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("kill -\"$1\" $$; exit 9")).await;
        for signal in [1, 2, 3, 6, 9, 11, 13, 15] {
            let ended = user.run(&["run", NAME, &signal.to_string()], b"").await;
            assert_eq!(ended.status.code(), Some(128 + signal), "{ended:?}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn what_is_not_enforced_is_said_in_one_line() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("echo ran")).await;
        let words = without_cgroups(&user, user.program().to_str().unwrap());
        let line = [&words[..], &["run", "--cpus", "1", NAME].map(str::to_owned)].concat();
        let quoted: Vec<_> = line.iter().map(|word| format!("'{word}'")).collect();
        // A terminal stands for a person.
        let args = ["--quiet", "--return", "--command", &quoted.join(" "), "/dev/null"];
        let ended = user.run_program("script", &args, b"").await;
        let output = stdout(&ended).replace('\r', "");
        let lines: Vec<_> = output.lines().filter(|line| line.starts_with("porch-fn run: ")).collect();
        assert!(output.contains("ran\n"), "{output}");
        assert!(
            matches!(lines[..], [line] if ["memory", "shared", "CPU"].iter().all(|word| line.contains(word))),
            "{output}"
        );
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn tmp_has_a_limit_of_files_and_always_one_of_bytes() {
    const MOST_FILES: u64 = 600_000;
    for user in ImageUser::all() {
        let script =
            "set -- $(stat --file-system --format='%b %c' /tmp); echo bytes=$1 >&2; echo files=$2 >&2";
        let layer = Layer::of_programs(&["sh", "stat"]).script("function", script);
        user.import(NAME, &Image::new(&["/function"]).layer(layer)).await;
        let number = |output: &str, name: &str| -> u64 {
            output.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap_or_default()
        };
        for (way, output) in in_all_ways(&user).await {
            let files = number(&output, "files=");
            assert!(0 < files && files <= MOST_FILES, "{way}: {output}");
        }
        for size in ["0", "1", "1048576"] {
            let ended = user.run(&["run", "--tmp-size", size, NAME], b"").await;
            let output = stderr(&ended);
            let is_refused = !ended.status.success() && output.contains("--tmp-size");
            assert!(is_refused || number(&output, "bytes=") > 0, "--tmp-size {size}: {ended:?}");
            assert!(number(&output, "files=") <= MOST_FILES, "--tmp-size {size}: {ended:?}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn who_is_root_only_for_himself_is_an_ordinary_user() {
    for user in ImageUser::all() {
        let archive = user.sandbox().path("home/archive");
        fs::write(&archive, shell("id -u").oci_archive(NAME)).unwrap();
        let images = user.sandbox().path("home/other-images");
        let flag = format!("--image-dir={}", images.display());
        let program = user.program().to_str().unwrap();
        for args in [&["images", "import", &flag, archive.to_str().unwrap()][..], &["run", &flag, NAME]] {
            let words = [&["--map-root-user", program], args].concat();
            let ended = user.run_program("unshare", &words, b"").await;
            assert!(ended.status.success(), "{args:?}: {ended:?}");
            assert!(args[0] != "run" || stdout(&ended) == "65534\n", "{ended:?}");
        }
    }
}
