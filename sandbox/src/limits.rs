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
        let has = |controller| cgroup.controllers().any(|name| name == controller);
        Self {
            data: limits.memory_bytes.filter(|_| !has("memory")),
            pids: Some(limits.pids).filter(|_| !has("pids")),
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

/// The controllers that enforce these limits in cgroups of this process: `memory`, `cpu`, `pids`.
pub fn enforced(limits: &Limits) -> Vec<&'static str> {
    Cgroup::create(limits).controllers().collect()
}
