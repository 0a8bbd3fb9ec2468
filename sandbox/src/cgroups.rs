//! One cgroup for each sandbox, of version 1 or 2, below the cgroup of this process. So the limits
//! of this process, such as those of a CI job or a pod, hold for its sandboxes, too. With version 1,
//! a process has one path for each controller.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::spec::Limits;

/// Begins the name of a sandbox's cgroup. The process ID of its creator follows.
const PREFIX: &str = "porch-fn-sandbox-";
/// The cgroup to which the processes of a version 2 cgroup move, so that it can have others.
const OWN: &str = "porch-fn";
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// The period of the limit of CPU, in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;

/// A file of a cgroup and its content.
type Setting = (&'static str, String);

/// The cgroup of one sandbox, by controller. Dropping it removes it, after its processes have ended.
#[derive(Debug, Default)]
pub(crate) struct Cgroup(Vec<Part>);

#[derive(Debug)]
struct Part {
    controller: &'static str,
    folder: PathBuf,
}

/// A limit that ended a process of a sandbox, or refused one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// The memory of all processes together: the kernel ended one.
    Memory,
    /// The number of processes: the kernel refused one.
    Pids,
    /// The size of `/tmp`: it is full.
    Tmp,
}

// === impl Cgroup ===

impl Cgroup {
    /// Creates a cgroup with these limits, as far as this process may. Removes those of callers that
    /// were killed.
    pub(crate) fn create(limits: &Limits) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut parts = Vec::new();
        for (controller, (parent, version)) in parents() {
            remove_unused(&parent);
            let folder = parent.join(&name);
            match set_up(&folder, &settings(controller, version, limits)) {
                Ok(()) => parts.push(Part { controller, folder }),
                Err(error) => {
                    tracing::debug!(controller, folder = %folder.display(), %error, "no cgroup for a sandbox");
                    let _ = fs::remove_dir(folder);
                }
            }
        }
        Self(parts)
    }

    /// Moves a process into the cgroup. Controllers that refuse it are left out.
    pub(crate) fn add(&mut self, process: u32) {
        self.0.retain(|part| {
            let moved = fs::write(part.folder.join("cgroup.procs"), process.to_string());
            if let Err(error) = &moved {
                tracing::debug!(controller = part.controller, %error, "no cgroup for a sandbox");
                let _ = fs::remove_dir(&part.folder);
            }
            moved.is_ok()
        });
    }

    /// Whether this controller enforces its limit.
    pub(crate) fn has(&self, controller: &str) -> bool {
        self.0.iter().any(|part| part.controller == controller)
    }

    /// The limits that the kernel had to enforce.
    pub(crate) fn exceeded(&self) -> Vec<Exceeded> {
        let count = |controller, files: &[&str], name| {
            let mut parts = self.0.iter().filter(|part| part.controller == controller);
            parts.any(|part| {
                files.iter().any(|file| counter(&read(part.folder.join(file)), name).is_some_and(|it| it > 0))
            })
        };
        let memory = count("memory", &["memory.events", "memory.oom_control"], "oom_kill");
        let pids = count("pids", &["pids.events"], "max");
        [(memory, Exceeded::Memory), (pids, Exceeded::Pids)]
            .into_iter()
            .filter_map(|(is, limit)| is.then_some(limit))
            .collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for part in &self.0 {
            // A killed process is in it for some moments more. The next sandbox removes it then.
            let _ = fs::remove_dir(&part.folder);
        }
    }
}

/// The number behind this name in a file of a cgroup.
fn counter(file: &str, name: &str) -> Option<u64> {
    file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn remove_unused(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let caller = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if caller.is_some_and(|caller| !Path::new("/proc").join(caller).exists()) {
            // The kernel keeps a cgroup that has processes.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Makes room for the cgroups of sandboxes, where this process's version 2 cgroup is delegated to
/// it: a cgroup that has processes cannot have cgroups with limits, so they move to a cgroup below.
/// Does nothing elsewhere.
pub fn take_own() {
    let Some(own) = own_unified() else { return };
    let enable = || fs::write(own.join("cgroup.subtree_control"), "+cpu +memory +pids");
    if enable().is_ok() {
        return;
    }
    let below = own.join(OWN);
    let move_all = || -> io::Result<()> {
        fs::create_dir_all(&below)?;
        for process in fs::read_to_string(own.join("cgroup.procs"))?.lines() {
            fs::write(below.join("cgroup.procs"), process)?;
        }
        enable()
    };
    if let Err(error) = move_all() {
        tracing::debug!(%error, "this process's cgroup is not delegated to it");
    }
}

/// The folder of this process's version 2 cgroup. The one that [`take_own`] moved it to stands for
/// its parent.
fn own_unified() -> Option<PathBuf> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = mounts(&fs::read_to_string("/proc/self/mountinfo").ok()?).remove("")?;
    let own = below(&root, path);
    Some(if own.file_name().is_some_and(|name| name == OWN) { own.parent()?.to_owned() } else { own })
}

/// The folder below which a sandbox's cgroup belongs, and its version, by controller.
fn parents() -> HashMap<&'static str, (PathBuf, u8)> {
    let mut parents = version_1(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
    if let Some(own) = own_unified() {
        let enabled = fs::read_to_string(own.join("cgroup.subtree_control")).unwrap_or_default();
        for controller in CONTROLLERS {
            if enabled.split_whitespace().any(|name| name == controller) {
                parents.entry(controller).or_insert_with(|| (own.clone(), 2));
            }
        }
    }
    parents
}

/// The version 1 cgroups of a process.
fn version_1(cgroups: &str, mountinfo: &str) -> HashMap<&'static str, (PathBuf, u8)> {
    let mounts = mounts(mountinfo);
    let mut found = HashMap::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        for controller in CONTROLLERS {
            if controllers.split(',').any(|name| name == controller)
                && let Some(root) = mounts.get(controller)
            {
                found.insert(controller, (below(root, path), 1));
            }
        }
    }
    found
}

/// Where each controller of version 1 is mounted. The empty name is version 2.
fn mounts(mountinfo: &str) -> HashMap<&str, PathBuf> {
    let mut mounts = HashMap::new();
    for line in mountinfo.lines() {
        // `36 35 98:0 / /sys/fs/cgroup/cpu rw master:1 - cgroup cgroup rw,cpu`
        let Some((front, back)) = line.split_once(" - ") else { continue };
        let Some(place) = front.split(' ').nth(4) else { continue };
        let mut back = back.split(' ');
        match (back.next(), back.nth(1)) {
            (Some("cgroup2"), _) => {
                mounts.insert("", place.into());
            }
            (Some("cgroup"), Some(options)) => {
                mounts.extend(options.split(',').map(|controller| (controller, place.into())));
            }
            _ => {}
        }
    }
    mounts
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn settings(controller: &str, version: u8, limits: &Limits) -> Vec<Setting> {
    let quota = limits.cpus.map(|cpus| (cpus * PERIOD as f64) as u64);
    let memory = limits.memory_bytes.map(|bytes| bytes.to_string());
    match (controller, version) {
        ("memory", 1) => memory.into_iter().map(|bytes| ("memory.limit_in_bytes", bytes)).collect(),
        // Without swap, a function that needs too much ends at once.
        ("memory", _) => memory
            .into_iter()
            .flat_map(|bytes| [("memory.max", bytes), ("memory.swap.max", "0".to_owned())])
            .collect(),
        ("pids", _) => vec![("pids.max", limits.pids.to_string())],
        ("cpu", 1) => quota.map(|quota| ("cpu.cfs_quota_us", quota.to_string())).into_iter().collect(),
        ("cpu", _) => quota.map(|quota| ("cpu.max", format!("{quota} {PERIOD}"))).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn set_up(folder: &Path, settings: &[Setting]) -> io::Result<()> {
    match fs::create_dir(folder) {
        // With version 2, the folder is the same for all controllers.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    for (file, content) in settings {
        match fs::write(folder.join(file), content) {
            // A kernel without swap has no such file.
            Err(error) if error.kind() == io::ErrorKind::NotFound && file.contains("swap") => {}
            written => written?,
        }
    }
    Ok(())
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_has_a_place_for_each_controller() {
        let cgroups = "8:pids:/\n4:memory:/job/1\n1:cpu,cpuacct:/\n0::/user\n";
        let mountinfo = "30 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                         31 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                         32 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = version_1(cgroups, mountinfo);
        let place = |path: &str| (PathBuf::from(path), 1);
        assert_eq!(found["memory"], place("/sys/fs/cgroup/memory/job/1"));
        assert_eq!(found["cpu"], place("/sys/fs/cgroup/cpu,cpuacct/"));
        assert!(!found.contains_key("pids"), "pids is not mounted");
        assert_eq!(mounts(mountinfo)[""], Path::new("/sys/fs/cgroup/unified"));
    }

    /// Recorded on a machine with version 2, and on one with version 1.
    #[test]
    fn the_kernel_counts_what_it_ended() {
        let events = "low 0\nhigh 0\nmax 31\noom 1\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(counter(events, "oom_kill"), Some(2));
        assert_eq!(counter("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "oom_kill"), Some(0));
        assert_eq!(counter("max 7\n", "max"), Some(7));
        assert_eq!(counter("", "max"), None);
    }

    #[test]
    fn limits_become_files() {
        let limits = Limits::of_flags(2 << 30, 1024, 0.5, 512 << 20);
        assert_eq!(settings("cpu", 1, &limits), [("cpu.cfs_quota_us", "50000".to_owned())]);
        assert_eq!(settings("cpu", 2, &limits), [("cpu.max", "50000 100000".to_owned())]);
        assert_eq!(settings("memory", 1, &limits), [("memory.limit_in_bytes", (2_u64 << 30).to_string())]);
        assert_eq!(settings("memory", 2, &limits).len(), 2);
        assert!(settings("cpu", 2, &Limits { cpus: None, ..limits }).is_empty());
    }
}
