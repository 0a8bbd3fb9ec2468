//! Real processes: the input and environment of a function, and its end with the call.

use std::time::Duration;

use super::*;
use crate::go_text::go_exit_text;

const LIMITS: Limits =
    Limits { stdout: 6 << 20, stderr_head: 4 << 10, stderr_tail: 4 << 10, join_lines: false };

/// Far more than any of these scripts needs, and less than the test harness waits.
const SOON: Duration = Duration::from_secs(20);

fn sh(script: &str) -> Program {
    Program::new("sh", ["-c", script], Environment::Inherit)
}

fn nothing() -> [Bytes; 0] {
    []
}

async fn run_sh(script: &str) -> Result<Finished, RunError> {
    tokio::time::timeout(SOON, run(&sh(script), nothing(), &LIMITS, None))
        .await
        .expect("the call never ended")
}

/// Seconds for a process to sleep: longer than any test waits, and of no other test or run of it.
fn unique_seconds(test: u32) -> String {
    format!("60.{}{test}", std::process::id())
}

/// The processes whose command line holds `word`, zombies not counted (they have none).
fn processes_with(word: &str) -> Vec<u32> {
    let holds = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(word))
    };
    numbers_in_proc().filter(holds).collect()
}

/// The children of this process, zombies included.
fn children_named(name: &str) -> Vec<u32> {
    let ours = |pid: &u32| {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let Some((head, tail)) = stat.rsplit_once(')') else { return false };
        let parent = tail.split_ascii_whitespace().nth(1).and_then(|parent| parent.parse().ok());
        parent == Some(std::process::id()) && head.ends_with(&format!("({name}"))
    };
    numbers_in_proc().filter(ours).collect()
}

fn numbers_in_proc() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
}

/// Polls until nothing is found: the kernel does not signal the end of what was killed.
async fn gone(what: impl Fn() -> Vec<u32>) {
    let looked = tokio::time::timeout(SOON, async {
        while !what().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    looked.await.unwrap_or_else(|_| panic!("still there: {:?}", what()));
}

#[tokio::test]
async fn returns_stdout_stderr_and_status() {
    let finished = run_sh("echo out; echo err >&2; exit 3").await.unwrap();
    assert_eq!(&finished.stdout[..], b"out\n");
    assert_eq!(&finished.stderr.into_bytes(usize::MAX)[..], b"err\n");
    assert_eq!(go_exit_text(finished.status), "exit status 3");
    let finished = run_sh("kill -KILL $$").await.unwrap();
    assert_eq!(go_exit_text(finished.status), "signal: killed");
}

#[tokio::test]
async fn the_program_sees_its_name_and_the_given_environment_only() {
    let variables = vec![("ONLY".into(), "this".into())];
    let program = Program::new(
        "sh",
        ["-c", "echo $0; env | grep -v -e ^PWD= -e ^SHLVL= -e ^_=", "name"],
        Environment::Only(variables),
    );
    let finished = run(&program, nothing(), &LIMITS, None).await.unwrap();
    assert_eq!(&finished.stdout[..], b"name\nONLY=this\n");
    // argv[0] is the name as given, not the path that it was found at.
    let program =
        Program::new("sh", ["-c", "tr '\\0' ' ' </proc/$$/cmdline | cut -c1-3"], Environment::Inherit);
    let finished = run(&program, nothing(), &LIMITS, None).await.unwrap();
    assert_eq!(&finished.stdout[..], b"sh \n");
}

#[tokio::test]
async fn a_program_the_system_cannot_start_is_named() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let (draft, path) = (directory.path().join("draft"), directory.path().join("program"));
    std::fs::write(&draft, [0x7f, b'E', b'L', b'F', 0, 0]).unwrap();
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
    // A file that is open for writing cannot be started, and a concurrent fork could hold one of ours open.
    assert!(std::process::Command::new("cp").args([&draft, &path]).status().unwrap().success());
    let program = Program::new(path.as_os_str(), [""; 0], Environment::Inherit);
    let error = run(&program, nothing(), &LIMITS, None).await.unwrap_err();
    assert_eq!(error.to_string(), format!("fork/exec {}: exec format error", path.display()));
}

#[tokio::test]
async fn echoes_5_mib_in_chunks_byte_for_byte() {
    let chunk: Bytes = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let chunks = [chunk.clone(), Bytes::new(), chunk.slice(1..), chunk.slice(2..), chunk.slice(3..), chunk];
    let finished = run(&sh("cat"), chunks.clone(), &LIMITS, None).await.unwrap();
    assert!(finished.status.success());
    assert!(finished.stdout == chunks.concat());
}

#[tokio::test]
async fn a_function_may_ignore_its_input() {
    let input = Bytes::from(vec![b'x'; 10 << 20]);
    // The second runs on after it has closed its stdin.
    for script in ["echo done", "exec <&-; sleep 0.2; echo done"] {
        let finished = run(&sh(script), [input.clone()], &LIMITS, None).await.unwrap();
        assert_eq!((finished.status.success(), &finished.stdout[..]), (true, &b"done\n"[..]));
    }
}

#[tokio::test]
async fn a_call_lasts_until_stdout_is_closed() {
    // The process left behind writes after its parent has ended, and is part of the answer.
    let finished = run_sh("(sleep 0.3; echo late) & echo early").await.unwrap();
    assert!(finished.status.success());
    assert_eq!(&finished.stdout[..], b"early\nlate\n");
}

#[tokio::test]
async fn a_process_that_keeps_only_stdin_and_stderr_open_does_not_delay_and_is_killed() {
    let word = &unique_seconds(1);
    // The second is in a session of its own. It outlives the call, because this process adopts no orphans.
    for (left_behind, is_killed) in
        [(format!("exec 3<&0; sleep {word} <&3"), true), (format!("setsid sleep {word}"), false)]
    {
        let program = sh(&format!("{left_behind} >/dev/null & echo done; echo err >&2"));
        let call = run(&program, [Bytes::from(vec![0; 1 << 20])], &LIMITS, None);
        let finished = tokio::time::timeout(SOON, call).await.unwrap().unwrap();
        assert_eq!(&finished.stdout[..], b"done\n");
        assert_eq!(&finished.stderr.into_bytes(usize::MAX)[..], b"err\n");
        if is_killed {
            gone(|| processes_with(word)).await;
        }
    }
    for pid in processes_with(&format!("sleep {word}")) {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

#[tokio::test]
async fn all_of_stderr_is_there_when_the_function_ends() {
    for _ in 0..200 {
        let finished = run_sh("echo a >&2; exec >&-; printf b >&2").await.unwrap();
        assert_eq!(&finished.stderr.into_bytes(usize::MAX)[..], b"a\nb");
    }
}

#[tokio::test]
async fn the_deadline_kills_the_whole_group() {
    let word = &unique_seconds(3);
    // In the second, only a process that was left behind still holds stdout.
    for script in [format!("sleep {word} & sleep {word}"), format!("sleep {word} &")] {
        let started = Instant::now();
        let deadline = Some(started + Duration::from_millis(500));
        let error = run(&sh(&script), nothing(), &LIMITS, deadline).await.unwrap_err();
        let took = started.elapsed();
        assert!(matches!(error, RunError::Deadline), "{error}");
        assert!(took >= Duration::from_millis(500), "{took:?}");
        assert!(took < SOON, "{took:?}");
        gone(|| processes_with(word)).await;
    }
}

#[tokio::test]
async fn a_deadline_that_has_passed_starts_nothing() {
    let program = Program::new("no-such-function", [""; 0], Environment::Inherit);
    let error = run(&program, nothing(), &LIMITS, Some(Instant::now())).await.unwrap_err();
    assert!(matches!(error, RunError::Deadline), "{error}");
}

#[tokio::test]
async fn a_caller_that_goes_away_takes_the_group_along() {
    let word = &unique_seconds(4);
    // A name of its own tells this test's zombies from the other tests' children.
    let directory = tempfile::tempdir().unwrap();
    let shell = directory.path().join("cancelled");
    std::os::unix::fs::symlink("/bin/sh", &shell).unwrap();
    let program = Program::new(shell, ["-c", &format!("sleep {word} & sleep {word}")], Environment::Inherit);
    {
        let call = run(&program, nothing(), &LIMITS, None);
        let started = async {
            while processes_with(&format!("sleep {word}")).len() < 2 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            ended = call => panic!("ended by itself: {ended:?}"),
            () = started => {}
        }
        assert_eq!(children_named("cancelled").len(), 1);
    }
    gone(|| processes_with(word)).await;
    gone(|| children_named("cancelled")).await;
}

#[tokio::test]
async fn stdout_past_its_limit_ends_a_function_that_would_run_for_ever() {
    let limits = Limits { stdout: 100_000, ..LIMITS };
    let word = &unique_seconds(5);
    let program = sh(&format!("yes {word}; sleep 60"));
    let call = run(&program, nothing(), &limits, None);
    let error = tokio::time::timeout(SOON, call).await.unwrap().unwrap_err();
    assert!(matches!(error, RunError::StdoutTooLarge { limit: 100_000 }), "{error}");
    gone(|| processes_with(word)).await;
}

#[tokio::test]
async fn stdout_may_have_just_its_limit() {
    let of = |bytes: usize| sh(&format!("head -c {bytes} /dev/zero"));
    for limit in [0, 1, 65_535, 65_536, 100_000] {
        let limits = Limits { stdout: limit, ..LIMITS };
        let finished = run(&of(limit), nothing(), &limits, None).await.unwrap();
        assert_eq!(finished.stdout.len(), limit);
        let error = run(&of(limit + 1), nothing(), &limits, None).await.unwrap_err();
        assert!(matches!(error, RunError::StdoutTooLarge { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_flood_on_stderr_is_cut_and_harms_nothing() {
    let script =
        "echo first >&2; head -c 20000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2; echo out";
    let finished = run_sh(script).await.unwrap();
    assert_eq!(&finished.stdout[..], b"out\n");
    let stderr = String::from_utf8(finished.stderr.into_bytes(usize::MAX).to_vec()).unwrap();
    assert!(stderr.starts_with("first\nx") && stderr.ends_with("x\nlast\n"));
    let left_out = 20_000_000 + 12 - LIMITS.stderr_head - LIMITS.stderr_tail;
    assert!(stderr.contains(&format!("\n[... {left_out} bytes of stderr left out ...]\n")));
    assert!(stderr.len() <= LIMITS.stderr_head + LIMITS.stderr_tail + MARKER_LIMIT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_run_side_by_side() {
    let calls: Vec<_> = (0..64)
        .map(|i| {
            tokio::spawn(async move {
                let input = Bytes::from(format!("{i:05}").repeat(40_000));
                let finished = run(&sh("cat; echo done >&2"), [input.clone()], &LIMITS, None).await.unwrap();
                assert!(finished.stdout == input);
                assert_eq!(&finished.stderr.into_bytes(usize::MAX)[..], b"done\n");
            })
        })
        .collect();
    for call in calls {
        tokio::time::timeout(SOON, call).await.expect("a call never ended").unwrap();
    }
}
