//! What a sandbox contains. No I/O.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A sandbox to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sandbox {
    /// The folders with the image's files, lowest first. Not empty.
    pub layers: Vec<PathBuf>,
    /// The image's USER, by Docker's rules. Empty: `nobody`.
    pub user: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The whole environment, each `NAME=VALUE`.
    pub env: Vec<String>,
    /// The working directory. Empty: `/`. If the image does not have it, the sandbox does.
    pub folder: PathBuf,
    /// Whether the network is the machine's, without Unix sockets. Otherwise there is none, and no
    /// socket reaches another process of the machine.
    pub is_on_host_network: bool,
    /// Further files and folders.
    pub mounts: Vec<Mount>,
    /// Limits of all processes together.
    pub limits: Limits,
}

/// A file or folder in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// This file or folder of the machine. `None`: an empty folder in memory, as large as `/tmp`.
    pub source: Option<PathBuf>,
    /// The path in the sandbox.
    pub target: PathBuf,
    /// Whether the sandbox may write.
    pub is_writable: bool,
}

/// The limits of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all processes and of `/tmp`, in bytes. `None`: no limit.
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads.
    pub pids: u64,
    /// Processors. `None`: no limit.
    pub cpus: Option<f64>,
    /// Size of `/tmp`, in bytes.
    pub tmp_bytes: u64,
}

/// The folders that every sandbox has, also if the image does not.
pub(crate) const FOLDERS: [&str; 4] = ["dev", "proc", "sys", "tmp"];

/// Bytes of `/tmp` for each file that it may have. A file takes about 1 KiB of the kernel's memory,
/// which no limit counts where there is no cgroup.
const BYTES_PER_FILE: u64 = 8 << 10;
/// Smallest and largest `/tmp`, in bytes. For the kernel, 0 means no limit, and it rounds up.
const MIN_TMP: u64 = 64 << 10;
const MAX_TMP: u64 = 1 << 60;

// === impl Limits ===

impl Limits {
    /// Limits according to flags. For `memory` and `cpus`, 0 means no limit.
    pub fn of_flags(memory: u64, pids: u64, cpus: f64, tmp_bytes: u64) -> Self {
        Self {
            memory_bytes: Some(memory).filter(|bytes| *bytes > 0),
            pids,
            cpus: Some(cpus).filter(|cpus| *cpus > 0.0),
            tmp_bytes: tmp_bytes.clamp(MIN_TMP, MAX_TMP),
        }
    }

    /// Options of a tmpfs that the sandbox may write to.
    pub(crate) fn tmpfs_options(&self) -> String {
        let files = (self.tmp_bytes / BYTES_PER_FILE).max(64);
        format!("mode=1777,size={},nr_inodes={files}", self.tmp_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmp_is_never_without_a_limit() {
        let options = |bytes| Limits::of_flags(0, 10, 0.0, bytes).tmpfs_options();
        assert_eq!(options(512 << 20), "mode=1777,size=536870912,nr_inodes=65536");
        assert_eq!(options(0), "mode=1777,size=65536,nr_inodes=64");
        assert!(options(u64::MAX).contains("size=1152921504606846976,"));
    }
}
