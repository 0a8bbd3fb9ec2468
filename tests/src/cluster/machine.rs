//! The test cluster's processes and files on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rustix::process::{Pid, Signal, kill_process};

use super::variable;

/// A cluster that `tests/cluster/cluster` has started.
#[derive(Debug, Clone)]
pub struct Machine {
    name: String,
    directory: PathBuf,
}

// === impl Machine ===

impl Machine {
    /// Reads the environment that `tests/cluster/cluster exec` sets.
    pub(super) fn of_environment() -> Self {
        Self { name: variable("PORCH_FN_TEST_CLUSTER"), directory: variable("CLUSTER_DIR").into() }
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("admin.conf")
    }

    /// Whether the cluster has a node. Without one, no pod runs.
    pub(super) fn has_node(&self) -> bool {
        self.directory.join("pids/kubelet").exists()
    }

    /// The folder of the cluster's state. Its `log/` has a file per component.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Sends a signal to a component such as `kube-apiserver` or `kubelet`.
    pub async fn signal(&self, component: &str, signal: &str) {
        self.run("signal", &[component, signal]).await;
    }

    /// Runs a command in the node's namespaces, such as `nft` or
    /// `ctr -a /run/containerd/containerd.sock`.
    pub async fn node(&self, command: &[&str]) -> Output {
        self.run("node", command).await
    }

    /// Packs a folder as an image's root and pushes it under a name such as `echo:v1`.
    pub async fn push(&self, name: &str, folder: &Path, entrypoint: &str) {
        self.run("image", &[name, folder.to_str().expect("a path in UTF-8"), entrypoint]).await;
    }

    /// Kills the first process of each container of a pod except `pause`, like the kernel's OOM
    /// killer. Returns the number of killed processes. The API server is not involved.
    pub fn kill_processes(&self, pod: &Pod) -> usize {
        let group = format!("/pod{}", pod.uid().expect("a pod that exists has a uid"));
        let kill = |entry: fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
            fs::read_to_string(entry.path().join("cgroup")).ok().filter(|groups| groups.contains(&group))?;
            // Skips all but a container's first process. When that process ends, the kernel kills
            // the others. If the others ended earlier, the first process could report their end.
            fs::read_to_string(entry.path().join("status")).ok().filter(|status| is_first(status))?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let is_target = !command.is_empty() && !command.starts_with(b"/pause");
            (is_target && kill_process(pid, Signal::KILL).is_ok()).then_some(())
        };
        fs::read_dir("/proc").expect("there is /proc").filter_map(|entry| kill(entry.ok()?)).count()
    }

    /// Runs a subcommand of `tests/cluster/cluster` in a `Drop`. Blocks, because the test's runtime
    /// may be ending. Prints a failure instead of panicking, because the test may be panicking.
    pub fn run_in_drop(&self, subcommand: &str, args: &[&str]) {
        if !self.script(subcommand, args).status().is_ok_and(|status| status.success()) {
            eprintln!("tests/cluster/cluster {subcommand} {args:?} failed: the cluster stays broken");
        }
    }

    async fn run(&self, subcommand: &str, args: &[&str]) -> Output {
        let mut command = tokio::process::Command::from(self.script(subcommand, args));
        let ended = command.kill_on_drop(true).output().await.expect("the script runs");
        assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
        ended
    }

    fn script(&self, subcommand: &str, args: &[&str]) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/cluster"));
        let clusters = self.directory.parent().expect("the cluster's folder is in CLUSTER_HOME");
        command.arg(subcommand).arg(&self.name).args(args).env("CLUSTER_HOME", clusters);
        command
    }
}

/// Whether a `/proc/PID/status` belongs to the first process of a container.
fn is_first(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.and_then(|numbers| numbers.split_whitespace().next_back()) == Some("1")
}
