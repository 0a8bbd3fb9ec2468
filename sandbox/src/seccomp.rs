//! The system calls that a function may use.
//!
//! The files in `seccomp/` are Docker's default profile for a container without capabilities
//! (`github.com/moby/profiles/seccomp` v0.1.0), without the calls that sandboxes refused before they
//! had it: those that reach much code of the kernel or look into other processes. Of sockets, there
//! are only Unix, IPv4, IPv6, and netlink for routes.

use std::collections::BTreeMap;

use libc::{ENOSYS, EPERM};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter, compile_from_json, sock_filter,
};

use crate::spec::Network;

#[cfg(target_arch = "x86_64")]
const ALLOWED: &str = include_str!("seccomp/x86_64.json");
#[cfg(target_arch = "aarch64")]
const ALLOWED: &str = include_str!("seccomp/aarch64.json");
/// The name of the filter in these files.
const NAME: &str = "function";

/// The latest system call that the profile knows. Programs expect that the kernel does not have a
/// later one, and not that it forbids it. The numbers of the x32 ABI are higher, too.
const LATEST: u32 = libc::SYS_mseal as u32;

/// Applies the filters to this process and its future children.
pub(crate) fn apply(network: Network) -> Result<(), String> {
    for program in programs(network)? {
        apply_filter(&program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// If several filters refuse a call, the error of the last one counts.
fn programs(network: Network) -> Result<Vec<BpfProgram>, String> {
    let arch = std::env::consts::ARCH.try_into().map_err(|_| "the processor is not known".to_owned())?;
    let mut filters = compile_from_json(ALLOWED.as_bytes(), arch).map_err(|error| error.to_string())?;
    let mut programs: Vec<_> = filters.remove(NAME).into_iter().collect();
    if network == Network::Host {
        // The machine's abstract sockets are in its network namespace, and have no permissions.
        let text = |error: seccompiler::BackendError| error.to_string();
        let family = u64::from(libc::AF_UNIX.unsigned_abs());
        let is_unix = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family);
        let rule = SeccompRule::new(vec![is_unix.map_err(text)?]).map_err(text)?;
        let refuse = SeccompAction::Errno(EPERM.unsigned_abs());
        let rules = BTreeMap::from([(libc::SYS_socket, vec![rule])]);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(text)?;
        programs.push(filter.try_into().map_err(text)?);
    }
    programs.push(missing());
    Ok(programs)
}

/// Refuses later calls, and `clone3`, as if the kernel did not have them. The C library then uses
/// `clone`, whose flags a filter can read.
fn missing() -> BpfProgram {
    let op = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    vec![
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, LATEST, 1, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_clone3 as u32, 0, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | ENOSYS.unsigned_abs(), 0, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_for_both_networks() {
        let sizes = |network| programs(network).unwrap().iter().map(Vec::len).collect::<Vec<_>>();
        assert!(sizes(Network::None)[0] > 250, "{:?}", sizes(Network::None));
        assert_eq!((sizes(Network::None).len(), sizes(Network::Host).len()), (2, 3));
    }

    /// What these calls reach was refused before the profile was Docker's.
    #[test]
    fn calls_that_look_into_other_processes_or_reach_much_of_the_kernel_are_not_allowed() {
        for profile in [include_str!("seccomp/x86_64.json"), include_str!("seccomp/aarch64.json")] {
            for call in [
                "adjtimex",
                "bpf",
                "clock_adjtime",
                "io_uring_setup",
                "kcmp",
                "keyctl",
                "mbind",
                "mount",
                "name_to_handle_at",
                "open_by_handle_at",
                "open_tree",
                "perf_event_open",
                "personality",
                "process_madvise",
                "process_vm_readv",
                "ptrace",
                "setns",
                "unshare",
                "userfaultfd",
            ] {
                assert!(!profile.contains(&format!("\"{call}\"")), "{call}");
            }
            assert!(profile.contains("\"openat2\"") && profile.contains("\"faccessat2\""));
        }
    }
}
