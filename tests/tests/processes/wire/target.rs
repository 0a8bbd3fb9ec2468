//! The servers under test: a router, a runner, a wrapper-server and `porch-fn up`, each with small
//! limits, with an ordinary caller beside, and with servers behind that only echo.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use porch_fn_lifecycle::drain::{self, Signal};
use porch_fn_proto::shard::{AnnounceRequest, DescribeImageRequest, PrepareRequest};
use porch_fn_proto::{Chunks, EVALUATE_FUNCTION_PATH, encode_request};
use porch_fn_tests::client::Client;
use porch_fn_tests::echo::serve_echo;
use porch_fn_tests::process::{PATIENCE, Sandbox, Server, Usage, binary, eventually, runners_flag};
use prost::Message;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tonic::Code;

use super::super::INPUT;
use super::beside::{Background, Beside, Met};
use super::case::MORE_MEMORY;

/// The function of the cases. It echoes.
pub(in super::super) const IMAGE: &str = "example.com/functions/case:v1";
/// The function of the caller beside. It echoes.
pub(in super::super) const OTHER: &str = "example.com/functions/other:v1";
/// `--max-request-body-size`, in bytes.
pub(in super::super) const LIMIT: usize = 1024 * 1024;
/// That of `porch-fn up`, which has no such flag.
const DEFAULT_LIMIT: usize = 6 * 1024 * 1024;

/// Tests that measure how long the caller beside waits take turns.
pub(super) static TURN: Mutex<()> = Mutex::const_new(());

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Kind {
    Router,
    Runner,
    Wrapper,
    Up,
}

/// A server under test.
pub(in super::super) struct Target {
    pub(in super::super) kind: Kind,
    pub(in super::super) address: SocketAddr,
    /// The largest message in bytes.
    pub(in super::super) limit: usize,
    pub(in super::super) process: Process,
    pub(super) beside: Beside,
    /// Resident memory in KiB before the cases.
    pub(in super::super) idle: u64,
    behind: Behind,
    _sandbox: Sandbox,
}

/// A server that only echoes, with a thread of its own.
pub(in super::super) struct Behind {
    pub(in super::super) address: SocketAddr,
    pub(super) background: Background,
    _drain: Signal,
}

pub(in super::super) enum Process {
    Server(Server),
    Up(Child),
}

/// A method of a service, and a message that it takes.
#[derive(Debug, Clone)]
pub(in super::super) struct Method {
    pub(in super::super) path: String,
    pub(in super::super) message: Vec<u8>,
}

impl Kind {
    pub(in super::super) const ALL: [Self; 4] = [Self::Router, Self::Runner, Self::Wrapper, Self::Up];
}

// === impl Method ===

impl Method {
    /// The methods of all services in proto/, and of gRPC's health service.
    pub(in super::super) fn all() -> Vec<Self> {
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../proto"));
        let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "proto"));
        let mut set = protox::compile(files, [&folder]).unwrap();
        // Appends the other set.
        set.merge(tonic_health::pb::FILE_DESCRIPTOR_SET).unwrap();
        let mut found = Vec::new();
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    found.push(Self { message: message_for(&path), path });
                }
            }
        }
        assert!(found.len() >= 7, "{found:?}");
        found
    }

    /// Whether an answer never ends.
    pub(in super::super) fn is_stream(&self) -> bool {
        self.path.ends_with("/Watch")
    }

    pub(in super::super) fn is_evaluation(&self) -> bool {
        self.path == EVALUATE_FUNCTION_PATH
    }

    /// The message with an unknown field, so that it has this size.
    pub(in super::super) fn message_of(&self, size: usize) -> Vec<u8> {
        let mut message = self.message.clone();
        let Some(more) = size.checked_sub(message.len()).filter(|&more| more > 8) else {
            message.truncate(size);
            return message;
        };
        // Field 1000, with bytes. A length of four bytes can have leading zeros.
        message.extend([0xc2, 0x3e]);
        let length = more - 6;
        message
            .extend((0..4).map(|part| (length >> (7 * part)) as u8 & 0x7f | if part < 3 { 0x80 } else { 0 }));
        message.resize(size, b'#');
        message
    }
}

fn message_for(path: &str) -> Vec<u8> {
    let image = || IMAGE.to_owned();
    match path {
        EVALUATE_FUNCTION_PATH => evaluation(INPUT.as_bytes()),
        "/porch_fn.v1.Shard/DescribeImage" => DescribeImageRequest { image: image() }.encode_to_vec(),
        "/porch_fn.v1.Shard/Prepare" => PrepareRequest { image: image(), tag: String::new() }.encode_to_vec(),
        "/porch_fn.v1.Shard/Announce" => {
            AnnounceRequest { token: "none".into(), address: "127.0.0.1".into() }.encode_to_vec()
        }
        // The other messages have no field that must be set.
        _ => Vec::new(),
    }
}

/// A message for `EvaluateFunction`.
pub(in super::super) fn evaluation(input: &[u8]) -> Vec<u8> {
    let input = bytes::Bytes::copy_from_slice(input);
    encode_request(Chunks::from(input), IMAGE, "").contiguous().to_vec()
}

// === impl Behind ===

impl Behind {
    pub(in super::super) async fn start() -> Self {
        let background = Background::new();
        let (signal, drain) = drain::channel();
        let port = background.runtime().spawn(serve_echo(0, drain)).await.unwrap();
        Self { address: SocketAddr::from(([127, 0, 0, 1], port)), background, _drain: signal }
    }
}

// === impl Target ===

impl Target {
    pub(in super::super) async fn start(kind: Kind) -> Self {
        Self::with(kind, &[]).await
    }

    /// Starts a server with more flags.
    pub(in super::super) async fn with(kind: Kind, more: &[&str]) -> Self {
        let behind = Behind::start().await;
        let echo = behind.address;
        Self::of(kind, &[(IMAGE, echo), (OTHER, echo)], &[echo], more, behind).await
    }

    /// Starts a router before these servers, or a runner with these servers as pods. The last one is
    /// that of the caller beside.
    pub(in super::super) async fn before(kind: Kind, servers: &[(&str, SocketAddr)], behind: Behind) -> Self {
        let addresses: Vec<_> = servers.iter().map(|server| server.1).collect();
        Self::of(kind, servers, &addresses, &["--drain-delay=0s"], behind).await
    }

    async fn of(
        kind: Kind,
        images: &[(&str, SocketAddr)],
        runners: &[SocketAddr],
        more: &[&str],
        behind: Behind,
    ) -> Self {
        let sandbox = Sandbox::new();
        let limit = format!("--max-request-body-size={LIMIT}");
        let (address, process) = match kind {
            Kind::Router => {
                let runners = runners_flag(runners.iter().copied());
                let router = sandbox.server("porch-fn-router", [&[&*runners, &limit], more].concat()).await;
                router.wait_runners_healthy().await;
                (router.address(), Process::Server(router))
            }
            Kind::Runner => {
                let mut args = pods_at(&sandbox, images);
                args.extend([&*limit].iter().chain(more).map(OsString::from));
                let runner = sandbox.runner(args).await;
                (runner.address(), Process::Server(runner))
            }
            Kind::Wrapper => {
                let args = [&[&*limit], more, &["--", "cat"]].concat();
                let wrapper = sandbox.server("wrapper-server", args).await;
                (wrapper.address(), Process::Server(wrapper))
            }
            Kind::Up => {
                let (address, child) = start_up(&sandbox).await;
                (address, Process::Up(child))
            }
        };
        // The first call starts a pod.
        let (other, _) = images[images.len() - 1];
        let client = Client::new(address);
        let answered = async || (client.call(other, INPUT).await.code == Code::Ok).then_some(());
        eventually("an answer", answered).await;
        let beside = Beside::start(&behind.background, address, other, behind.address);
        let limit = if kind == Kind::Up { DEFAULT_LIMIT } else { LIMIT };
        let mut target = Self { kind, address, limit, process, beside, idle: 0, behind, _sandbox: sandbox };
        target.beside.since(Instant::now()).await;
        target.idle = target.usage().resident;
        target
    }

    /// Returns what the caller beside has met since `began`, and the peak of memory in KiB. The error
    /// says which harm was done: a call beside failed, or the server holds too much.
    pub(super) async fn since(&self, began: Instant) -> Result<(Met, u64), String> {
        let met = self.beside.since(began).await;
        if let Some(failure) = met.failures.first() {
            return Err(format!("{} calls beside failed: {failure}", met.failures.len()));
        }
        let peak = self.usage().peak;
        if peak > self.idle + MORE_MEMORY {
            return Err(format!("{peak} KiB, and {} KiB when idle", self.idle));
        }
        Ok((met, peak))
    }

    /// The server behind it that only echoes.
    pub(in super::super) fn good_runner(&self) -> SocketAddr {
        self.behind.address
    }

    pub(in super::super) fn pid(&self) -> i32 {
        match &self.process {
            Process::Server(server) => server.pid(),
            Process::Up(child) => child.id().and_then(|id| id.try_into().ok()),
        }
        .expect("a running process")
    }

    pub(in super::super) fn usage(&self) -> Usage {
        Usage::of(self.pid())
    }

    /// One of our servers, not `porch-fn up`.
    pub(in super::super) fn server(&mut self) -> &mut Server {
        match &mut self.process {
            Process::Server(server) => server,
            Process::Up(_) => panic!("porch-fn up is no such server"),
        }
    }

    /// Sends SIGTERM, and returns how long the process took to end.
    pub(in super::super) async fn terminate(&mut self) -> Duration {
        let began = tokio::time::Instant::now();
        self.server().terminate().await;
        began.elapsed()
    }
}

/// A runner's flags for functions in pods that are servers of the test.
pub(in super::super) fn pods_at(sandbox: &Sandbox, functions: &[(&str, SocketAddr)]) -> Vec<OsString> {
    // The pod prints the address that its function names, and lives until its runner ends it.
    let wrapper = "for last; do :; done\necho listening on \"$last\"\nread line";
    let wrapper = sandbox.script("pod", wrapper);
    let programs = functions.iter().map(|(image, pod)| (*image, PathBuf::from(pod.to_string())));
    sandbox.local_programs(&wrapper, programs)
}

async fn start_up(sandbox: &Sandbox) -> (SocketAddr, Child) {
    let flags = sandbox.local_pods(&[(IMAGE, "exec cat"), (OTHER, "exec cat")]);
    let mut command = sandbox.command(binary("porch-fn"));
    command.args(["up", "--runners=2", "--port=0", "--admin-port=0"]);
    command.args(flags.iter().filter(|flag| flag.to_string_lossy().starts_with("--local-functions")));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(sandbox.path("up.log")).unwrap());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = loop {
        let line = timeout(PATIENCE, lines.next_line()).await.expect("a line in time").unwrap();
        let log = || fs::read_to_string(sandbox.path("up.log")).unwrap_or_default();
        let line = line.unwrap_or_else(|| panic!("up ended: {}", log()));
        if let Some(rest) = line.strip_prefix("Router   ") {
            break rest.split(' ').next().unwrap().parse().unwrap();
        }
    };
    // The process must be able to write the rest.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (address, child)
}
