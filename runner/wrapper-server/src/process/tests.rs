//! Tests with real processes: a function gets its input and environment, and its processes end with
//! the call.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::slice;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};

use super::*;
use crate::go_text::go_exit_text;

const LIMITS: Limits =
    Limits { stdout: 6 << 20, stderr_head: 4 << 10, stderr_tail: 4 << 10, join_lines: false };

/// Longer than any of these scripts takes, and shorter than the test harness waits.
const SOON: Duration = Duration::from_secs(20);

fn sh(script: &str) -> Program {
    Program::new("sh", ["-c", script], Environment::Inherit)
}

async fn run_with(program: &Program, stdin: &[Bytes], stdout: usize) -> Result<Finished, RunError> {
    let limits = Limits { stdout, ..LIMITS };
    timeout(SOON, run(program, stdin.to_vec(), &limits, None)).await.expect("the call ends")
}

async fn run_sh(script: &str) -> Result<Finished, RunError> {
    run_with(&sh(script), &[], LIMITS.stdout).await
}

fn stderr(finished: Finished) -> Bytes {
    finished.stderr.into_bytes(usize::MAX)
}

/// Seconds for a process to sleep. No other process has this number in its command line.
fn unique_seconds(test: u32) -> String {
    format!("60.{}{test}", std::process::id())
}

/// The processes whose command line contains `word`. A zombie has no command line.
fn processes_with(word: &str) -> Vec<Pid> {
    let contains = |pid: &Pid| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(word))
    };
    processes().filter(contains).collect()
}

/// The children of this process with this name, zombies included.
fn children_named(name: &str) -> Vec<Pid> {
    let is_ours = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((head, tail)) = stat.rsplit_once(')') else { return false };
        let parent = tail.split_ascii_whitespace().nth(1).and_then(|parent| parent.parse().ok());
        parent == Some(std::process::id()) && head.ends_with(&format!("({name}"))
    };
    processes().filter(is_ours).collect()
}

fn processes() -> impl Iterator<Item = Pid> {
    let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?))
}

/// Polls until `find` returns no process, because no event reports that a killed process is gone.
async fn wait_until_gone(find: impl Fn() -> Vec<Pid>) {
    let polled = timeout(SOON, async {
        while !find().is_empty() {
            sleep(Duration::from_millis(2)).await;
        }
    });
    polled.await.unwrap_or_else(|_| panic!("still there: {:?}", find()));
}

#[tokio::test]
async fn the_program_gets_its_name_and_the_given_environment_only() {
    let variables = vec![("ONLY".into(), "this".into())];
    let script = "echo $0; env | grep -v -e ^PWD= -e ^SHLVL= -e ^_=; echo err >&2; exit 3";
    let program = Program::new("sh", ["-c", script, "name"], Environment::Only(variables));
    let finished = run_with(&program, &[], 1000).await.unwrap();
    assert_eq!(&finished.stdout[..], b"name\nONLY=this\n");
    assert_eq!(
        (go_exit_text(finished.status), &stderr(finished)[..]),
        ("exit status 3".into(), &b"err\n"[..])
    );
    // argv[0] is the name that the test passed, not the path of the executable.
    let finished = run_sh("tr '\\0' ' ' </proc/$$/cmdline | cut -c1-3; kill -KILL $$").await.unwrap();
    assert_eq!(
        (&finished.stdout[..], go_exit_text(finished.status)),
        (&b"sh \n"[..], "signal: killed".into())
    );
}

#[tokio::test]
async fn a_program_that_the_system_cannot_start_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (draft, path) = (directory.path().join("draft"), directory.path().join("program"));
    fs::write(&draft, [0x7f, b'E', b'L', b'F', 0, 0]).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    // Linux does not execute a file that is open for writing. A child that another test forks would
    // inherit a file that this process writes, so `cp` writes the program.
    assert!(std::process::Command::new("cp").args([&draft, &path]).status().unwrap().success());
    let program = Program::new(path.as_os_str(), [""; 0], Environment::Inherit);
    let error = run_with(&program, &[], 0).await.unwrap_err();
    assert_eq!(error.to_string(), format!("fork/exec {}: exec format error", path.display()));
}

#[tokio::test]
async fn a_function_reads_its_input_in_chunks_or_not_at_all() {
    let chunk: Bytes = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let chunks = [chunk.clone(), Bytes::new(), chunk.slice(1..), chunk.slice(2..), chunk.slice(3..), chunk];
    // The last function continues after it has closed its stdin.
    for (script, stdout) in [
        ("cat", &chunks.concat()[..]),
        ("echo done", b"done\n"),
        ("exec <&-; sleep 0.2; echo done", b"done\n"),
    ] {
        let finished = run_with(&sh(script), &chunks, LIMITS.stdout).await.unwrap();
        assert!(finished.status.success() && finished.stdout == stdout, "{script}");
    }
    let whole = chunks.concat().len();
    assert_eq!(run_with(&sh("cat"), &chunks, whole).await.unwrap().stdout.len(), whole);
    let error = run_with(&sh("cat"), &chunks, whole - 1).await.unwrap_err();
    assert!(matches!(error, RunError::StdoutTooLarge), "{error}");
}

#[tokio::test]
async fn a_process_that_keeps_only_stdin_and_stderr_open_is_killed_without_delay() {
    let word = &unique_seconds(1);
    // The second process is in a session of its own. It outlives the call, because the test process
    // does not adopt orphans.
    for (left_behind, is_killed) in
        [(format!("exec 3<&0; sleep {word} <&3"), true), (format!("setsid sleep {word}"), false)]
    {
        let program = sh(&format!("{left_behind} >/dev/null & echo done; echo err >&2"));
        let finished = run_with(&program, &[vec![0; 1 << 20].into()], 1000).await.unwrap();
        assert_eq!(&finished.stdout[..], b"done\n");
        assert_eq!(&stderr(finished)[..], b"err\n");
        if is_killed {
            wait_until_gone(|| processes_with(word)).await;
        }
    }
    for pid in processes_with(&format!("sleep {word}")) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[tokio::test]
async fn a_daemon_that_keeps_stdout_open_does_not_hold_the_call() {
    let word = &unique_seconds(4);
    let started = Instant::now();
    let deadline = Some(started + SOON);
    let finished = run(&sh(&format!("sleep {word} & echo done")), [], &LIMITS, deadline).await.unwrap();
    assert!(finished.status.success() && &finished.stdout[..] == b"done\n", "{finished:?}");
    wait_until_gone(|| processes_with(word)).await;
}

/// When the process exits, the pipe may still contain the last bytes of stderr. Tokio may report
/// them later than the exit.
#[tokio::test]
async fn stderr_is_complete_when_the_function_ends() {
    for _ in 0..200 {
        let finished = run_sh("echo a >&2; exec >&-; printf b >&2").await.unwrap();
        assert_eq!(&stderr(finished)[..], b"a\nb");
    }
}

#[tokio::test]
async fn the_deadline_kills_the_whole_group() {
    let word = &unique_seconds(3);
    // In the second script, the shell ends at once, and only its background process holds stdout.
    for script in [format!("sleep {word} & sleep {word}"), format!("sleep {word} &")] {
        let started = Instant::now();
        let deadline = Some(started + Duration::from_millis(500));
        let error = run(&sh(&script), [], &LIMITS, deadline).await.unwrap_err();
        assert!(matches!(error, RunError::Deadline), "{error}");
        assert!((Duration::from_millis(500)..SOON).contains(&started.elapsed()), "{:?}", started.elapsed());
        wait_until_gone(|| processes_with(word)).await;
    }
    let error = run(&sh("exec no-such-program"), [], &LIMITS, Some(Instant::now())).await.unwrap_err();
    assert!(matches!(error, RunError::Deadline), "a deadline that has passed starts no process: {error}");
}

#[tokio::test]
async fn a_cancelled_call_kills_the_group() {
    let word = &unique_seconds(4);
    // The shell's unique name distinguishes this test's zombies from other tests' children.
    let directory = tempfile::tempdir().unwrap();
    let shell = directory.path().join("cancelled");
    symlink("/bin/sh", &shell).unwrap();
    let program = Program::new(shell, ["-c", &format!("sleep {word} & sleep {word}")], Environment::Inherit);
    let started = async {
        while processes_with(&format!("sleep {word}")).len() < 2 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        ended = run(&program, [], &LIMITS, None) => panic!("ended by itself: {ended:?}"),
        () = started => assert_eq!(children_named("cancelled").len(), 1),
    }
    wait_until_gone(|| processes_with(word)).await;
    wait_until_gone(|| children_named("cancelled")).await;
}

#[tokio::test]
async fn stdout_may_have_exactly_its_limit() {
    let of = |bytes: usize| sh(&format!("head -c {bytes} /dev/zero"));
    for limit in [0, 1, 65_535, 65_536, 100_000] {
        assert_eq!(run_with(&of(limit), &[], limit).await.unwrap().stdout.len(), limit);
        let error = run_with(&of(limit + 1), &[], limit).await.unwrap_err();
        assert!(matches!(error, RunError::StdoutTooLarge), "{error}");
    }
    let word = &unique_seconds(5);
    let error = run_with(&sh(&format!("yes {word}; sleep 60")), &[], 100_000).await.unwrap_err();
    assert!(matches!(error, RunError::StdoutTooLarge), "{error}");
    wait_until_gone(|| processes_with(word)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_run_side_by_side() {
    let calls: Vec<_> = (0..64)
        .map(|i| {
            tokio::spawn(async move {
                let input = Bytes::from(format!("{i:05}").repeat(40_000));
                let program = sh("cat; echo done >&2");
                let finished = run_with(&program, slice::from_ref(&input), LIMITS.stdout).await.unwrap();
                assert!(finished.stdout == input);
                assert_eq!(&stderr(finished)[..], b"done\n");
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
}
