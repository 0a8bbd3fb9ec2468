//! Runs a function image in namespaces of its own: without a container engine, and without root.
//!
//! A sandbox has one user, who is an unprivileged user of the machine, and no capabilities. Its
//! root is read-only, its only writable folder is `/tmp`, and it has no network.
//!
//! ```text
//! caller: porch-fn run, porch-fn up      any number of threads
//!   │ launch.rs    pipes, cgroup (cgroups.rs), and a socket: its end ends the sandbox
//!   ▼ handover.rs  a fresh start of the program, or its copy, which gets an order and descriptors
//! build.rs         one thread
//!   │ root.rs      user, mount and cgroup namespace; overlay of the layers; /tmp, /dev, mounts
//!   │              PID, IPC, UTS and network namespace
//!   ▼              a second fresh start, from a mount where the program cannot be written
//! first.rs         process 1 of the sandbox: /proc, root, a second user namespace with the image's
//!   │              user, limits.rs, seccomp.rs
//!   ▼ command.rs   the function; or in this process the wrapper-server
//! ```
//!
//! Whatever is open in the first process could lead out of the sandbox, as `/proc/self/fd/N` in a
//! path of the image. So it has only descriptors that it was given, and none of a file or folder of
//! the machine. All mounts are in a mount namespace that ends with its processes. So a killed process
//! leaves nothing mounted, and nothing in a folder.

mod build;
mod cgroups;
mod command;
mod error;
mod first;
mod handover;
pub mod inside;
mod launch;
mod limits;
mod mounts;
mod namespaces;
mod order;
mod root;
mod seccomp;
mod signals;
mod spec;
mod user;

use std::ffi::OsString;
use std::process::ExitCode;

pub use cgroups::{Exceeded, take_own as take_own_cgroup};
pub use command::Inside;
pub use error::SandboxError;
pub use first::Serve;
pub use launch::{Launch, Pipes, Running};
pub use limits::enforced;
pub use mounts::path_of;
pub use namespaces::{become_unprivileged, enter, is_root};
pub use spec::{Limits, Mount, Sandbox};

/// The user and group of all files of images, and of all sandboxes, if this process is root:
/// `nobody`. An ordinary user's sandboxes run as that user.
pub const UNPRIVILEGED: u32 = 65534;

/// Runs a process of a sandbox, if `args`, program name included, are its command line. Every program
/// that uses [`Launch`] must call this first, before it has a second thread. `serve` is the program's
/// server for sandboxes.
pub fn run_child(args: &[OsString], serve: &Serve) -> Option<ExitCode> {
    match args.get(1)?.to_str()? {
        order::BUILD => Some(build::run().into()),
        order::FIRST => Some(first::run(serve)),
        _ => None,
    }
}

/// The exit code of a process as Docker counts it: its own, or 128 and the number of its signal.
fn exit_code(code: Option<i32>, signal: Option<i32>) -> u8 {
    let code = code.unwrap_or_else(|| 128 + signal.unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}
