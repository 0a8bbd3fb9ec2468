//! A user of this machine with an image store of their own: root, or an ordinary user.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use rustix::process::geteuid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::client::Client;
use crate::image::Image;
use crate::process::{PATIENCE, Sandbox, binary};

/// An ordinary user's number. No account of the machine has it.
const ORDINARY: u32 = 54321;

/// Runs `porch-fn` as one user.
#[derive(Debug)]
pub struct ImageUser {
    sandbox: Sandbox,
    program: PathBuf,
    /// `None`: the user of the test.
    number: Option<u32>,
}

// === impl ImageUser ===

impl ImageUser {
    /// Both users that a test should try: the one of the test, and if that is root, an ordinary one.
    pub fn all() -> Vec<Self> {
        let own = Self::new(None);
        if geteuid().is_root() { vec![own, Self::new(Some(ORDINARY))] } else { vec![own] }
    }

    /// The user of the test.
    pub fn own() -> Self {
        Self::new(None)
    }

    fn new(number: Option<u32>) -> Self {
        let sandbox = Sandbox::new();
        // The ordinary user may not be able to read the build directory.
        let program = sandbox.path("porch-fn");
        if fs::hard_link(binary("porch-fn"), &program).is_err() {
            fs::copy(binary("porch-fn"), &program).expect("a copy");
        }
        fs::create_dir(sandbox.path("home")).expect("a folder");
        if let Some(number) = number {
            for path in [sandbox.directory(), &sandbox.path("home")] {
                chown(path, Some(number), Some(number)).expect("root may do that");
            }
        }
        fs::set_permissions(sandbox.directory(), fs::Permissions::from_mode(0o755)).expect("an own folder");
        Self { sandbox, program, number }
    }

    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn store(&self) -> PathBuf {
        self.sandbox.path("home/images")
    }

    /// The ordinary user's number.
    pub fn number(&self) -> Option<u32> {
        self.number
    }

    /// Whether the user is root.
    pub fn is_root(&self) -> bool {
        self.number.is_none() && geteuid().is_root()
    }

    /// The command lines of the running processes of this user's `porch-fn`.
    pub fn processes(&self) -> Vec<String> {
        let processes = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
        let own = processes.filter(|process| {
            fs::read_link(process.path().join("exe")).is_ok_and(|program| program == self.program)
        });
        own.map(|process| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        })
        .collect()
    }

    /// A command of this user.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.sandbox.command(program);
        command.env("HOME", self.sandbox.path("home")).env("PORCH_FN_IMAGE_DIR", self.store());
        // No variable of the developer's shell but these.
        command.env_remove("XDG_CACHE_HOME").env_remove("XDG_DATA_HOME");
        if let Some(number) = self.number {
            command.uid(number).gid(number);
        }
        command
    }

    /// Runs a command to its end.
    pub async fn run_program(&self, program: impl AsRef<OsStr>, args: &[&str], stdin: &[u8]) -> Output {
        let mut command = self.command(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let mut pipe = child.stdin.take().expect("a pipe");
        let feed = async move {
            // The write fails if the program does not read its input.
            let _ = pipe.write_all(stdin).await;
        };
        let ended = timeout(PATIENCE, async { tokio::join!(feed, child.wait_with_output()).1 }).await;
        ended.unwrap_or_else(|_| panic!("{args:?} did not end")).expect("readable output")
    }

    /// Runs `porch-fn` to its end.
    pub async fn run(&self, args: &[&str], stdin: &[u8]) -> Output {
        self.run_program(&self.program, args, stdin).await
    }

    /// Imports an image.
    pub async fn import(&self, name: &str, image: &Image) {
        self.import_archive(&image.oci_archive(name)).await;
    }

    pub async fn import_archive(&self, archive: &[u8]) {
        let ended = self.run(&["images", "import", "-"], archive).await;
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

/// `porch-fn up` of one user. Dropping it kills the process.
#[derive(Debug)]
pub struct Up {
    child: Child,
    router: SocketAddr,
}

// === impl Up ===

impl Up {
    pub async fn start(user: &ImageUser, flags: &[&str]) -> Self {
        let mut command = user.command(user.program());
        command.args(["up", "--runners=1", "--port=0", "--admin-port=0"]).args(flags);
        let log = File::create(user.sandbox().path("up.log")).expect("a log file");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("our binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let router = loop {
            let line = timeout(PATIENCE, lines.next_line()).await.expect("a line in time").expect("text");
            let log = || fs::read_to_string(user.sandbox().path("up.log")).unwrap_or_default();
            let line = line.unwrap_or_else(|| panic!("up ended: {}", log()));
            if let Some(rest) = line.strip_prefix("Router   ") {
                break rest.split(' ').next().expect("a word").parse().expect("an address");
            }
        };
        // The process must be able to write the rest.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, router }
    }

    pub fn address(&self) -> String {
        self.router.to_string()
    }

    pub fn client(&self) -> Client {
        Client::new(self.router)
    }

    /// Runs `porch-fn eval` with this input.
    pub async fn eval(&self, user: &ImageUser, image: &str, input: &str) -> Output {
        user.run(&["eval", "-", "--address", &self.address(), "-i", image], input.as_bytes()).await
    }

    /// Kills the process.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("a running process");
    }
}
