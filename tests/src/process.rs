//! Our binaries, and foreign ones, as real processes that no test leaves behind.

mod sandbox;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
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

pub use sandbox::{Descendant, Sandbox};

/// How long a test waits for what must happen, before it fails. Nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(10);

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
    try_get(admin, path).await.unwrap_or_else(|error| panic!("the admin port's {path}: {error}"))
}

/// The same of a server that may be gone.
///
/// # Errors
/// When nobody answers.
pub async fn try_get(
    admin: SocketAddr,
    path: &str,
) -> Result<(u16, String), Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(admin).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header("host", "admin").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

// === impl Server ===

impl Server {
    /// Starts it and reads where it listens.
    ///
    /// # Panics
    /// When it does not come up.
    async fn start(mut command: Command, log: PathBuf) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log).expect("a log file"));
        let mut child = command.spawn().expect("a binary of ours starts");
        let stdin = child.stdin.take();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let read = timeout(PATIENCE, stdout.read_line(&mut line)).await;
        let addresses = read.is_ok().then(|| addresses(&line)).flatten();
        let Some((address, admin)) = addresses else {
            panic!("{command:?} said {line:?} and\n{}", read_text(&log));
        };
        Self { child, stdin, address, admin, log }
    }

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

    /// A counter or gauge of `/metrics`, by its name with all labels; none when it is not there.
    ///
    /// # Panics
    /// When it is not a whole number.
    pub async fn metric(&self, series: &str) -> Option<u64> {
        let (_, text) = self.page("/metrics").await;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(value.parse().expect("a whole number"))
    }

    /// Waits until this router knows its runners, and all of them as well.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub async fn until_well(&self) {
        eventually("the router knows all runners as well", async || {
            let page = self.json("/shards").await;
            let shards = page["shards"].as_array().filter(|shards| !shards.is_empty())?;
            shards.iter().all(is_healthy).then_some(())
        })
        .await;
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
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let ended = ended.unwrap_or_else(|_| panic!("it did not end:\n{}", self.log()));
        ended.expect("it can be waited for")
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

/// Whether a runner of `/shards` is healthy. A router of the version before calls that `well`.
pub fn is_healthy(shard: &serde_json::Value) -> bool {
    shard["state"] == "healthy" || shard["state"] == "well"
}

/// `--flag=value` with a path for a value.
pub fn flag(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}
