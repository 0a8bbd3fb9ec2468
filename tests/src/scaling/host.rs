//! A machine for one process: a network namespace with an address of its own, joined to the
//! cluster's network, which can be cut off from everything.

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::process::Sandbox;

/// The node, as `tests/cluster/inside` sets it up.
const NODE: &str = "10.250.0.1";

/// Addresses are not used twice in one run of the tests: what is late must not hit somebody else.
static USED: AtomicU8 = AtomicU8::new(0);

/// A network namespace. It goes with the sandbox that it was made in.
#[derive(Debug)]
pub struct Host {
    address: Ipv4Addr,
    /// A process that does nothing but keep it.
    keeper: Child,
}

// === impl Host ===

impl Host {
    /// A new one, in the network of the cluster.
    pub async fn start(sandbox: &Sandbox) -> Self {
        let number = USED.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(number < u8::MAX, "254 addresses are enough for a run of the tests");
        let address = Ipv4Addr::new(10, 250, 2, number);
        let mut keeper = sandbox.command("unshare");
        keeper.args(["--net", "sh", "-c", "echo made; exec sleep infinity"]);
        let mut keeper = keeper.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut made = String::new();
        let stdout = keeper.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut made).await.expect("it can be read");
        assert_eq!(made, "made\n", "a network namespace needs root");

        let host = Self { address, keeper };
        // No bridge: each is a machine at the end of its own wire.
        let wire = format!("r{}-{number}", std::process::id());
        run(
            sandbox,
            &["sh", "-c"],
            &format!(
                "set -e; ip link add {wire} type veth peer name eth0 netns {}; ip link set {wire} up; \
                 ip route replace {address} dev {wire}",
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

    /// Lets a command run on it.
    pub fn enter(&self, sandbox: &Sandbox, command: &mut Command) {
        let inner = command.as_std();
        let mut outer = sandbox.command("nsenter");
        outer.arg(self.flag()).arg("--").arg(inner.get_program()).args(inner.get_args());
        *command = outer;
    }

    /// Drops all packets from and to one of its TCP ports.
    pub async fn cut_port(&self, sandbox: &Sandbox, port: u16) {
        let rules = format!(
            "table inet cut {{ chain input {{ type filter hook input priority 0; tcp dport {port} drop; }}; \
             chain output {{ type filter hook output priority 0; tcp sport {port} drop; }}; }}"
        );
        self.inside(sandbox, &format!("nft '{rules}'")).await;
    }

    /// Undoes either.
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
