//! The system calls that a function may not use.
//!
//! A function has no capabilities, so the kernel refuses most privileged calls anyway. The list has
//! those that reach much code of the kernel, create namespaces, or look into other processes. It
//! follows what Docker's profile refuses to a container without capabilities.
//! <https://docs.docker.com/engine/security/seccomp/>

use std::collections::BTreeMap;

use libc::{ENOSYS, EPERM};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

/// Refused with `EPERM`.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Refused as if the kernel did not have it, so that the C library uses `clone`, whose flags a
/// filter can read.
const MISSING: &[libc::c_long] = &[libc::SYS_clone3];

/// Flags of `clone` that create namespaces.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// Applies the filter to this process and its future children.
pub(crate) fn apply() -> Result<(), String> {
    for program in programs()? {
        apply_filter(&program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// One filter for each error.
fn programs() -> Result<[BpfProgram; 2], String> {
    let text = |error: seccompiler::BackendError| error.to_string();
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let mut clone = Vec::new();
    for flag in NAMESPACES {
        let bit = u64::from(flag.unsigned_abs());
        let has = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(bit), bit)
            .map_err(text)?;
        clone.push(SeccompRule::new(vec![has]).map_err(text)?);
    }
    refused.insert(libc::SYS_clone, clone);
    let missing: BTreeMap<i64, Vec<SeccompRule>> = MISSING.iter().map(|call| (*call, Vec::new())).collect();
    if cfg!(target_arch = "x86_64") {
        // The x32 ABI has other numbers for the same calls, and a few numbers of its own. Functions
        // do not need it.
        const X32: i64 = 0x4000_0000;
        let others = REFUSED.iter().chain(MISSING).chain([&libc::SYS_clone]).copied().chain(512..=547);
        refused.extend(others.map(|call| (call | X32, Vec::new())));
    }
    let program = |rules, errno: i32| -> Result<BpfProgram, String> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(text)?;
        let refuse = SeccompAction::Errno(errno.unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(text)?;
        BpfProgram::try_from(filter).map_err(text)
    };
    Ok([program(missing, ENOSYS)?, program(refused, EPERM)?])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_filter_compiles() {
        assert!(super::programs().unwrap().iter().all(|program| program.len() > 3));
    }
}
