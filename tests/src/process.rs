//! Starts our binaries and third-party programs as processes, and kills them when the test ends.

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

/// How long a test waits for an expected event before it fails.
pub const PATIENCE: Duration = Duration::from_mins(1);
const INTERVAL: Duration = Duration::from_millis(10);

/// One of our servers. Dropping it kills the process, and prints its log if the test failed.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Kept open, because a wrapper-server with `--exit-with-stdin` exits when its standard input
    /// closes.
    stdin: Option<ChildStdin>,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    log: PathBuf,
}

/// Calls `poll` every few milliseconds until it returns a value. Panics with `what` if it takes too
/// long.
pub async fn eventually<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let found = timeout(PATIENCE, async {
        loop {
            match poll().await {
                Some(found) => return found,
                None => sleep(INTERVAL).await,
            }
        }
    });
    found.await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// The value of `field` for a function on the runner's `/pods` page; 0 if the page has no such
/// function.
pub async fn count(runner: &Server, image: &str, field: &str) -> u64 {
    let page = runner.json("/pods").await;
    let entry = page.as_array().into_iter().flatten().find(|function| function["image"] == image);
    entry.map_or(0, |entry| entry[field].as_u64().expect("a number"))
}

pub async fn wait_count(runner: &Server, image: &str, field: &str, expected: u64) {
    let reached = async || (count(runner, image, field).await == expected).then_some(());
    eventually(&format!("{field} of {image} is {expected}"), reached).await;
}

/// Prints a measured figure. The test harness does not capture this output.
pub fn figure(text: &str) {
    let _ = std::io::stderr().write_all(format!("figure: {text}\n").as_bytes());
}

/// The path of one of our binaries, in `PORCH_FN_BIN_DIR` or in the test's own build directory.
pub fn binary(name: &str) -> PathBuf {
    let directory = std::env::var_os("PORCH_FN_BIN_DIR").map_or_else(
        || {
            // The test's path is target/debug/deps/TEST.
            let test = std::env::current_exe().expect("a test knows its executable");
            test.ancestors().nth(2).expect("a build directory").to_owned()
        },
        PathBuf::from,
    );
    let path = directory.join(name);
    let help = "tests/run builds it, or cargo build --workspace --bins";
    assert!(path.is_file(), "{} is missing: {help}", path.display());
    path
}

/// The status and body of an admin page.
pub async fn get(admin: SocketAddr, path: &str) -> (u16, String) {
    try_get(admin, path).await.unwrap_or_else(|error| panic!("the admin port's {path}: {error}"))
}

/// Like [`get`], for a server that may have ended.
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

/// The content of an admin page in JSON.
pub async fn get_json(admin: SocketAddr, path: &str) -> Value {
    let (status, text) = get(admin, path).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

/// The value of a counter or gauge. `series` is its name with all labels.
pub async fn metric(admin: SocketAddr, series: &str) -> Option<u64> {
    let (_, text) = get(admin, "/metrics").await;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().expect("a whole number"))
}

/// Waits until a counter or gauge has this value. A missing series has the value 0.
pub async fn wait_metric(admin: SocketAddr, series: &str, value: u64) {
    let reached = async || (metric(admin, series).await.unwrap_or(0) == value).then_some(());
    eventually(&format!("{series} is {value}"), reached).await;
}

/// Waits until the router of this admin port has runners and all of them are healthy.
pub async fn wait_runners_healthy(admin: SocketAddr) {
    eventually("all runners are healthy", async || {
        let page = get_json(admin, "/shards").await;
        let shards = page["shards"].as_array().filter(|shards| !shards.is_empty())?;
        shards.iter().all(is_healthy).then_some(())
    })
    .await;
}

/// `--name=value`. The value may be a path.
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
    /// Starts the process and reads its addresses from its output.
    async fn start(mut command: Command, log: PathBuf) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log).expect("a log file"));
        let mut child = command.spawn().expect("our binary starts");
        let stdin = child.stdin.take();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let read = timeout(PATIENCE, stdout.read_line(&mut line)).await;
        let addresses = read.is_ok().then(|| addresses(&line)).flatten();
        let Some((address, admin)) = addresses else {
            panic!("{command:?} printed {line:?} and\n{}", read_text(&log));
        };
        Self { child, stdin, address, admin, log }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The admin address. A wrapper-server has none.
    pub fn admin(&self) -> SocketAddr {
        self.admin.expect("an admin port")
    }

    pub async fn page(&self, path: &str) -> (u16, String) {
        get(self.admin(), path).await
    }

    pub async fn json(&self, path: &str) -> Value {
        get_json(self.admin(), path).await
    }

    pub async fn metric(&self, series: &str) -> Option<u64> {
        metric(self.admin(), series).await
    }

    pub async fn wait_runners_healthy(&self) {
        wait_runners_healthy(self.admin()).await;
    }

    pub async fn wait_ready(&self) {
        eventually("the server is ready", async || (self.page("/readyz").await.0 == 200).then_some(())).await;
    }

    pub async fn wait_log(&self, text: &str) {
        eventually(text, async || self.log().contains(text).then_some(())).await;
    }

    pub async fn wait_port_closed(&self) {
        let refused = async || TcpStream::connect(self.address).await.is_err().then_some(());
        eventually("the port is closed", refused).await;
    }

    /// The process ID, unless the process has ended.
    pub fn pid(&self) -> Option<i32> {
        self.child.id().and_then(|id| i32::try_from(id).ok())
    }

    pub fn usage(&self) -> Usage {
        Usage::of(self.pid().expect("a running process"))
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(Pid::from_raw).expect("a running process");
        kill_process(pid, signal).expect("a running process");
    }

    pub async fn wait_exit(&mut self) -> ExitStatus {
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let ended = ended.unwrap_or_else(|_| panic!("the process did not end:\n{}", self.log()));
        ended.expect("an exit status")
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_exit().await
    }

    /// Sends SIGKILL and waits for the exit.
    pub async fn kill(&mut self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.wait_exit().await
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

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

/// Parses `NAME: listening on ADDRESS, admin on ADDRESS`, or the same as an object. A
/// wrapper-server has no admin address.
fn addresses(line: &str) -> Option<(SocketAddr, Option<SocketAddr>)> {
    if let Ok(object) = serde_json::from_str::<Value>(line) {
        let field = |name: &str| object[name].as_str()?.parse().ok();
        return Some((field("address")?, field("admin_address")));
    }
    let (_, rest) = line.trim_end().split_once("listening on ")?;
    match rest.split_once(", admin on ") {
        Some((address, admin)) => Some((address.parse().ok()?, Some(admin.parse().ok()?))),
        None => Some((rest.parse().ok()?, None)),
    }
}

fn read_text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether a runner on `/shards` is healthy. Routers of the previous version report `well`.
pub fn is_healthy(shard: &Value) -> bool {
    shard["state"] == "healthy" || shard["state"] == "well"
}
