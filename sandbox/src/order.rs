//! What the caller of a sandbox and the sandbox's processes tell each other.

use std::io::Write as _;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use crate::SandboxError;
use crate::limits::Rlimits;
use crate::spec::Sandbox;
use crate::user::User;

/// First argument of the process that builds a sandbox, and of the sandbox's first process.
pub(crate) const BUILD: &str = "__sandbox";
pub(crate) const FIRST: &str = "__sandbox-first";
/// Asks the process that builds the sandbox to send SIGTERM to the first process.
pub(crate) const TERMINATE: u8 = b't';

/// What the processes of a sandbox need to know.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) sandbox: Sandbox,
    /// The process that builds the sandbox gets them later.
    pub(crate) rlimits: Rlimits,
    /// The arguments of the program's own server, if the sandbox runs that.
    pub(crate) server: Option<Vec<String>>,
    /// The image's user. The process that builds the sandbox finds it.
    pub(crate) user: User,
}

/// What the processes of a sandbox report, one line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The process that builds the sandbox waits until it is in the cgroup, and root in its user
    /// namespace. It gets [`Order::rlimits`] then.
    Waits,
    /// The command runs, or the server is about to.
    Started,
    /// There is no sandbox.
    Failed { text: String, code: u8, is_refused: bool },
    /// The command failed, and its `/tmp` is full.
    TmpIsFull,
}

// === impl Report ===

impl Report {
    pub(crate) fn failed(error: &SandboxError) -> Self {
        Self::Failed { text: error.to_string(), code: error.exit_code(), is_refused: error.is_refused() }
    }

    /// Sends the report to the caller, who may have ended.
    pub(crate) fn send(&self, mut control: &UnixStream) {
        let line = serde_json::to_string(self).unwrap_or_default() + "\n";
        let _ = control.write_all(line.as_bytes());
    }
}
