//! What a pod's image needs of the binary besides serving, as a process: `--copy-to`, `--idle`, being `cp`, and being
//! `grpc-health-probe`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const BINARY: &str = env!("CARGO_BIN_EXE_wrapper-server");

fn run(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().expect("the binary is built")
}

fn probe(args: &[&str]) -> Output {
    Command::new(BINARY).arg0("/wrapper-server-tools/grpc-health-probe").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it prints texts")
}

#[test]
fn copies_itself_whole_and_runnable() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("wrapper-server");
    fs::write(&target, "an old one").unwrap();
    let copy_to = format!("--copy-to={}", directory.path().display());
    // The copy copies itself, over the file that it runs from.
    for binary in [Path::new(BINARY), &target] {
        let ended = Command::new(binary).arg(&copy_to).output().unwrap();
        assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o755);
        assert!(fs::read(&target).unwrap() == fs::read(BINARY).unwrap());
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn a_failed_copy_names_the_directory_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let ended = run(&["--copy-to", missing.to_str().unwrap()]);
    assert_eq!(ended.status.code(), Some(1));
    let expected = format!(
        "wrapper-server: --copy-to {}: No such file or directory (os error 2); mount a writable volume there\n",
        missing.display()
    );
    assert_eq!(text(&ended.stderr), expected);

    fs::create_dir(directory.path().join("wrapper-server")).unwrap();
    assert_eq!(run(&["--copy-to", directory.path().to_str().unwrap()]).status.code(), Some(1));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn idles_until_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut idle =
            Command::new(BINARY).args(["--idle", "--verbosity=0"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(idle.stdout.take().unwrap()).read_line(&mut line).unwrap();
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
    // Behind "--" nothing is a flag of ours.
    let directory = tempfile::tempdir().unwrap();
    let copy_to = format!("--copy-to={}", directory.path().display());
    let ended =
        run(&["--address=127.0.0.1", "--port=0", "--exit-with-stdin", "--", "function", "--idle", &copy_to]);
    assert_eq!(ended.status.code(), Some(0));
    assert!(text(&ended.stdout).starts_with("wrapper-server: listening on "));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let help = run(&["--help"]);
    assert!(["--copy-to", "--idle", "cp -a"].iter().all(|flag| text(&help.stdout).contains(flag)));
}

#[test]
fn is_cp_under_that_name() {
    let directory = tempfile::tempdir().unwrap();
    let from = directory.path().join("wrapper-server");
    let to = directory.path().join("wrapper-server-tools");
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    fs::copy(BINARY, from.join("wrapper-server")).unwrap();
    let cp = |args: &[&str]| {
        Command::new(BINARY).arg0("/bin/cp").args(args).current_dir(directory.path()).output().unwrap()
    };
    // As Porch's documented template has it.
    let ended = cp(&["-a", &format!("{}/.", from.display()), to.to_str().unwrap()]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
    let version = Command::new(to.join("wrapper-server")).arg("--version").output().unwrap();
    assert!(text(&version.stdout).starts_with("wrapper-server "));

    let ended = cp(&["-a", "missing", "to"]);
    let expected = "cp: missing: No such file or directory (os error 2)\n";
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(1), expected));
    for wrong in [&["--help"][..], &["-u", "a", "b"], &["-a", "a"]] {
        let ended = cp(wrong);
        assert_eq!(ended.status.code(), Some(64), "{wrong:?}");
        assert!(text(&ended.stderr).contains("usage: cp [-a|-r|-R|-p] SOURCE... DESTINATION"));
    }
}

#[test]
fn is_grpc_health_probe_under_that_name() {
    let mut wrapper = Command::new(BINARY)
        .args(["--port=0", "--exit-with-stdin", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(wrapper.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().rsplit_once(':').unwrap().1;

    // As Porch's templates have it.
    let local = format!("localhost:{port}");
    // That is one second for the answer, in which a busy machine may not get to it.
    let mut probes = (0..30).map(|_| probe(&["-addr", &local]));
    let ended = probes.find(|ended| !text(&ended.stderr).contains("no answer within")).unwrap();
    assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(0), "status: SERVING\n"), "{ended:?}");
    let ended =
        probe(&[&format!("--addr=127.0.0.1:{port}"), "-connect-timeout=20s", "-rpc-timeout", "20s", "-v"]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");

    let ended = probe(&["-addr", &local, "-service=other", "-rpc-timeout=20s"]);
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    assert!(text(&ended.stderr).contains("does not know that service"), "{ended:?}");

    drop(wrapper.stdin.take());
    wrapper.wait().unwrap();
    let ended = probe(&["-addr", &local]);
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert!(text(&ended.stderr).starts_with("grpc-health-probe: no connection: "), "{ended:?}");
}

#[test]
fn a_probe_waits_as_long_as_it_is_told_and_says_what_is_wrong() {
    // Accepts, by its backlog, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let ended = probe(&["-addr", &silent, "-rpc-timeout=50ms"]);
    let expected = "grpc-health-probe: no answer within -rpc-timeout\n";
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(3), expected));

    for wrong in
        [&[][..], &["-addr=example.com:9446"], &["-addr=localhost:1", "-tls"], &["-addr"], &["--help"]]
    {
        let ended = probe(wrong);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(text(&ended.stderr).contains("usage: grpc-health-probe -addr IP:PORT"), "{ended:?}");
    }
}
