//! The processes and files of a cluster that `tests/cluster/cluster` has started.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use super::variable;

/// A cluster of the tests' own.
#[derive(Debug, Clone)]
pub struct Own {
    name: String,
    directory: PathBuf,
}

// === impl Own ===

impl Own {
    /// The cluster in whose network this process is.
    pub(super) fn of_environment() -> Self {
        Self { name: variable("PORCH_FN_TEST_CLUSTER"), directory: variable("CLUSTER_DIR").into() }
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("admin.conf")
    }

    /// Whether pods run, on a real node.
    pub(super) fn has_node(&self) -> bool {
        self.directory.join("pids/kubelet").exists()
    }

    /// Its state: `log/` has a file per component.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Sends a signal to one of its processes, such as `kube-apiserver` or `kubelet`.
    pub async fn signal(&self, component: &str, signal: &str) {
        self.script(["signal", &self.name, component, signal]).await;
    }

    /// Runs a command in the node's namespaces, such as `nft` or
    /// `ctr -a /run/containerd/containerd.sock`.
    pub async fn node(&self, command: &[&str]) -> Output {
        self.script(["node", &self.name].iter().chain(command)).await
    }

    /// Packs a folder as an image's root and pushes it under a name such as `echo:v1`.
    pub async fn push(&self, name: &str, folder: &Path, entrypoint: &str) {
        let folder = folder.to_str().expect("a path in UTF-8");
        self.script(["image", &self.name, name, folder, entrypoint]).await;
    }

    /// Kills the first process of each container of a pod but its `pause`, as the kernel does when
    /// memory is short, and says how many there were. The API server is not asked.
    pub fn kill_processes(&self, pod: &Pod) -> usize {
        let group = format!("/pod{}", pod.uid().expect("a pod that exists has a uid"));
        let kill = |entry: fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
            fs::read_to_string(entry.path().join("cgroup")).ok().filter(|groups| groups.contains(&group))?;
            // The kernel kills the others with it. Before it, they would leave it the time to
            // report their ends.
            fs::read_to_string(entry.path().join("status")).ok().filter(|status| is_first(status))?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let function = !command.is_empty() && !command.starts_with(b"/pause");
            (function && kill_process(pid, Signal::KILL).is_ok()).then_some(())
        };
        fs::read_dir("/proc").expect("there is /proc").filter_map(|entry| kill(entry.ok()?)).count()
    }

    async fn script<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/cluster");
        let home = self.directory.parent().expect("it lies in the clusters' home");
        let mut command = Command::new(script);
        command.args(args).env("CLUSTER_HOME", home).kill_on_drop(true);
        let ended = command.output().await.expect("the script runs");
        assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
        ended
    }
}

/// Whether a `/proc/PID/status` is that of the first process of its namespace, which is a
/// container's.
fn is_first(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.and_then(|numbers| numbers.split_whitespace().next_back()) == Some("1")
}
