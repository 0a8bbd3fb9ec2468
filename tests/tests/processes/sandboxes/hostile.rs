//! What a hostile function may not do.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use porch_fn_tests::image_user::ImageUser;
use porch_fn_tests::process::eventually;

use super::{NAME, shell, stderr, stdout};

/// Runs a script in a sandbox, and returns its output.
async fn output(user: &ImageUser, flags: &[&str], script: &str) -> String {
    user.import(NAME, &shell(script)).await;
    let ended = user.run(&[&["run"], flags, &[NAME]].concat(), b"").await;
    stdout(&ended) + &stderr(&ended)
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn it_writes_only_to_tmp() {
    for user in ImageUser::all() {
        let script = "for folder in / /bin /dev /etc /proc /proc/sys/kernel /run /sys /var; do\n\
                      (: > $folder/new) 2>/dev/null && echo \"wrote to $folder\"; done\n\
                      : > /tmp/new && : > /dev/shm/new && ls /tmp\n\
                      echo x > /proc/sys/kernel/core_pattern; echo b > /proc/sysrq-trigger";
        let output = output(&user, &[], script).await;
        assert!(output.starts_with("new\n") && !output.contains("wrote"), "{output}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn it_sees_and_signals_no_process_of_the_machine() {
    for user in ImageUser::all() {
        let me = std::process::id();
        let script =
            format!("ls /proc | grep -c '^[0-9]' || ls /proc; kill -0 {me} && echo reached; kill -9 -1");
        let output = output(&user, &[], &script).await;
        assert!(output.contains("No such process") && !output.contains("reached"), "{output}");
        assert!(!output.lines().any(|line| line == me.to_string()), "{output}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn it_reaches_no_socket() {
    for user in ImageUser::all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _socket = UnixListener::bind(user.sandbox().path("socket")).unwrap();
        // Its loopback device is its own. Abstract names belong to the network namespace.
        let script = format!(
            "bash -c ': < /dev/tcp/127.0.0.1/{}' && echo connected\n\
             bash -c ': < /dev/tcp/192.0.2.1/80' && echo connected\n\
             ls {} 2>&1; cat /proc/net/tcp /proc/net/unix | head -20",
            listener.local_addr().unwrap().port(),
            user.sandbox().path("socket").display()
        );
        let output = output(&user, &[], &script).await;
        for refused in ["Connection refused", "Network is unreachable"] {
            assert!(output.contains(refused) && !output.contains("connected"), "{output}");
        }
        assert!(output.contains("No such file or directory"), "{output}");
        let port = format!("{:04X}", listener.local_addr().unwrap().port());
        assert!(!output.contains(&port) && !output.contains('@'), "{output}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn it_reads_neither_home_nor_store_nor_environment() {
    for user in ImageUser::all() {
        user.sandbox().write("home/secret", "hidden");
        let script = format!(
            "cat {home}/secret {home}/images/lock /proc/1/environ /proc/*/environ; ls {home} /root /home; env",
            home = user.sandbox().path("home").display()
        );
        user.import(NAME, &shell(&script)).await;
        let mut command = user.command(user.program());
        command.args(["run", NAME]).env("SECRET", "hidden").stdin(std::process::Stdio::null());
        let ended = command.output().await.unwrap();
        let output = stdout(&ended) + &stderr(&ended);
        assert!(output.contains("No such file or directory"), "{output}");
        assert!(!output.contains("hidden") && !output.contains("PORCH_FN"), "{output}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn it_gets_no_rights() {
    for user in ImageUser::all() {
        let script = "head -60 /proc/self/status | while read -r name value; do case $name in \
                      Cap*|NoNewPrivs:|Seccomp:) echo \"$name $value\";; esac; done";
        let script = format!("{script}\nunshare --user true; unshare --pid true; setpriv --reuid=1 true");
        let output = output(&user, &["--user", "0:0"], &script).await;
        let lines: Vec<_> = output.lines().collect();
        let none = "0000000000000000";
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(lines.contains(&&*format!("{name}: {none}")), "{output}");
        }
        for refused in ["unshare: unshare failed: Operation not permitted", "setpriv: setresuid failed"] {
            assert!(output.contains(refused), "{output}");
        }
        assert!(lines.contains(&"NoNewPrivs: 1") && lines.contains(&"Seccomp: 2"), "{output}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn it_leaves_no_process_behind() {
    for user in ImageUser::all() {
        let mark = format!("6{}", std::process::id());
        user.import(NAME, &shell(&format!("setsid sleep {mark} >/dev/null 2>&1 & sleep {mark} & exit 3")))
            .await;
        let ended = user.run(&["run", NAME], b"").await;
        assert_eq!(ended.status.code(), Some(3));
        assert!(!is_running(&mark));
        // The sandbox also ends with a killed parent.
        user.import(NAME, &shell(&format!("sleep {mark}"))).await;
        let mut command = user.command(user.program());
        let mut child = command.args(["run", NAME]).spawn().unwrap();
        eventually("the function runs", async || is_running(&mark).then_some(())).await;
        child.kill().await.unwrap();
        eventually("the function has ended", async || (!is_running(&mark)).then_some(())).await;
    }
}

/// Whether a process of the machine has this argument.
fn is_running(mark: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes()))
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn limits_hold() {
    for user in ImageUser::all() {
        let fill = "dd if=/dev/zero of=/tmp/x bs=1M count=64 2>&1; ls -l /tmp";
        let output_of_fill = output(&user, &["--tmp-size", "1048576"], fill).await;
        assert!(output_of_fill.contains("No space left on device"), "{output_of_fill}");
        let bomb = "i=0; while [ $i -lt 200 ]; do sleep 30 & i=$((i+1)); done; echo done";
        let output_of_bomb = output(&user, &["--pids", "20"], bomb).await;
        assert!(output_of_bomb.contains("fork") && !output_of_bomb.contains("done"), "{output_of_bomb}");
        // A shell that keeps what it reads.
        let hog = "x=$(dd if=/dev/zero bs=1M count=512 2>/dev/null | tr '\\0' x 2>/dev/null || cat /dev/zero); echo done";
        user.import(NAME, &shell(hog)).await;
        let ended = user.run(&["run", "--memory", "67108864", NAME], b"").await;
        assert!(!ended.status.success() || !stdout(&ended).contains("done"), "{ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn other_processes_of_nobody_read_no_memory_of_a_sandbox_of_roots() {
    let user = ImageUser::own();
    if !user.is_root() {
        eprintln!("skipped: the tests are not root");
        return;
    }
    user.import(NAME, &shell("true")).await;
    // Looks at each new process all the time.
    let program = "$|=1; open my $l, '<', '/proc/loadavg'; while (1) { seek $l, 0, 0; my ($last) = <$l> =~ /(\\d+)$/;\n\
                   for (1 .. 20) { for my $pid ($last - 1 .. $last + 6) { open my $f, '<', qq(/proc/$pid/environ) or next;\n\
                   sysread $f, my $text, 1 << 20; print qq(read $pid\\n) if ($text // '') =~ /of-root-only/ } } }";
    let mut spy = user.command("perl");
    spy.uid(65534).gid(65534).args(["-e", program]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut spy = spy.spawn().unwrap();
    for _ in 0..100 {
        let mut command = user.command(user.program());
        command.args(["run", NAME]).env("SECRET", "of-root-only").stdin(Stdio::null());
        assert!(command.output().await.unwrap().status.success());
    }
    spy.start_kill().unwrap();
    let seen = spy.wait_with_output().await.unwrap();
    assert_eq!(stdout(&seen), "");
}
