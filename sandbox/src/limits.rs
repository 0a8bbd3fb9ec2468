//! Limits of all processes of a sandbox together: by cgroups where this process may create one, or
//! else by rlimits, which limit less.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::cgroups;
use crate::spec::Limits;

/// Applies the limits to this process and its future children. Returns what is not limited as
/// asked, for people; nothing if all is.
pub(crate) fn apply(limits: &Limits) -> String {
    cgroups::remove_unused();
    let controllers = cgroups::create(limits);
    let has = |controller| controllers.contains(&controller);
    let mut missing = Vec::new();
    if let Some(bytes) = limits.memory_bytes
        && !has("memory")
    {
        let _ = limit(Resource::Data, bytes);
        missing.push("memory is limited for each process, not for all together");
    }
    if !has("pids") {
        // Counted in the sandbox's own user namespace.
        let _ = limit(Resource::Nproc, limits.pids);
    }
    if limits.cpus.is_some() && !has("cpu") {
        missing.push("CPU is not limited");
    }
    // A function's core dump would be written nowhere.
    let _ = limit(Resource::Core, 0);
    missing.join(", and ")
}

/// Lowers a limit. A lower limit that is there already stays.
fn limit(resource: Resource, to: u64) -> io::Result<()> {
    let Rlimit { current, maximum } = rustix::process::getrlimit(resource);
    let lower = |limit: Option<u64>| Some(limit.map_or(to, |limit| limit.min(to)));
    Ok(setrlimit(resource, Rlimit { current: lower(current), maximum: lower(maximum) })?)
}
