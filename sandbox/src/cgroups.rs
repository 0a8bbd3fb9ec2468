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

/// The folder of one sandbox's cgroup, by controller. Dropping it removes it, after its processes have ended.
#[derive(Debug, Default)]
pub(crate) struct Cgroup(Vec<(&'static str, PathBuf)>);

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
        for (controller, parent) in parents() {
            remove_unused(&parent);
            let folder = parent.join(&name);
            match set_up(&folder, &settings(controller, limits)) {
                Ok(()) => parts.push((controller, folder)),
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
        self.0.retain(|(controller, folder)| {
            let moved = fs::write(folder.join("cgroup.procs"), process.to_string());
            if let Err(error) = &moved {
                tracing::debug!(controller, %error, "no cgroup for a sandbox");
                let _ = fs::remove_dir(folder);
            }
            moved.is_ok()
        });
    }

    /// The controllers that enforce their limits.
    pub(crate) fn controllers(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(controller, _)| *controller)
    }

    /// The limits that the kernel had to enforce.
    pub(crate) fn exceeded(&self) -> Vec<Exceeded> {
        let has_counted = |file: &&str, name| {
            let count = |folder: &PathBuf| counter(&read(folder.join(file)), name);
            self.0.iter().any(|(_, folder)| count(folder).is_some_and(|count| count > 0))
        };
        // Each version has one of the files.
        let memory = ["memory.events", "memory.oom_control"].iter().any(|file| has_counted(file, "oom_kill"));
        let pids = has_counted(&"pids.events", "max");
        memory.then_some(Exceeded::Memory).into_iter().chain(pids.then_some(Exceeded::Pids)).collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for (_, folder) in &self.0 {
            // A killed process is in it for some moments more. The next sandbox removes it then.
            let _ = fs::remove_dir(folder);
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
    let Some(own) = unified(&own_folders()) else { return };
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

/// The folder below which a sandbox's cgroup belongs, for each controller that can limit it.
fn parents() -> Vec<(&'static str, PathBuf)> {
    let folders = own_folders();
    let unified = unified(&folders);
    let enabled = unified.as_ref().map(|own| read(own.join("cgroup.subtree_control"))).unwrap_or_default();
    let parent = |controller| {
        let is_enabled = enabled.split_whitespace().any(|name| name == controller);
        let version_2 = unified.as_ref().filter(|_| is_enabled);
        Some((controller, folders.get(controller).or(version_2)?.clone()))
    };
    CONTROLLERS.into_iter().filter_map(parent).collect()
}

/// The folder of a process's version 2 cgroup. The one that [`take_own`] moved it to stands for its
/// parent.
fn unified(folders: &HashMap<String, PathBuf>) -> Option<PathBuf> {
    let own = folders.get("")?;
    Some(if own.file_name().is_some_and(|name| name == OWN) { own.parent()? } else { own }.to_owned())
}

/// The folders of this process's cgroups.
fn own_folders() -> HashMap<String, PathBuf> {
    folders(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

/// The folders of a process's cgroups, by controller. The empty name is version 2.
fn folders(cgroups: &str, mountinfo: &str) -> HashMap<String, PathBuf> {
    let mut mounts: HashMap<&str, &str> = HashMap::new();
    for line in mountinfo.lines() {
        // `36 35 98:0 / /sys/fs/cgroup/cpu rw master:1 - cgroup cgroup rw,cpu`
        let Some((front, back)) = line.split_once(" - ") else { continue };
        let Some(place) = front.split(' ').nth(4) else { continue };
        let back: Vec<_> = back.split(' ').collect();
        match *back {
            ["cgroup2", ..] => mounts.extend([("", place)]),
            ["cgroup", _, options] => mounts.extend(options.split(',').map(|name| (name, place))),
            _ => {}
        }
    }
    // `4:cpu,cpuacct:/job/1`
    let lines = cgroups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let names = lines.flat_map(|(names, path)| names.split(',').map(move |name| (name, path)));
    let folder = |(name, path): (&str, &str)| {
        let below = path.trim_start_matches('/');
        Some((name.to_owned(), Path::new(mounts.get(name)?).join(below)))
    };
    names.filter_map(folder).collect()
}

/// Files and their contents. Each version has its own files.
fn settings(controller: &str, limits: &Limits) -> Vec<(&'static str, String)> {
    match (controller, limits.memory_bytes, limits.cpus) {
        ("memory", Some(bytes), _) => vec![
            ("memory.limit_in_bytes", bytes.to_string()),
            ("memory.max", bytes.to_string()),
            // Without swap, a function that needs too much ends at once.
            ("memory.swap.max", "0".to_owned()),
        ],
        ("cpu", _, Some(cpus)) => {
            let quota = (cpus * PERIOD as f64) as u64;
            vec![("cpu.cfs_quota_us", quota.to_string()), ("cpu.max", format!("{quota} {PERIOD}"))]
        }
        ("pids", ..) => vec![("pids.max", limits.pids.to_string())],
        _ => Vec::new(),
    }
}

fn set_up(folder: &Path, settings: &[(&str, String)]) -> io::Result<()> {
    // With version 2, the folder is the same for all controllers.
    fs::create_dir_all(folder)?;
    let mut is_set = settings.is_empty();
    for (file, content) in settings {
        let at = folder.join(file);
        if at.exists() {
            fs::write(at, content)?;
            is_set = true;
        }
    }
    if is_set { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_controller_has_a_folder() {
        let cgroups = "8:pids:/\n4:memory:/job/1\n1:cpu,cpuacct:/\n0::/user\n";
        let mountinfo = "30 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                         31 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                         32 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = folders(cgroups, mountinfo);
        assert_eq!(found["memory"], Path::new("/sys/fs/cgroup/memory/job/1"));
        assert_eq!(found["cpu"], Path::new("/sys/fs/cgroup/cpu,cpuacct/"));
        assert!(!found.contains_key("pids"), "pids is not mounted");
        assert_eq!(unified(&found).as_deref(), Some(Path::new("/sys/fs/cgroup/unified/user")));
        let moved = folders("0::/user/porch-fn\n", mountinfo);
        assert_eq!(unified(&moved).as_deref(), Some(Path::new("/sys/fs/cgroup/unified/user")));
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
    fn limits_become_the_files_that_the_cgroup_has() {
        let limits = Limits::of_flags(2 << 30, 1024, 0.5, 512 << 20);
        let parent = tempfile::tempdir().unwrap();
        let set = |controller: &str, limits: &Limits, files: &[&str]| {
            let folder = parent.path().join(format!("{controller}-{}", files.concat()));
            fs::create_dir(&folder).unwrap();
            for file in files {
                fs::write(folder.join(file), "").unwrap();
            }
            let done = set_up(&folder, &settings(controller, limits)).map_err(|error| error.kind());
            done.map(|()| files.iter().map(|file| read(folder.join(file))).collect::<Vec<_>>())
        };
        let contents = |texts: &[&str]| Ok(texts.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(set("cpu", &limits, &["cpu.cfs_quota_us"]), contents(&["50000"]));
        assert_eq!(set("cpu", &limits, &["cpu.max"]), contents(&["50000 100000"]));
        assert_eq!(set("memory", &limits, &["memory.limit_in_bytes"]), contents(&["2147483648"]));
        assert_eq!(
            set("memory", &limits, &["memory.max", "memory.swap.max"]),
            contents(&["2147483648", "0"])
        );
        // A kernel without swap.
        assert_eq!(set("memory", &limits, &["memory.max"]), contents(&["2147483648"]));
        assert_eq!(set("pids", &limits, &[]), Err(io::ErrorKind::NotFound));
        assert_eq!(set("cpu", &Limits { cpus: None, ..limits }, &[]), Ok(Vec::new()));
    }
}
