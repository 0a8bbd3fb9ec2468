//! Where a test's processes live, and how none of them outlives it.
//!
//! A function's grandchild is in no process group of ours and may have another parent by now, so it
//! cannot be found through its parents. But runner and wrapper-server pass `TMPDIR` on to what they
//! start: every process with a [`Sandbox`]'s directory there descends from it, and is killed at the
//! end.

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

/// A directory, and the processes that were started in it. Dropping it kills them and their
/// descendants.
#[derive(Debug)]
pub struct Sandbox {
    directory: tempfile::TempDir,
    started: AtomicUsize,
}

/// A process with a sandbox's mark.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Descendant {
    pub pid: i32,
    /// The command line, the words separated by spaces.
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

    /// Writes a file and returns its path. Missing directories are made.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a path in the sandbox")).expect("a directory");
        // A program that reads it already never sees a part of it.
        let draft = path.with_added_extension("new");
        fs::write(&draft, content).expect("a file");
        fs::rename(&draft, &path).expect("a file of that name");
        path
    }

    /// Writes a kubeconfig of an API server that asks for no credentials.
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

    /// Writes an executable shell script, for which `$TMPDIR` is this directory, and returns its
    /// path.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.path(name);
        // Not written in place: a concurrent fork could hold the file open for writing while it is
        // started.
        let script = format!("#!/bin/sh\nexport TMPDIR='{}'\n{body}\n", self.directory().display());
        let draft = self.write(&format!("{name}.draft"), script);
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("an executable");
        let copied = std::process::Command::new("cp").arg(&draft).arg(&path).status().expect("cp runs");
        assert!(copied.success());
        path
    }

    /// A runner's flags for executables. Each is some images, separated by commas, and a script's
    /// text.
    pub fn executables(&self, functions: &[(&str, &str)]) -> Vec<OsString> {
        fs::create_dir_all(self.path("functions")).expect("a directory");
        let entries = functions.iter().enumerate().map(|(number, (images, script))| {
            self.script(&format!("functions/f{number}"), script);
            format!("{{function: f{number}, images: ['{}']}}", images.replace(',', "', '"))
        });
        let config = format!("functions: [{}]\n", entries.collect::<Vec<_>>().join(", "));
        vec![flag("config", self.write("exec.yaml", config)), flag("functions", self.path("functions"))]
    }

    /// A runner's flags for functions in local pods. Each is an image and a script's text.
    pub fn local_pods(&self, functions: &[(&str, &str)]) -> Vec<OsString> {
        let entries = functions.iter().enumerate().map(|(number, (image, script))| {
            let script = self.script(&format!("pods/f{number}"), script);
            format!("{{image: '{image}', command: ['{}']}}", script.display())
        });
        let local = format!("functions: [{}]\n", entries.collect::<Vec<_>>().join(", "));
        vec![
            "--pod-backend=local".into(),
            flag("local-functions", self.write("pods.yaml", local)),
            flag("wrapper-server", binary("wrapper-server")),
        ]
    }

    /// A command that works in the directory and has the sandbox's mark.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory()).env("TMPDIR", self.directory());
        // What a developer's shell may have set must not decide how a test ends.
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

    /// Runs a command to its end and returns what it wrote.
    pub async fn run<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
        stdin: &[u8],
    ) -> Output {
        self.run_within(PATIENCE, program, args, stdin).await
    }

    /// The same of a command that may take longer.
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
        let mut pipe = child.stdin.take().expect("it is piped");
        let feed = async move {
            // A program that does not read its input closes it.
            let _ = pipe.write_all(stdin).await;
        };
        let ended = timeout(limit, async { tokio::join!(feed, child.wait_with_output()).1 }).await;
        let ended = ended.unwrap_or_else(|_| panic!("{} did not end", program.display()));
        ended.expect("its output can be read")
    }

    /// Starts one of our servers on a free port of 127.0.0.1, unless `args` contain another, and
    /// waits until it listens. The name may be the path of another version.
    pub async fn server<A: AsRef<OsStr>>(&self, name: &str, args: impl IntoIterator<Item = A>) -> Server {
        self.server_with(name, args, |_| ()).await
    }

    /// The same with a changed command.
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

    /// Starts a runner.
    pub async fn runner<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Server {
        self.server("porch-fn-runner", args).await
    }

    /// Starts a router of these runners, and waits until all of them are healthy.
    pub async fn router(&self, runners: &[&Server], args: &[&str]) -> Server {
        let target = runners_flag(runners.iter().map(|runner| runner.address()));
        let router = self.server("porch-fn-router", [&[&*target], args].concat()).await;
        router.until_well().await;
        router
    }

    /// The living processes that descend from this sandbox, oldest first.
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
        let gone = async || self.descendants_with(part).is_empty().then_some(());
        eventually(&format!("no process with {part:?} is left"), gone).await;
    }

    /// How many files directly in the directory have names that contain `part`.
    pub fn files_with(&self, part: &str) -> usize {
        let files = fs::read_dir(self.directory()).expect("a directory").filter_map(Result::ok);
        files.filter(|file| file.file_name().to_string_lossy().contains(part)).count()
    }

    /// Waits until there are so many of them.
    pub async fn until_files(&self, part: &str, count: usize) {
        let there = async || (self.files_with(part) >= count).then_some(());
        eventually(&format!("{count} files {part}"), there).await;
    }

    /// Waits until a file exists, and returns its content.
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
                process.signal(Signal::KILL);
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

// === impl Descendant ===

impl Descendant {
    /// Sends it a signal. One that has ended stays ended.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, signal);
        }
    }
}
