//! Our binaries, and foreign ones, as real processes that no test leaves behind.

mod sandbox;
mod usage;

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
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};

pub use sandbox::{Descendant, Sandbox};
pub use usage::Usage;

/// How long a test waits for what must happen. Nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_mins(1);
const INTERVAL: Duration = Duration::from_millis(10);

/// A server of ours that listens. Dropping it kills it, and prints its log if the test failed.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Held open: a wrapper-server may have to end with it.
    stdin: Option<ChildStdin>,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    log: PathBuf,
}

/// Calls `look` every few milliseconds until it returns something. A panic names `what`.
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
    let _ = std::io::stderr().write_all(format!("figure: {text}\n").as_bytes());
}

/// One of our binaries, from `PORCH_FN_BIN_DIR` or else from beside this test's own executable.
pub fn binary(name: &str) -> PathBuf {
    let directory = std::env::var_os("PORCH_FN_BIN_DIR").map_or_else(
        || {
            // target/debug/deps/TEST
            let test = std::env::current_exe().expect("a test knows its executable");
            test.ancestors().nth(2).expect("it is in a build directory").to_owned()
        },
        PathBuf::from,
    );
    let path = directory.join(name);
    let help = "tests/run builds it, or cargo build --workspace --bins";
    assert!(path.is_file(), "{} is missing: {help}", path.display());
    path
}

/// Status and body of an admin page.
pub async fn get(admin: SocketAddr, path: &str) -> (u16, String) {
    try_get(admin, path).await.unwrap_or_else(|error| panic!("the admin port's {path}: {error}"))
}

/// The same of a server that may be gone.
pub async fn try_get(
    admin: SocketAddr,
    path: &str,
) -> Result<(u16, String), Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(admin).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header("host", "admin").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// An admin page that is JSON.
pub async fn get_json(admin: SocketAddr, path: &str) -> Value {
    let (status, text) = get(admin, path).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

/// A counter or gauge of `/metrics`, by its name with all labels.
pub async fn metric(admin: SocketAddr, series: &str) -> Option<u64> {
    let (_, text) = get(admin, "/metrics").await;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().expect("a whole number"))
}

/// Waits until a counter or gauge has this value; a series that is missing counts as 0.
pub async fn until_metric(admin: SocketAddr, series: &str, value: u64) {
    let reached = async || (metric(admin, series).await.unwrap_or(0) == value).then_some(());
    eventually(&format!("{series} is {value}"), reached).await;
}

/// Waits until the router of this admin port has runners, all of them healthy.
pub async fn until_runners_are_healthy(admin: SocketAddr) {
    eventually("all runners are healthy", async || {
        let page = get_json(admin, "/shards").await;
        let shards = page["shards"].as_array().filter(|shards| !shards.is_empty())?;
        shards.iter().all(is_healthy).then_some(())
    })
    .await;
}

/// `--flag=value`, also with a path.
pub fn flag(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}

/// `--runners=static:///A,B`
pub fn runners_flag(addresses: impl IntoIterator<Item = SocketAddr>) -> String {
    let addresses: Vec<_> = addresses.into_iter().map(|address| address.to_string()).collect();
    format!("--runners=static:///{}", addresses.join(","))
}

// === impl Server ===

impl Server {
    /// Starts it and reads where it listens.
    async fn start(mut command: Command, log: PathBuf) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log).expect("a log file"));
        let mut child = command.spawn().expect("a binary of ours starts");
        let stdin = child.stdin.take();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let read = timeout(PATIENCE, stdout.read_line(&mut line)).await;
        let addresses = read.is_ok().then(|| addresses(&line)).flatten();
        let Some((address, admin)) = addresses else {
            panic!("{command:?} printed {line:?} and\n{}", read_text(&log));
        };
        Self { child, stdin, address, admin, log }
    }

    /// Where it takes calls.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its admin port. A wrapper-server has none.
    pub fn admin(&self) -> SocketAddr {
        self.admin.expect("an admin port")
    }

    /// See [`get`].
    pub async fn page(&self, path: &str) -> (u16, String) {
        get(self.admin(), path).await
    }

    /// See [`get_json`].
    pub async fn json(&self, path: &str) -> Value {
        get_json(self.admin(), path).await
    }

    /// See [`metric`].
    pub async fn metric(&self, series: &str) -> Option<u64> {
        metric(self.admin(), series).await
    }

    /// See [`until_runners_are_healthy`].
    pub async fn until_well(&self) {
        until_runners_are_healthy(self.admin()).await;
    }

    /// Waits until `/readyz` is 200.
    pub async fn until_ready(&self) {
        eventually("it is ready", async || (self.page("/readyz").await.0 == 200).then_some(())).await;
    }

    /// Waits until its log contains `text`.
    pub async fn logs(&self, text: &str) {
        eventually(text, async || self.log().contains(text).then_some(())).await;
    }

    /// Waits until its port refuses connections.
    pub async fn refuses_connections(&self) {
        let refused = async || TcpStream::connect(self.address).await.is_err().then_some(());
        eventually("the port is closed", refused).await;
    }

    /// Its process number, while it has not been waited for.
    pub fn pid(&self) -> Option<i32> {
        self.child.id().and_then(|id| i32::try_from(id).ok())
    }

    /// What it has used so far.
    pub fn usage(&self) -> Usage {
        Usage::of(self.pid().expect("it runs"))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(Pid::from_raw).expect("it runs");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits for its end.
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

    /// Sends SIGKILL and waits for its end.
    pub async fn kill(&mut self) -> ExitStatus {
        self.signal(Signal::KILL);
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
            let lines: Vec<_> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(40)..];
            eprintln!("--- end of {}\n{}", self.log.display(), tail.join("\n"));
        }
    }
}

/// `NAME: listening on ADDRESS, admin on ADDRESS`; a wrapper-server has only the first.
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
pub fn is_healthy(shard: &Value) -> bool {
    shard["state"] == "healthy" || shard["state"] == "well"
}
