//! Limits of all processes of a sandbox together: by cgroups where this process may create one, or
//! else by rlimits, which limit less.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::cgroups;
use crate::spec::Limits;

/// Applies the limits to this process and its future children.
pub(crate) fn apply(limits: &Limits) {
    cgroups::remove_unused();
    let controllers = cgroups::create(limits);
    if let Some(bytes) = limits.memory_bytes
        && !controllers.contains(&"memory")
    {
        let _ = lower(Resource::Data, bytes);
    }
    if !controllers.contains(&"pids") {
        // Counted in the sandbox's own user namespace.
        let _ = lower(Resource::Nproc, limits.pids);
    }
    // A function's core dump would be written nowhere.
    let _ = lower(Resource::Core, 0);
}

/// What of these limits this process cannot enforce as asked, for people. Empty if it can enforce
/// all.
pub fn not_enforced(limits: &Limits) -> String {
    let controllers = cgroups::available();
    let mut missing = Vec::new();
    if limits.memory_bytes.is_some() && !controllers.contains(&"memory") {
        missing.push("memory is limited for each process, not for all together");
    }
    if limits.cpus.is_some() && !controllers.contains(&"cpu") {
        missing.push("CPU is not limited");
    }
    missing.join(", and ")
}

/// Lowers a limit. A lower limit that is there already stays.
fn lower(resource: Resource, to: u64) -> io::Result<()> {
    let Rlimit { current, maximum } = rustix::process::getrlimit(resource);
    let at_most = |limit: Option<u64>| Some(limit.map_or(to, |limit| limit.min(to)));
    Ok(setrlimit(resource, Rlimit { current: at_most(current), maximum: at_most(maximum) })?)
}
