//! The system calls that a function may use.
//!
//! The files in `seccomp/` are Docker's default profile for a container without capabilities
//! (`github.com/moby/profiles/seccomp` v0.1.0), without the calls that sandboxes refused before they
//! had it: those that reach much code of the kernel or look into other processes. Of sockets, there
//! are only Unix, IPv4, IPv6, and netlink for routes.

use libc::ENOSYS;
use seccompiler::{apply_filter, sock_filter};

/// build.rs makes these of the files.
#[allow(clippy::unreadable_literal, reason = "nobody reads them")]
const FUNCTION: &[sock_filter] = include!(concat!(env!("OUT_DIR"), "/function.rs"));
/// The machine's abstract sockets are in its network namespace, and have no permissions: no Unix
/// sockets.
#[allow(clippy::unreadable_literal, reason = "nobody reads them")]
const HOST_NETWORK: &[sock_filter] = include!(concat!(env!("OUT_DIR"), "/host_network.rs"));

/// The latest system call that the profile knows. Programs expect that the kernel does not have a
/// later one, and not that it forbids it. The numbers of the x32 ABI are higher, too.
const LATEST: u32 = libc::SYS_mseal as u32;

/// Refuses later calls, and `clone3`, as if the kernel did not have them. The C library then uses
/// `clone`, whose flags a filter can read.
const MISSING: &[sock_filter] = &[
    op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
    op(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, LATEST, 1, 0),
    op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_clone3 as u32, 0, 1),
    op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | ENOSYS.unsigned_abs(), 0, 0),
    op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
];

const fn op(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// Applies the filters to this process and its future children. If several refuse a call, the error
/// of the last one counts.
pub(crate) fn apply(is_on_host_network: bool) -> seccompiler::Result<()> {
    apply_filter(FUNCTION)?;
    if is_on_host_network {
        apply_filter(HOST_NETWORK)?;
    }
    apply_filter(MISSING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_are_compiled() {
        for (filter, least) in [(FUNCTION, 250), (HOST_NETWORK, 5)] {
            assert!(filter.len() > least, "{filter:?}");
        }
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
