//! Runs a function image in namespaces of its own: without a container engine, and without root.
//!
//! A sandbox has one user, who is an unprivileged user of the machine, and no capabilities. Its
//! root is read-only, its only writable folder is `/tmp`, and it has no network. libcontainer, the
//! library of youki, creates the namespaces and mounts.
//!
//! ```text
//! process that calls [`start`]          one thread; `porch-fn run`, or a child of the runner
//!   │ limits.rs    cgroups, or rlimits
//!   │ enter.rs     user, mount and cgroup namespace; overlay of the layers in a private tmpfs
//!   ▼ libcontainer PID, IPC, UTS and network namespace, mounts, pivot_root
//! first process of the sandbox
//!   │ init.rs      a second user namespace with the image's user; capabilities, seccomp
//!   ▼              the function, or the wrapper-server
//! ```
//!
//! All mounts are in a mount namespace that ends with its processes. So a killed process leaves
//! nothing mounted, and nothing in a folder.

mod advice;
mod cgroups;
mod enter;
mod error;
mod init;
mod limits;
mod namespaces;
mod seccomp;
mod spec;
mod start;
mod user;

pub use advice::IN_A_POD;
pub use cgroups::{remove_unused as remove_unused_cgroups, take_own as take_own_cgroup};
pub use enter::Merge;
pub use error::SandboxError;
pub use init::{Inside, Payload};
pub use limits::not_enforced;
pub use namespaces::enter_own_mounts;
pub use spec::{FOLDERS, Limits, Mount, Network, Sandbox, Source};
pub use start::{Running, start};

/// The user and group of all files of images, and of all sandboxes, if this process is root:
/// `nobody`. An ordinary user's sandboxes run as that user.
pub const UNPRIVILEGED: u32 = 65534;
