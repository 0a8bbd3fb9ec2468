//! A host for one process: a network namespace with its own address in the cluster's network. A
//! test can block the host's traffic.

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::process::Sandbox;

/// The node's address, which `tests/cluster/inside` sets.
const NODE: &str = "10.250.0.1";

/// The last byte of the most recently used address. No address is used twice, so that late packets
/// of one test cannot reach another.
static USED: AtomicU8 = AtomicU8::new(0);

/// A network namespace, which ends when this value is dropped.
#[derive(Debug)]
pub struct Host {
    address: Ipv4Addr,
    /// A process that keeps the namespace alive.
    keeper: Child,
}

// === impl Host ===

impl Host {
    pub async fn start(sandbox: &Sandbox) -> Self {
        let number = USED.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(number < u8::MAX, "254 addresses are enough for a run of the tests");
        let address = Ipv4Addr::new(10, 250, 2, number);
        let mut keeper = sandbox.command("unshare");
        keeper.args(["--net", "sh", "-c", "echo made; exec sleep infinity"]);
        let mut keeper = keeper.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut made = String::new();
        let stdout = keeper.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut made).await.expect("readable output");
        assert_eq!(made, "made\n", "a network namespace needs root");

        let host = Self { address, keeper };
        // Each host has its own link to the node, without a bridge.
        let link = format!("r{}-{number}", std::process::id());
        run(
            sandbox,
            &["sh", "-c"],
            &format!(
                "set -e; ip link add {link} type veth peer name eth0 netns {}; ip link set {link} up; \
                 ip route replace {address} dev {link}",
                host.pid()
            ),
        )
        .await;
        host.inside(
            sandbox,
            &format!(
                "set -e; ip link set lo up; ip address add {address}/32 dev eth0; ip link set eth0 up; \
                 ip route add {NODE} dev eth0; ip route add default via {NODE}"
            ),
        )
        .await;
        host
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Changes a command so that it runs on this host.
    pub fn enter(&self, sandbox: &Sandbox, command: &mut Command) {
        let inner = command.as_std();
        let mut outer = sandbox.command("nsenter");
        outer.arg(self.flag()).arg("--").arg(inner.get_program()).args(inner.get_args());
        *command = outer;
    }

    /// Drops all packets from and to this TCP port.
    pub async fn cut_port(&self, sandbox: &Sandbox, port: u16) {
        let rules = format!(
            "table inet cut {{ chain input {{ type filter hook input priority 0; tcp dport {port} drop; }}; \
             chain output {{ type filter hook output priority 0; tcp sport {port} drop; }}; }}"
        );
        self.inside(sandbox, &format!("nft '{rules}'")).await;
    }

    /// Lets the packets through again that [`cut_port`](Self::cut_port) drops.
    pub async fn join(&self, sandbox: &Sandbox) {
        self.inside(sandbox, "nft delete table inet cut").await;
    }

    fn pid(&self) -> u32 {
        self.keeper.id().expect("it was not waited for")
    }

    fn flag(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.pid())
    }

    async fn inside(&self, sandbox: &Sandbox, script: &str) {
        run(sandbox, &["nsenter", &self.flag(), "sh", "-c"], script).await;
    }
}

async fn run(sandbox: &Sandbox, shell: &[&str], script: &str) {
    let args = shell[1..].iter().copied().chain([script]);
    let ended = sandbox.run(shell[0], args, b"").await;
    assert!(ended.status.success(), "{script}: {}", String::from_utf8_lossy(&ended.stderr));
}
