//! A directory for a test's processes, which are killed when the test ends.
//!
//! A grandchild of a function may have another process group and another parent, so the process
//! tree does not show which test started it. But runner and wrapper-server pass `TMPDIR` to their
//! child processes. A process whose `TMPDIR` is a [`Sandbox`]'s directory belongs to that sandbox.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::{INTERVAL, PATIENCE, Server, binary, eventually, flag, runners_flag};

/// A directory and the processes that were started in it. Dropping the sandbox kills these
/// processes and their descendants.
#[derive(Debug)]
pub struct Sandbox {
    directory: tempfile::TempDir,
    started: AtomicUsize,
}

/// A process that belongs to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Descendant {
    pub pid: i32,
    /// The command line, with spaces between the words.
    pub command: String,
}

// === impl Sandbox ===

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Sandbox {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("porch-fn-test-").tempdir().expect("a directory");
        Self { directory, started: AtomicUsize::new(0) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file, creates missing directories, and returns the file's path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a path in the sandbox")).expect("a directory");
        // `rename` is atomic, so a concurrent reader never reads an incomplete file.
        let draft = path.with_added_extension("new");
        fs::write(&draft, content).expect("a file");
        fs::rename(&draft, &path).expect("a file of that name");
        path
    }

    /// Writes a kubeconfig without credentials for this API server.
    pub fn kubeconfig(&self, server: &str) -> PathBuf {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        });
        self.write("test.conf", config.to_string())
    }

    /// Writes an executable shell script and returns its path. In the script, `$TMPDIR` is this
    /// directory.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.path(name);
        // Another process (`cp`) writes the script. If this process wrote it, a concurrent fork
        // could inherit the file while it is open for writing, and the kernel does not execute such
        // a file (`ETXTBSY`).
        let script = format!("#!/bin/sh\nexport TMPDIR='{}'\n{body}\n", self.directory().display());
        let draft = self.write(&format!("{name}.draft"), script);
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("an executable");
        let copied = std::process::Command::new("cp").arg(&draft).arg(&path).status().expect("cp runs");
        assert!(copied.success());
        path
    }

    /// A runner's flags for executables, each with images (separated by commas) and a script.
    pub fn executables(&self, functions: &[(&str, &str)]) -> Vec<OsString> {
        fs::create_dir_all(self.path("functions")).expect("a directory");
        let entries = functions.iter().enumerate().map(|(number, (images, script))| {
            self.script(&format!("functions/f{number}"), script);
            format!("{{function: f{number}, images: ['{}']}}", images.replace(',', "', '"))
        });
        let config = format!("functions: [{}]\n", entries.collect::<Vec<_>>().join(", "));
        vec![flag("config", self.write("exec.yaml", config)), flag("functions", self.path("functions"))]
    }

    /// A runner's flags for functions in local pods. Each consists of an image and a script.
    pub fn local_pods(&self, functions: &[(&str, &str)]) -> Vec<OsString> {
        let programs = functions
            .iter()
            .enumerate()
            .map(|(number, (image, script))| (*image, self.script(&format!("pods/f{number}"), script)));
        self.local_programs(&binary("wrapper-server"), programs)
    }

    /// Like [`local_pods`](Self::local_pods), with programs instead of scripts, and any wrapper.
    pub fn local_programs<'a>(
        &self,
        wrapper: &Path,
        programs: impl IntoIterator<Item = (&'a str, PathBuf)>,
    ) -> Vec<OsString> {
        let entry = |(image, program): (&str, PathBuf)| json!({"image": image, "command": [program]});
        let functions: Vec<_> = programs.into_iter().map(entry).collect();
        let functions = json!({ "functions": functions }).to_string();
        vec![
            "--pod-backend=local".into(),
            flag("local-functions", self.write("pods.yaml", functions)),
            flag("wrapper-server", wrapper),
        ]
    }

    /// TLS flags with this prefix, for the files `NAME.crt`, `NAME.key` and `AUTHORITY.crt`.
    pub fn tls_flags(&self, prefix: &str, name: &str, authority: &str) -> [OsString; 3] {
        [("cert", name, "crt"), ("key", name, "key"), ("client-ca", authority, "crt")].map(
            |(part, name, suffix)| flag(&format!("{prefix}-{part}"), self.path(&format!("{name}.{suffix}"))),
        )
    }

    /// A command that runs in the directory and belongs to the sandbox.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory()).env("TMPDIR", self.directory());
        // A developer's shell may have set these variables. They must not affect a test.
        for name in [
            "OTEL_EXPORTER_PROMETHEUS_PORT",
            "OTEL_METRICS_EXPORTER",
            "OTEL_SERVICE_NAME",
            "OTEL_TRACES_EXPORTER",
            "RUST_BACKTRACE",
        ] {
            command.env_remove(name);
        }
        command.process_group(0).kill_on_drop(true);
        command
    }

    /// Runs a command to its end and returns its output.
    pub async fn run<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
        stdin: &[u8],
    ) -> Output {
        self.run_within(PATIENCE, program, args, stdin).await
    }

    /// Like [`run`](Self::run), for a command that may take longer.
    pub async fn run_within<A: AsRef<OsStr>>(
        &self,
        limit: Duration,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
        stdin: &[u8],
    ) -> Output {
        let program = program.as_ref();
        let mut command = self.command(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut pipe = child.stdin.take().expect("a pipe");
        let feed = async move {
            // The write fails if the program does not read its input.
            let _ = pipe.write_all(stdin).await;
        };
        let ended = timeout(limit, async { tokio::join!(feed, child.wait_with_output()).1 }).await;
        let ended = ended.unwrap_or_else(|_| panic!("{} did not end", program.display()));
        ended.expect("readable output")
    }

    /// Starts one of our servers and waits until it listens, by default on a free port of
    /// 127.0.0.1. `name` may also be the path of another version's binary.
    pub async fn server<A: AsRef<OsStr>>(&self, name: &str, args: impl IntoIterator<Item = A>) -> Server {
        self.server_with(name, args, |_| ()).await
    }

    /// Like [`server`](Self::server). `prepare` may change the command.
    pub async fn server_with<A: AsRef<OsStr>>(
        &self,
        name: &str,
        args: impl IntoIterator<Item = A>,
        prepare: impl FnOnce(&mut Command),
    ) -> Server {
        let mut command = self.command(binary(name));
        let name = Path::new(name).file_name().and_then(OsStr::to_str).unwrap_or_default();
        let log = self.path(&format!("{}-{name}.log", self.started.fetch_add(1, Ordering::Relaxed)));
        command.args(["--address=127.0.0.1", "--port=0"]);
        if name != "wrapper-server" {
            command.arg("--admin-port=0");
        }
        command.args(args);
        prepare(&mut command);
        Server::start(command, log).await
    }

    pub async fn runner<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Server {
        self.server("porch-fn-runner", args).await
    }

    /// Starts a router for these runners, and waits until all of them are healthy.
    pub async fn router(&self, runners: &[&Server], args: &[&str]) -> Server {
        let target = runners_flag(runners.iter().map(|runner| runner.address()));
        let router = self.server("porch-fn-router", [&[&*target], args].concat()).await;
        router.wait_runners_healthy().await;
        router
    }

    /// The running processes that belong to this sandbox, ordered by process ID.
    pub fn descendants(&self) -> Vec<Descendant> {
        let mut mark = b"TMPDIR=".to_vec();
        mark.extend_from_slice(self.directory().as_os_str().as_encoded_bytes());
        let look = |entry: fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // A zombie's `environ` is empty. The `environ` of an ending process cannot be read.
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

    /// The descendants whose command line contains `part`.
    pub fn descendants_with(&self, part: &str) -> Vec<Descendant> {
        let mut found = self.descendants();
        found.retain(|process| process.command.contains(part));
        found
    }

    /// Waits until no descendant has `part` in its command line.
    pub async fn wait_no_process(&self, part: &str) {
        let gone = async || self.descendants_with(part).is_empty().then_some(());
        eventually(&format!("no process with {part:?} is left"), gone).await;
    }

    /// The number of files directly in the directory whose names contain `part`.
    pub fn files_with(&self, part: &str) -> usize {
        let files = fs::read_dir(self.directory()).expect("a directory").filter_map(Result::ok);
        files.filter(|file| file.file_name().to_string_lossy().contains(part)).count()
    }

    /// Waits until the directory has at least `count` files whose names contain `part`.
    pub async fn wait_files(&self, part: &str, count: usize) {
        let there = async || (self.files_with(part) >= count).then_some(());
        eventually(&format!("{count} files {part}"), there).await;
    }

    /// Waits until a file exists, and returns its content.
    pub async fn wait_file(&self, name: &str) -> String {
        let path = self.path(name);
        eventually(&format!("{name} appears"), async || fs::read_to_string(&path).ok()).await
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A process may start another one before it is killed.
        for _ in 0..100 {
            let left = self.descendants();
            if left.is_empty() {
                return;
            }
            for process in left {
                process.signal(Signal::KILL);
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

// === impl Descendant ===

impl Descendant {
    /// Sends a signal. Does nothing if the process has ended.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, signal);
        }
    }
}
