//! Starts a sandbox and waits for its end.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::SandboxError;
use crate::advice::advice;
use crate::enter::{BUNDLE, Merge, ROOT, STATE, enter};
use crate::init::{Init, Payload};
use crate::limits;
use crate::spec::Sandbox;

/// A running sandbox. It ends with this process.
#[derive(Debug)]
pub struct Running {
    first: Pid,
}

/// Starts the sandbox with this process's standard input and outputs. `program` begins the messages
/// that the sandbox's first process writes to standard error if it cannot run. `merge` is called if
/// the kernel cannot stack the layers.
///
/// This process moves into namespaces of its own, so it can start one sandbox and no more. It must
/// have one thread.
///
/// # Errors
/// [`SandboxError`].
pub fn start(
    sandbox: Sandbox,
    merge: &mut Merge<'_>,
    payload: Payload,
    program: &'static str,
) -> Result<Running, SandboxError> {
    limits::apply(&sandbox.limits);
    let sources = enter(&sandbox, merge)?;
    let spec = sandbox.runtime_spec(ROOT, &sources)?;
    let create =
        |error: &dyn std::error::Error| SandboxError::Create { message: chain(error), advice: advice() };
    spec.save(format!("{BUNDLE}/config.json")).map_err(|error| create(&error))?;
    let init = Init { sandbox: Arc::new(sandbox), payload, program };
    let mut container = ContainerBuilder::new("function".to_owned(), SyscallType::default())
        .with_executor(init)
        .with_root_path(STATE)
        .map_err(|error| create(&error))?
        .as_init(BUNDLE)
        .with_systemd(false)
        .with_detach(true)
        .build()
        .map_err(|error| create(&error))?;
    container.start().map_err(|error| create(&error))?;
    let first = container.pid().ok_or_else(|| SandboxError::Wait(io::ErrorKind::NotFound.into()))?;
    Ok(Running { first })
}

// === impl Running ===

impl Running {
    /// The process ID of the sandbox's first process.
    pub fn pid(&self) -> i32 {
        self.first.as_raw()
    }

    /// Waits until the sandbox has ended.
    ///
    /// # Errors
    /// It cannot be watched.
    pub fn wait(self) -> Result<ExitStatus, SandboxError> {
        loop {
            match waitpid(self.first, None) {
                Ok(WaitStatus::Exited(_, code)) => return Ok(ExitStatus::from_raw(code << 8)),
                Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(ExitStatus::from_raw(signal as i32)),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(SandboxError::Wait(error.into())),
            }
        }
    }
}

/// The error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
