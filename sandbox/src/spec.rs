//! What a sandbox contains, and the OCI runtime specification for it. No I/O.

use std::path::PathBuf;

use libcontainer::oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::SandboxError;

/// A sandbox to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sandbox {
    /// The folders with the image's files, lowest layer first. Empty: they do not stack.
    pub layers: Vec<PathBuf>,
    /// The image's USER, by Docker's rules. Empty: `nobody`.
    pub user: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The whole environment, each `NAME=VALUE`.
    pub env: Vec<String>,
    /// The working directory. Empty: `/`.
    pub folder: String,
    /// The network.
    pub network: Network,
    /// Further files and folders of the machine.
    pub mounts: Vec<Mount>,
    /// Limits of all processes together.
    pub limits: Limits,
}

/// The network of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// None, and no socket reaches another process of the machine.
    #[default]
    None,
    /// The machine's.
    Host,
}

/// A file or folder in the sandbox that is not the image's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where it comes from.
    pub source: Source,
    /// The path in the sandbox.
    pub target: PathBuf,
    /// Whether the sandbox may write.
    pub is_writable: bool,
}

/// Where the content of a mount comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The path of a file or folder of the machine.
    Path(PathBuf),
    /// An empty folder in memory.
    Tmpfs,
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

/// Paths of /proc that say or change something about the machine, as in Docker.
const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// A cgroup that does not exist. The process is in the sandbox's cgroup already. If the start fails,
/// libcontainer kills all processes of the cgroup that it was told to use, so that must be none.
const NO_CGROUP: &str = "porch-fn-no-cgroup";

/// The folders that every sandbox has, also if the image does not.
pub const FOLDERS: [&str; 4] = ["dev", "proc", "sys", "tmp"];

// === impl Limits ===

impl Limits {
    /// Limits according to flags. For `memory` and `cpus`, 0 means no limit.
    pub fn of_flags(memory: u64, pids: u64, cpus: f64, tmp_bytes: u64) -> Self {
        Self {
            memory_bytes: Some(memory).filter(|bytes| *bytes > 0),
            pids,
            cpus: Some(cpus).filter(|cpus| *cpus > 0.0),
            tmp_bytes,
        }
    }
}

// === impl Sandbox ===

impl Sandbox {
    /// The specification for libcontainer. `root` is the folder with the image's files, and
    /// `sources` are the places where the sources of the mounts are.
    ///
    /// The user here is the root of the first user namespace: it has only the rights of an
    /// unprivileged user. `init.rs` changes to the image's user.
    pub(crate) fn runtime_spec(&self, root: &str, sources: &[String]) -> Result<Spec, SandboxError> {
        let size = format!("size={}", self.limits.tmp_bytes);
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "noexec", "mode=755", "size=64k"]}),
            json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777", size]}),
        ];
        mounts.extend(self.mounts.iter().zip(sources).map(|(mount, source)| {
            let access = if mount.is_writable { "rw" } else { "ro" };
            let options = ["rbind", "nosuid", "nodev", access];
            json!({"destination": mount.target, "type": "bind", "source": source, "options": options})
        }));
        let mut namespaces: Vec<Value> =
            ["pid", "mount", "ipc", "uts"].map(|kind| json!({"type": kind})).into();
        if self.network == Network::None {
            namespaces.push(json!({"type": "network"}));
        }
        let spec = json!({
            "ociVersion": "1.0.2",
            "root": {"path": root, "readonly": true},
            "hostname": "function",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": self.command,
                "env": self.env,
                "cwd": "/",
                "noNewPrivileges": true,
            },
            "mounts": mounts,
            "linux": {
                "cgroupsPath": NO_CGROUP,
                "namespaces": namespaces,
                "maskedPaths": MASKED,
                "readonlyPaths": READ_ONLY,
            },
        });
        serde_json::from_value(spec).map_err(|error| SandboxError::Invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_has_no_network_and_writes_only_to_tmp() {
        let sandbox = Sandbox {
            layers: vec!["/store/a".into()],
            user: String::new(),
            command: vec!["f".to_owned()],
            env: vec!["A=1".to_owned()],
            folder: "/work".to_owned(),
            network: Network::None,
            mounts: vec![Mount {
                source: Source::Path("/data".into()),
                target: "/in".into(),
                is_writable: false,
            }],
            limits: Limits::of_flags(0, 10, 0.0, 1 << 20),
        };
        let spec = |sandbox: &Sandbox| {
            serde_json::to_value(sandbox.runtime_spec("/root", &["/m/0".to_owned()]).unwrap())
        };
        let value = spec(&sandbox).unwrap();
        assert_eq!(value["root"], json!({"path": "/root", "readonly": true}));
        assert_eq!(value["process"]["noNewPrivileges"], true);
        let kinds = |value: &Value| value["linux"]["namespaces"].as_array().unwrap().len();
        assert_eq!(kinds(&value), 5);
        let last = value["mounts"].as_array().unwrap().last().unwrap().clone();
        assert_eq!((&last["source"], &last["destination"]), (&json!("/m/0"), &json!("/in")));
        assert!(last["options"].as_array().unwrap().contains(&json!("ro")), "{last}");
        let host = Sandbox { network: Network::Host, ..sandbox };
        assert_eq!(kinds(&spec(&host).unwrap()), 4);
    }
}
