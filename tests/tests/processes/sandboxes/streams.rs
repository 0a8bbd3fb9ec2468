//! The standard streams and the signals of a function's caller, in any state that a shell or
//! another program may have left them.

use std::fs::{self, File};
use std::io::{PipeReader, Read as _, Write as _, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use porch_fn_tests::image_user::ImageUser;
use porch_fn_tests::process::{PATIENCE, eventually};
use rustix::fs::OFlags;
use rustix::io::ioctl_fionread;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{NAME, engine, in_all_ways, open_folder, perl, shell, stderr, stdout};

/// A pipe both of whose ends return at once, as some programs leave those that they share.
fn impatient_pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap()
}

/// Makes reads patient again, for the test's own end.
fn patient(end: OwnedFd) -> File {
    let flags = rustix::fs::fcntl_getfl(&end).unwrap();
    rustix::fs::fcntl_setfl(&end, flags - OFlags::NONBLOCK).unwrap();
    File::from(end)
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn one_file_as_both_outputs_has_all_lines() {
    const LINES: usize = 20_000;
    let program = format!("$|=1; for (1..{LINES}) {{ print STDOUT qq(out\\n); print STDERR qq(err\\n) }}");
    for user in ImageUser::all() {
        user.import(NAME, &perl(&program)).await;
        let log = user.sandbox().path("home/log");
        // As with `> log 2>&1`: the outputs share one position.
        let out = File::create(&log).unwrap();
        let err = out.try_clone().unwrap();
        let mut command = user.command(user.program());
        command.args(["run", NAME]).stdin(Stdio::null()).stdout(out).stderr(err);
        assert!(command.status().await.unwrap().success());
        let text = fs::read_to_string(&log).unwrap();
        for line in ["out\n", "err\n"] {
            assert_eq!(text.matches(line).count(), LINES, "{line}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_input_that_comes_later_is_read_from_impatient_pipes() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("echo started >&2; cat")).await;
        let (socket, ours) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (input, writer) = impatient_pipe();
        for (input, writer) in [(input, patient(writer)), (socket.into(), File::from(OwnedFd::from(ours)))] {
            let mut command = user.command(user.program());
            command.args(["run", NAME]).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn().unwrap();
            drop(command);
            let write = spawn_blocking(move || {
                let mut writer = writer;
                writer.write_all("late\n".repeat(100_000).as_bytes())
            });
            let ended = timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap();
            write.await.unwrap().unwrap();
            assert_eq!(ended.stdout.len(), 500_000, "{:?}: {}", ended.status, stderr(&ended));
        }
    }
}

/// Starts to read a pipe when it is full, or when nobody writes to it any more.
async fn read_when_full(reader: OwnedFd, is_over: impl Fn() -> bool) -> Vec<u8> {
    eventually("a full pipe", async || {
        (ioctl_fionread(&reader).unwrap() >= 60_000 || is_over()).then_some(())
    })
    .await;
    let mut reader = patient(reader);
    let mut output = Vec::new();
    spawn_blocking(move || reader.read_to_end(&mut output).map(|_| output)).await.unwrap().unwrap()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn no_output_is_lost_in_impatient_pipes() {
    for user in ImageUser::all() {
        for output in ["STDOUT", "STDERR"] {
            user.import(NAME, &perl(&format!("print {output} qq(0123456789) x 100_000"))).await;
            let (reader, writer) = impatient_pipe();
            let mut command = user.command(user.program());
            command.args(["run", NAME]).stdin(Stdio::null());
            match output {
                "STDOUT" => command.stdout(writer).stderr(Stdio::null()),
                _ => command.stdout(Stdio::null()).stderr(writer),
            };
            let mut child = command.spawn().unwrap();
            drop(command);
            let number = child.id().unwrap();
            let is_over = || !fs::exists(format!("/proc/{number}/fd/1")).unwrap_or_default();
            let written = timeout(PATIENCE, read_when_full(reader, is_over)).await.expect("it ends");
            assert_eq!(written.len(), 1_000_000, "{output}");
            assert!(child.wait().await.unwrap().success());
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_input_that_cannot_be_read_fails_the_run() {
    for user in ImageUser::all() {
        // It would take a cut input for a whole one.
        user.import(NAME, &shell("cat >/dev/null; echo accepted")).await;
        let folder = File::open(open_folder(user.sandbox(), "in")).unwrap();
        let written_only = File::create(user.sandbox().path("home/written-only")).unwrap();
        for (what, input) in [("a folder", folder), ("write-only", written_only)] {
            let mut command = user.command(user.program());
            let ended = command.args(["run", NAME]).stdin(input).output().await.unwrap();
            assert_eq!((ended.status.code(), &*stdout(&ended)), (Some(125), ""), "{what}: {ended:?}");
            assert!(stderr(&ended).contains("standard input"), "{what}: {ended:?}");
        }
    }
}

/// A pipe that is full. Nobody reads it.
fn full_pipe() -> (PipeReader, OwnedFd) {
    let (reader, writer) = pipe().unwrap();
    let filler = writer.try_clone().unwrap();
    let flags = rustix::fs::fcntl_getfl(&filler).unwrap();
    rustix::fs::fcntl_setfl(&filler, flags | OFlags::NONBLOCK).unwrap();
    while (&filler).write(&[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(filler.as_fd(), flags).unwrap();
    (reader, writer.into())
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_timeout_needs_nobody_who_reads() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("echo function >&2; exec sleep 600")).await;
        let (_reader, full) = full_pipe();
        let (reader, closed) = pipe().unwrap();
        drop(reader);
        for (what, errors) in [("full", full), ("closed", closed.into())] {
            let mut command = user.command(user.program());
            command.args(["run", "--timeout", "300ms", NAME]).stdin(Stdio::null()).stderr(errors);
            let ended = timeout(PATIENCE, command.status()).await.expect("it ends").unwrap();
            assert_eq!(ended.code(), Some(124), "{what}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn signals_that_the_caller_ignores_or_blocks_are_the_functions_again() {
    // Of the signals below 32, Perl itself ignores SIGFPE.
    let program = "local $/; open my $f, '<', '/proc/self/status'; my $status = <$f>;\n\
                   for my $name (qw(SigIgn SigBlk)) { $status =~ /$name:\\s+(\\w+)/;\n\
                   printf STDERR qq($name=%x\\n), hex($1) & 0x7fffff7f; }";
    for user in ImageUser::all() {
        user.import(NAME, &perl(program)).await;
        let link = engine(&user).await;
        let of_caller = "use POSIX; $SIG{$_} = 'IGNORE' for qw(HUP INT QUIT USR1 TERM CHLD TSTP WINCH);\n\
                         sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGTERM, SIGALRM, SIGCHLD, SIGUSR2));\n\
                         exec { $ARGV[0] } @ARGV";
        let own = user.program().display().to_string();
        let link = link.display().to_string();
        for words in [&[&*own, "run", NAME][..], &[&*link, "run", "--rm", "-i", NAME]] {
            let ended = user.run_program("perl", &[&["-e", of_caller], words].concat(), b"").await;
            assert_eq!(
                (ended.status.code(), &*stderr(&ended)),
                (Some(0), "SigIgn=0\nSigBlk=0\n"),
                "{words:?}"
            );
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn its_umask_is_the_usual_one() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("umask >&2; cat")).await;
        for (way, output) in in_all_ways(&user).await {
            assert!(output.contains("0022\n"), "{way}: {output}");
        }
    }
}
