//! Our binaries, and foreign ones, as real processes that no test leaves behind.
//!
//! A function's grandchild belongs to no process group of ours and may have been re-parented, so it cannot be
//! found through its parents. But runner and wrapper hand `TMPDIR` down to what they start: whoever carries a
//! [`Sandbox`]'s directory there descends from it, and is counted and, at the end, killed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};

/// How long a test waits for what must happen, before it fails. Nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(10);

/// A directory, and the processes that were started in it. Dropping it kills them all, their descendants
/// included.
#[derive(Debug)]
pub struct Sandbox {
    directory: tempfile::TempDir,
    started: AtomicUsize,
}

/// A process that carries a sandbox's mark.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Descendant {
    /// Its number.
    pub pid: i32,
    /// Its command line, the words separated by spaces.
    pub command: String,
}

/// A server of ours that listens. Dropping it kills it, and prints its log if the test failed.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Held open: a wrapper may be told to end with it.
    stdin: Option<ChildStdin>,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    log: PathBuf,
}

/// Waits until `look` finds something, looking every few milliseconds.
///
/// # Panics
/// When nothing is found for [`PATIENCE`]; the message names `what`.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = timeout(PATIENCE, async {
        loop {
            match look().await {
                Some(found) => return found,
                None => sleep(INTERVAL).await,
            }
        }
    });
    found.await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Prints a measured figure, past the capture of the test harness: figures are results too.
pub fn figure(text: &str) {
    use std::io::Write;
    // A closed stderr has no reader to disappoint.
    let _ = std::io::stderr().write_all(format!("figure: {text}\n").as_bytes());
}

/// One of our binaries, from `PORCH_FN_BIN_DIR` or else from beside this test's own executable.
///
/// # Panics
/// When it is not built.
pub fn binary(name: &str) -> PathBuf {
    let directory = std::env::var_os("PORCH_FN_BIN_DIR").map_or_else(
        || {
            // target/debug/deps/TEST
            let test = std::env::current_exe().expect("a test knows its executable");
            test.ancestors().nth(2).expect("it lies in a build directory").to_owned()
        },
        PathBuf::from,
    );
    let path = directory.join(name);
    assert!(
        path.is_file(),
        "{} is missing: tests/run builds it, or cargo build --workspace --bins",
        path.display()
    );
    path
}

/// A page of an admin port, and its status.
///
/// # Panics
/// When nobody answers.
pub async fn get(admin: SocketAddr, path: &str) -> (u16, String) {
    let stream = TcpStream::connect(admin).await.expect("the admin port accepts");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .expect("the admin port speaks HTTP");
    let connection = tokio::spawn(connection);
    let request =
        Request::get(path).header("host", "admin").body(Empty::<Bytes>::new()).expect("a valid path");
    let response = sender.send_request(request).await.expect("an answer");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a whole answer").to_bytes();
    connection.abort();
    (status, String::from_utf8_lossy(&body).into_owned())
}

// === impl Sandbox ===

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Sandbox {
    /// An empty directory.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("porch-fn-test-").tempdir().expect("a directory");
        Self { directory, started: AtomicUsize::new(0) }
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file and returns its path. Missing directories are made.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a path in the sandbox")).expect("a directory");
        fs::write(&path, content).expect("a file");
        path
    }

    /// Writes an executable shell script and returns its path.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.path(name);
        // Not written in place: a concurrent fork could hold the file open for writing while it is started.
        let draft = self.write(&format!("{name}.draft"), format!("#!/bin/sh\n{body}\n"));
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("an executable");
        let copied = std::process::Command::new("cp").arg(&draft).arg(&path).status().expect("cp runs");
        assert!(copied.success());
        path
    }

    /// A command that works in the directory and carries the sandbox's mark.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.directory())
            .env("TMPDIR", self.directory())
            // What a developer's shell may have set must not decide how a test ends.
            .env_remove("OTEL_EXPORTER_PROMETHEUS_PORT")
            .env_remove("RUST_BACKTRACE")
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end and returns what it wrote.
    ///
    /// # Panics
    /// When it cannot be started or does not end.
    pub async fn run<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
        stdin: &[u8],
    ) -> Output {
        use tokio::io::AsyncWriteExt;
        let program = program.as_ref();
        let mut command = self.command(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut pipe = child.stdin.take().expect("it is piped");
        let feed = async move {
            // A program that does not read its input closes it.
            let _ = pipe.write_all(stdin).await;
        };
        let ended = timeout(PATIENCE, async { tokio::join!(feed, child.wait_with_output()).1 }).await;
        let ended = ended.unwrap_or_else(|_| panic!("{} did not end", program.display()));
        ended.expect("its output can be read")
    }

    /// Starts one of our servers on a free port of 127.0.0.1, unless `args` say otherwise, and waits until it
    /// listens.
    pub async fn server<A: AsRef<OsStr>>(&self, name: &str, args: impl IntoIterator<Item = A>) -> Server {
        self.server_with(name, args, |_| ()).await
    }

    /// The same, with a last word on the command.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn server_with<A: AsRef<OsStr>>(
        &self,
        name: &str,
        args: impl IntoIterator<Item = A>,
        prepare: impl FnOnce(&mut Command),
    ) -> Server {
        let log = self.path(&format!("{}-{name}.log", self.started.fetch_add(1, Ordering::Relaxed)));
        let mut command = self.command(binary(name));
        command.args(["--address=127.0.0.1", "--port=0"]);
        if name != "wrapper-server" {
            command.arg("--admin-port=0");
        }
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a log file"));
        prepare(&mut command);
        let mut child = command.spawn().expect("a binary of ours starts");
        let stdin = child.stdin.take();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let read = timeout(PATIENCE, stdout.read_line(&mut line)).await;
        let addresses = read.is_ok().then(|| addresses(&line)).flatten();
        let Some((address, admin)) = addresses else {
            panic!("{name} said {line:?} and\n{}", read_text(&log));
        };
        Server { child, stdin, address, admin, log }
    }

    /// The living processes that descend from this sandbox, oldest first.
    ///
    /// # Panics
    /// Without `/proc`.
    pub fn descendants(&self) -> Vec<Descendant> {
        let mut mark = b"TMPDIR=".to_vec();
        mark.extend_from_slice(self.directory().as_os_str().as_encoded_bytes());
        let look = |entry: fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // Empty for a zombie, and unreadable for one that ends this moment.
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let marked = environment.split(|&byte| byte == 0).any(|variable| variable == mark);
            let command = fs::read(entry.path().join("cmdline")).ok().filter(|_| marked)?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ").trim_end().to_owned();
            Some(Descendant { pid, command })
        };
        let processes = fs::read_dir("/proc").expect("there is /proc");
        let mut found: Vec<_> = processes.filter_map(|entry| look(entry.ok()?)).collect();
        found.sort();
        found
    }

    /// Those whose command line contains `part`.
    pub fn descendants_with(&self, part: &str) -> Vec<Descendant> {
        let mut found = self.descendants();
        found.retain(|process| process.command.contains(part));
        found
    }

    /// Waits until no descendant has `part` in its command line.
    pub async fn gone(&self, part: &str) {
        eventually(&format!("no process with {part:?} is left"), async || {
            self.descendants_with(part).is_empty().then_some(())
        })
        .await;
    }

    /// Waits until a file is there, and returns its content.
    pub async fn appears(&self, name: &str) -> String {
        let path = self.path(name);
        eventually(&format!("{name} appears"), async || fs::read_to_string(&path).ok()).await
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A killed process may just have started another.
        for _ in 0..100 {
            let left = self.descendants();
            if left.is_empty() {
                return;
            }
            for process in left {
                process.kill();
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

// === impl Descendant ===

impl Descendant {
    /// Kills it. One that has ended stays ended.
    pub fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

// === impl Server ===

impl Server {
    /// Where it takes calls.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its admin port.
    ///
    /// # Panics
    /// For the wrapper-server, which has none.
    pub fn admin(&self) -> SocketAddr {
        self.admin.expect("an admin port")
    }

    /// An admin page.
    pub async fn page(&self, path: &str) -> (u16, String) {
        get(self.admin(), path).await
    }

    /// An admin page that is JSON.
    ///
    /// # Panics
    /// When it is not.
    pub async fn json(&self, path: &str) -> serde_json::Value {
        let (status, text) = self.page(path).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Its process number, while it has not been waited for.
    pub fn pid(&self) -> Option<i32> {
        self.child.id().and_then(|id| i32::try_from(id).ok())
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it has ended.
    pub fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(Pid::from_raw).expect("it runs");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn ended(&mut self) -> ExitStatus {
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.expect("it can be waited for"),
            Err(_) => panic!("it did not end:\n{}", self.log()),
        }
    }

    /// Sends SIGTERM and waits for its end.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Closes its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        read_text(&self.log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("--- end of {}", self.log.display());
            tail.into_iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// `NAME: listening on ADDRESS, admin on ADDRESS`; the wrapper says only the first.
fn addresses(line: &str) -> Option<(SocketAddr, Option<SocketAddr>)> {
    let (_, rest) = line.trim_end().split_once("listening on ")?;
    match rest.split_once(", admin on ") {
        Some((address, admin)) => Some((address.parse().ok()?, Some(admin.parse().ok()?))),
        None => Some((rest.parse().ok()?, None)),
    }
}

fn read_text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// `--flag=value` with a path for a value.
pub fn flag(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}
