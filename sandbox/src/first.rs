//! The sandbox's first process: another fresh start of the program. It closes all descriptors that
//! it was not given, enters the image's root, becomes the image's user without capabilities, and
//! applies the filter of system calls. Then it runs the command, or the program's own server. When
//! it ends, the kernel ends all that is left in the sandbox.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use rustix::process::{
    DumpableBehavior, Signal, chdir, fchdir, getcwd, pivot_root, set_dumpable_behavior,
    set_parent_process_death_signal, setsid, umask,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};

use crate::command::{self, Inside};
use crate::error::{step, unusable};
use crate::mounts::{open, path_of};
use crate::order::{Order, Report};
use crate::root::{PROGRAM, ROOT, folder_of, open_device};
use crate::user::User;
use crate::{SandboxError, handover, mounts, seccomp};

/// Names in /proc that say something about the machine, as in Docker.
const MASKED: &str = "acpi interrupts kcore keys latency_stats sched_debug scsi timer_list timer_stats";
/// Those that change something of the machine.
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

const INERT: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// The program's own server. It gets the socket where it listens, its arguments, and the sandbox's
/// command.
pub type Serve = dyn Fn(UnixListener, Vec<String>, Inside) -> ExitCode;

/// Runs the first process. `serve` is the program's own server.
pub(crate) fn run(serve: &Serve) -> ExitCode {
    let Ok((order, report, listener)) = receive() else { return ExitCode::FAILURE };
    let failed = |error: &SandboxError| {
        Report::failed(error).send(&report);
        ExitCode::from(error.exit_code())
    };
    let inside = match enter(&order) {
        Err(error) => return failed(&error),
        Ok(inside) => inside,
    };
    match listener.zip(order.server) {
        Some((listener, args)) => {
            Report::Started.send(&report);
            drop(report);
            serve(listener, args, inside)
        }
        None => command::run(&inside, &report).unwrap_or_else(|error| failed(&error)),
    }
}

/// Receives the order, a socket for reports, and the server's socket. Closes everything else.
fn receive() -> io::Result<(Order, UnixStream, Option<UnixListener>)> {
    let socket = handover::inherited()?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the parent ended before, there is no order.
    let (order, descriptors) = handover::receive(&socket)?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or(io::ErrorKind::UnexpectedEof);
    let report = UnixStream::from(next()?);
    dup2_stdin(next()?)?;
    dup2_stdout(next()?)?;
    dup2_stderr(next()?)?;
    Ok((order, report, descriptors.next().map(UnixListener::from)))
}

/// Enters the sandbox for good.
fn enter(order: &Order) -> Result<Inside, SandboxError> {
    let sandbox = &order.sandbox;
    // From now on, nothing can execute it a second time, also not as /proc/self/exe.
    mounts::restrict(&open(Path::new(PROGRAM))?, MsFlags::MS_NOEXEC).map_err(step("protect its program"))?;
    let null = open_device("null", 1, 3).map_err(step("use /dev/null"))?;
    let root = open(Path::new(ROOT))?;
    let place = folder_of(&root, "proc")?;
    mount(Some("proc"), &*path_of(&place), Some("proc"), INERT, None::<&str>).map_err(step("mount /proc"))?;
    let proc = folder_of(&root, "proc")?;
    mask(&proc, &null).map_err(step("mask files of /proc"))?;
    setsid().map_err(step("have a session of its own"))?;
    rustix::system::sethostname(b"function").map_err(step("set its host name"))?;
    if !sandbox.is_on_host_network {
        enable_loopback().map_err(step("enable its loopback device"))?;
    }
    enter_root().map_err(step("enter the image's root"))?;
    become_user(&order.user, &proc).map_err(step("become the image's user"))?;
    order.rlimits.apply().map_err(step("set its limits"))?;
    seccomp::apply(sandbox.is_on_host_network)
        .map_err(|error| step("apply the filter of system calls")(io::Error::other(error)))?;
    // As in Docker.
    umask(Mode::from(0o022));
    enter_folder(&sandbox.folder).map_err(unusable("image's working directory", &sandbox.folder))?;
    Ok(Inside::new(order))
}

/// Covers what says or changes something about the machine.
fn mask(proc: &OwnedFd, null: &File) -> io::Result<()> {
    let find = |name| openat(proc, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    // Each kernel has only some of them.
    for place in MASKED.split(' ').filter_map(|name| find(name).ok()) {
        if FileType::from_raw_mode(fstat(&place)?.st_mode) == FileType::Directory {
            let flags = INERT | MsFlags::MS_RDONLY;
            mount(Some("tmpfs"), &*path_of(&place), Some("tmpfs"), flags, Some("size=4k"))?;
        } else {
            mounts::bind(null, &path_of(&place))?;
        }
    }
    for name in READ_ONLY {
        let Ok(place) = find(name) else { continue };
        mounts::bind(&place, &path_of(&place))?;
        mounts::remount(&path_of(&find(name)?), INERT | MsFlags::MS_RDONLY)?;
    }
    Ok(())
}

fn enter_root() -> io::Result<()> {
    chdir(ROOT)?;
    // The old root lies on the new one afterwards, and can be detached.
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(chdir("/")?)
}

/// Programs that talk to themselves by TCP need it. Docker's network `none` has it too.
fn enable_loopback() -> io::Result<()> {
    /// `RTM_NEWLINK`, with `NLM_F_REQUEST` and `NLM_F_ACK`, for `LOOPBACK_IFINDEX`: `IFF_UP`.
    /// <https://man7.org/linux/man-pages/man7/rtnetlink.7.html>
    const REQUEST: [u32; 8] = [32, 16 | 5 << 16, 1, 0, 0, 1, 1, 1];
    // Without a protocol, it is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, REQUEST.map(u32::to_le_bytes).as_flattened(), SendFlags::empty())?;
    let mut answer = [0_u8; 64];
    let (_, received) = recv(&socket, &mut answer, RecvFlags::empty())?;
    // The error follows the header of 16 bytes. 0 is success.
    match answer[..received].get(16..20) {
        Some([0, 0, 0, 0]) => Ok(()),
        _ => Err(io::Error::other("the kernel refuses it")),
    }
}

/// A user namespace in the sandbox's: there, the only user has the image's number. Its root cannot
/// be reached any more, and no capability is left.
fn become_user(user: &User, proc: &OwnedFd) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    unshare(CloneFlags::CLONE_NEWUSER)?;
    let (uid, gid) = (format!("{} 0 1", user.uid), format!("{} 0 1", user.gid));
    for (name, text) in [("setgroups", "deny"), ("uid_map", &*uid), ("gid_map", &*gid)] {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        File::from(openat(proc, format!("self/{name}"), flags, Mode::empty())?).write_all(text.as_bytes())?;
    }
    // Functions have the same user: they may not read this process's memory or descriptors.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // A change of rights may reset it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    for number in 0..u64::BITS {
        // The kernel knows about 40.
        if remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)).is_err() {
            break;
        }
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

/// Enters the working directory. All links of the image are resolved, so the others are those of
/// /proc, and could lead out of the sandbox.
fn enter_folder(folder: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let outside = || io::Error::other("it leads through a link of /proc");
    match openat2(CWD, folder, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Err(Errno::LOOP) => return Err(outside()),
        opened => fchdir(opened?)?,
    }
    // The kernel writes "(unreachable)" before a folder that is not below the root.
    if getcwd(Vec::new())?.to_bytes().starts_with(b"/") { Ok(()) } else { Err(outside()) }
}
