//! Limits where there is no cgroup: rlimits of the sandbox's first process, which limit less.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::cgroups::Cgroup;
use crate::spec::Limits;

/// The limits that no cgroup enforces.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Rlimits {
    /// Memory of each process, in bytes.
    pub(crate) data: Option<u64>,
    pids: Option<u64>,
}

// === impl Rlimits ===

impl Rlimits {
    pub(crate) fn beside(cgroup: &Cgroup, limits: &Limits) -> Self {
        Self {
            data: limits.memory_bytes.filter(|_| !cgroup.has("memory")),
            pids: Some(limits.pids).filter(|_| !cgroup.has("pids")),
        }
    }

    /// Applies the limits to this process and its future children. A lower limit that is there already
    /// stays. Since Linux 5.14, processes are counted in their own user namespace, so this process must
    /// be in the sandbox's.
    pub(crate) fn apply(self) -> io::Result<()> {
        // A function's core dump would be written nowhere.
        let limits = [(Resource::Data, self.data), (Resource::Nproc, self.pids), (Resource::Core, Some(0))];
        for (resource, limit) in limits.into_iter().filter_map(|(resource, to)| Some((resource, to?))) {
            let Rlimit { current, maximum } = getrlimit(resource);
            let lower = |now: Option<u64>| Some(now.map_or(limit, |now| now.min(limit)));
            setrlimit(resource, Rlimit { current: lower(current), maximum: lower(maximum) })?;
        }
        Ok(())
    }
}

/// What of these limits this process cannot enforce as asked, for people. Empty if it can enforce
/// all.
pub fn not_enforced(limits: &Limits) -> String {
    let cgroup = Cgroup::create(limits);
    let mut missing = Vec::new();
    if limits.memory_bytes.is_some() && !cgroup.has("memory") {
        missing.push("memory is limited for each process and without shared memory");
    }
    if limits.cpus.is_some() && !cgroup.has("cpu") {
        missing.push("CPU is not limited");
    }
    match &*missing.join(", and ") {
        "" => String::new(),
        missing => format!("without a cgroup that is delegated to this process, {missing}"),
    }
}
