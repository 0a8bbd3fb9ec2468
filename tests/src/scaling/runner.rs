//! One runner, and what it costs.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::{Host, PORT};
use crate::process::Server;

/// Whether a runner takes part, as its `EndpointSlice` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// It is there but not ready: down, or starting.
    NotReady,
    /// It takes part.
    Ready,
    /// It was told to end.
    Terminating,
}

/// A runner on a machine of its own.
#[derive(Debug)]
pub struct Runner {
    /// The process.
    pub server: Server,
    /// Its machine.
    pub host: Host,
    /// Whether it takes part. What was changed counts after [`Tier::publish`](super::Tier::publish).
    pub listed: Listed,
    pub(super) flags: Vec<String>,
}

// === impl Runner ===

impl Runner {
    /// Its name on the ring.
    pub fn name(&self) -> String {
        SocketAddr::new(IpAddr::V4(self.host.address()), PORT).to_string()
    }

    /// Its entry in the `EndpointSlice`.
    pub(super) fn endpoint(&self) -> Value {
        let (ready, serving, terminating) = match self.listed {
            Listed::NotReady => (false, false, false),
            Listed::Ready => (true, true, false),
            Listed::Terminating => (false, true, true),
        };
        let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
        json!({"addresses": [self.host.address()], "conditions": conditions})
    }
}

/// The resident memory of a server in bytes.
///
/// # Panics
/// When it has ended.
pub fn resident(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid().expect("it runs")));
    let status = status.expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}
