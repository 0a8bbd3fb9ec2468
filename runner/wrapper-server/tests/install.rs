//! Tests the binary as a process: the commands and flags that a pod needs in addition to the
//! server. These are `--copy-to`, `--idle`, `cp` and `grpc-health-probe`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const BINARY: &str = env!("CARGO_BIN_EXE_wrapper-server");

fn run(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().expect("the binary is built")
}

fn named(name: &str, args: &[&str]) -> Output {
    Command::new(BINARY).arg0(name).args(args).output().unwrap()
}

/// Starts the binary, and returns its first line.
fn begin(args: &[&str]) -> (Child, String) {
    let mut command = Command::new(BINARY);
    let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line)
}

#[track_caller]
fn assert_ended(ended: &Output, code: i32, stderr: &str) {
    let text = text(&ended.stderr);
    assert_eq!((ended.status.code(), text.contains(stderr)), (Some(code), true), "{ended:?}");
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it prints texts")
}

#[test]
fn copies_itself_or_names_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("wrapper-server");
    fs::write(&target, "an old one").unwrap();
    let copy_to = format!("--copy-to={}", directory.path().display());
    // The second run starts the copy, which replaces its own file.
    for binary in [Path::new(BINARY), &target] {
        let ended = Command::new(binary).arg(&copy_to).output().unwrap();
        assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o755);
        assert!(fs::read(&target).unwrap() == fs::read(BINARY).unwrap());
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");

    // A failed copy names the directory and leaves nothing.
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let expected = format!(
        "wrapper-server: --copy-to {}: No such file or directory (os error 2); mount a writable volume there\n",
        missing.display()
    );
    assert_ended(&run(&["--copy-to", missing.to_str().unwrap()]), 1, &expected);
    fs::create_dir(directory.path().join("wrapper-server")).unwrap();
    assert_ended(&run(&["--copy-to", directory.path().to_str().unwrap()]), 1, "mount a writable volume");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn idles_until_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut idle, line) = begin(&["--idle", "--verbosity=0"]);
        assert_eq!(line, "wrapper-server: idle\n");
        assert!(idle.try_wait().unwrap().is_none());
        kill_process(Pid::from_child(&idle), signal).unwrap();
        assert_eq!(idle.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn an_entrypoint_is_needed_to_serve_only() {
    let usage =
        "wrapper-server: <ENTRYPOINT>... must be set; usage: wrapper-server [FLAGS] -- ENTRYPOINT [ARG...]\n";
    for args in [&[][..], &["--port=0"], &["--port=0", "--"], &["--idle=false"]] {
        let ended = run(args);
        assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(64), usage), "{args:?}");
    }
    // Arguments after "--" belong to the function, even if they look like our flags.
    let directory = tempfile::tempdir().unwrap();
    let copy_to = format!("--copy-to={}", directory.path().display());
    let (mut server, line) = begin(&[
        "--address=127.0.0.1",
        "--port=0",
        "--exit-with-stdin",
        "--",
        "function",
        "--idle",
        &copy_to,
    ]);
    assert!(line.starts_with("wrapper-server: listening on "), "{line}");
    drop(server.stdin.take());
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn is_cp_under_that_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let cp = |args: &[&str]| named("/bin/cp", args);
    let (image, tools) = (path("wrapper-server"), path("tools"));
    fs::create_dir_all(path("wrapper-server/sub")).unwrap();
    fs::write(path("wrapper-server/sub/data"), "data").unwrap();
    fs::write(path("wrapper-server/program"), "first").unwrap();
    fs::set_permissions(path("wrapper-server/program"), fs::Permissions::from_mode(0o751)).unwrap();
    symlink("program", path("wrapper-server/grpc-health-probe")).unwrap();
    fs::create_dir(&tools).unwrap();

    // The arguments are those of Porch's documented template. The second copy replaces the files of
    // the first: a copy that was killed can be repeated.
    for _ in 0..2 {
        assert_ended(&cp(&["-a", &format!("{image}/."), &tools]), 0, "");
        assert_eq!(fs::read_to_string(path("tools/program")).unwrap(), "first");
        assert_eq!(fs::metadata(path("tools/program")).unwrap().permissions().mode() & 0o7777, 0o751);
        assert_eq!(fs::read_link(path("tools/grpc-health-probe")).unwrap(), Path::new("program"));
        assert_eq!(fs::read_to_string(path("tools/sub/data")).unwrap(), "data");
        assert_eq!(fs::read_dir(&tools).unwrap().count(), 3);
        fs::write(path("tools/program"), "an old and longer one").unwrap();
    }
    // The copy goes into the destination if that is a directory; otherwise it becomes the
    // destination. A copy of a directory into itself must end.
    for (args, copy) in [
        ([&*image, &tools], "tools/wrapper-server/sub/data"),
        ([&image, &path("new")], "new/sub/data"),
        ([&path("new/program"), &path("other")], "other"),
        ([&image, &path("wrapper-server/sub")], "wrapper-server/sub/wrapper-server/sub/data"),
    ] {
        assert_ended(&cp(&[&["-r"], &args[..]].concat()), 0, "");
        assert!(Path::new(&path(copy)).is_file(), "{copy}");
    }

    let missing = format!("cp: {} to {}: No such file or directory", path("missing"), path("to"));
    assert_ended(&cp(&["-a", &path("missing"), &path("to")]), 1, &missing);
    for wrong in [&["--help"][..], &["-u", "a", "b"], &["-a", "a"], &[]] {
        assert_ended(&cp(wrong), 64, "usage: cp [-a|-r|-R|-p] SOURCE... DESTINATION");
    }
}

#[test]
fn is_grpc_health_probe_under_that_name() {
    let (mut wrapper, line) = begin(&["--port=0", "--exit-with-stdin", "--", "cat"]);
    let port = line.trim().rsplit_once(':').unwrap().1;
    let probe = |args: &[&str]| named("/wrapper-server-tools/grpc-health-probe", args);

    // The arguments are those of Porch's templates. They do not set -rpc-timeout, and its default
    // of one second may be too short on a busy machine.
    let local = format!("localhost:{port}");
    let mut probes = (0..30).map(|_| probe(&["-addr", &local]));
    let ended = probes.find(|ended| !text(&ended.stderr).contains("no answer within")).unwrap();
    assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(0), "status: SERVING\n"), "{ended:?}");
    let addr = format!("--addr=:{port}");
    assert_ended(&probe(&[&addr, "-connect-timeout=20s", "-rpc-timeout", "20s", "-v"]), 0, "");
    let ended = probe(&["-addr", &local, "-service=other", "-rpc-timeout=20s"]);
    assert_ended(&ended, 3, "does not know that service");

    drop(wrapper.stdin.take());
    wrapper.wait().unwrap();
    assert_ended(&probe(&["-addr", &local]), 2, "grpc-health-probe: no connection: ");

    // The kernel accepts connections into the listener's backlog, and nothing answers them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let ended = probe(&["-addr", &silent, "-rpc-timeout=50ms"]);
    assert_ended(&ended, 3, "grpc-health-probe: no answer within -rpc-timeout\n");

    for wrong in [&[][..], &["-addr=localhost:1", "-tls"], &["-addr"]] {
        assert_ended(&probe(wrong), 1, "grpc-health-probe: ");
    }
}
