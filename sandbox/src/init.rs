//! The last steps of the sandbox's first process, inside the sandbox: the image's user, no
//! capabilities, the filter of system calls. Then it becomes the function, or runs the
//! wrapper-server.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, symlink};
use std::sync::Arc;

use caps::CapSet::{Ambient, Bounding, Effective, Inheritable, Permitted};
use libcontainer::network::link::LinkClient;
use libcontainer::network::wrapper::create_network_client;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::{set_dumpable, set_pdeathsig};
use nix::sys::signal::Signal;
use nix::sys::stat::fstat;
use nix::unistd::{chdir, dup2, execve};

use crate::seccomp;
use crate::spec::{Network, Sandbox};
use crate::user::{User, resolve};

/// Largest `/etc/passwd` that is read, in bytes.
const MAX_PASSWD: u64 = 1 << 20;
/// The number of the loopback device in every network namespace: `LOOPBACK_IFINDEX` of Linux.
const LOOPBACK: u32 = 1;
/// The PATH of an image that has none, as in Docker.
const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Exit codes of Docker for a command that does not start.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// Exit code of Docker for a container that does not start.
pub(crate) const NOT_STARTED: i32 = 125;

/// What the sandbox's first process runs.
#[derive(Clone)]
pub enum Payload {
    /// Becomes the sandbox's command.
    Command,
    /// Runs this function of the program, which returns the exit code.
    Server(Arc<dyn Fn(&Inside) -> u8>),
}

/// What a [`Payload::Server`] needs for the sandbox's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Its environment, each `NAME=VALUE`.
    pub env: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Init {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) payload: Payload,
    /// Begins the messages for people.
    pub(crate) program: &'static str,
}

// === impl Init ===

impl Init {
    fn run(&self) -> Result<u8, String> {
        let user = self.user()?;
        reopen_null().map_err(|error| format!("open /dev/null: {error}"))?;
        let text = |step: &str, error: io::Error| format!("{step}: {error}");
        // Shared memory of the C library, where the only writable folder is.
        symlink("/tmp", "/dev/shm").map_err(|error| text("create /dev/shm", error))?;
        // Otherwise it would be a second writable folder. Its own links and devices are there now.
        let flags = MsFlags::MS_REMOUNT
            | MsFlags::MS_BIND
            | MsFlags::MS_RDONLY
            | MsFlags::MS_NOSUID
            | MsFlags::MS_NOEXEC;
        mount(None::<&str>, "/dev", None::<&str>, flags, None::<&str>)
            .map_err(|error| text("make /dev read-only", error.into()))?;
        if self.sandbox.network == Network::None {
            enable_loopback().map_err(|error| format!("enable its loopback device: {error}"))?;
        }
        become_user(&user).map_err(|error| text("become the image's user", error))?;
        seccomp::apply().map_err(|error| format!("apply the filter of system calls: {error}"))?;
        let folder = if self.sandbox.folder.is_empty() { "/" } else { &*self.sandbox.folder };
        chdir(folder)
            .map_err(|error| text(&format!("enter the working directory {folder:?}"), error.into()))?;
        let env = self.env(&user);
        match &self.payload {
            Payload::Command => Err(self.become_command(&env)),
            Payload::Server(serve) => Ok(serve(&Inside { command: self.sandbox.command.clone(), env })),
        }
    }

    fn user(&self) -> Result<User, String> {
        let read = |path| read_small(path).unwrap_or_default();
        resolve(&self.sandbox.user, &read("/etc/passwd"), &read("/etc/group"))
            .map_err(|error| error.to_string())
    }

    fn env(&self, user: &User) -> Vec<String> {
        let mut env = self.sandbox.env.clone();
        let has = |env: &[String], name: &str| env.iter().any(|variable| variable.starts_with(name));
        if !has(&env, "PATH=") {
            env.push(DEFAULT_PATH.to_owned());
        }
        if !has(&env, "HOME=") {
            env.push(format!("HOME={}", user.home));
        }
        env
    }

    /// Returns only if the command cannot be run.
    fn become_command(&self, env: &[String]) -> String {
        let text = |text: &String| CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL);
        let exec = || -> Result<(), Errno> {
            let args = self.sandbox.command.iter().map(text).collect::<Result<Vec<_>, _>>()?;
            let env = env.iter().map(text).collect::<Result<Vec<_>, _>>()?;
            let mut error = Errno::ENOENT;
            for program in candidates(&self.sandbox.command, &env_path(&self.sandbox.env)) {
                let Err(refused) = execve(&text(&program)?, &args, &env);
                // Like a shell: a name that is not executable counts only if there is no other.
                if refused != Errno::ENOENT {
                    error = refused;
                }
                if !matches!(refused, Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR) {
                    break;
                }
            }
            Err(error)
        };
        let error = exec().err().unwrap_or(Errno::ENOENT);
        let name = self.sandbox.command.first().map(String::as_str).unwrap_or_default();
        eprintln!("{}: cannot run {name:?} of the image: {}", self.program, io::Error::from(error));
        std::process::exit(if error == Errno::ENOENT { NOT_FOUND } else { NOT_EXECUTABLE })
    }
}

impl Executor for Init {
    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        match self.run() {
            Ok(code) => std::process::exit(code.into()),
            Err(error) => {
                eprintln!("{}: the sandbox cannot {error}", self.program);
                std::process::exit(NOT_STARTED)
            }
        }
    }

    /// Runs before the start: from now on, the sandbox ends with the process that creates it.
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        set_pdeathsig(Signal::SIGKILL)
            .map_err(|error| ExecutorValidationError::ArgValidationError(error.to_string()))
    }

    /// The command gets its environment when it starts.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}

/// The program itself, or its name in each folder of PATH.
fn candidates(command: &[String], path: &str) -> Vec<String> {
    let Some(program) = command.first() else { return Vec::new() };
    if program.contains('/') {
        return vec![program.clone()];
    }
    path.split(':')
        .map(|folder| format!("{}/{program}", if folder.is_empty() { "." } else { folder }))
        .collect()
}

fn env_path(env: &[String]) -> String {
    let path = env.iter().rev().find_map(|variable| variable.strip_prefix("PATH="));
    path.unwrap_or(&DEFAULT_PATH["PATH=".len()..]).to_owned()
}

/// Without it, programs that talk to themselves by TCP fail. Docker's network `none` has it too.
fn enable_loopback() -> Result<(), String> {
    let mut links = LinkClient::new(create_network_client()).map_err(|error| error.to_string())?;
    links.set_up(LOOPBACK).map_err(|error| error.to_string())
}

/// A user namespace in the sandbox's: there, the only user has the image's number. Its root cannot
/// be reached any more, and no capability is left.
fn become_user(user: &User) -> io::Result<()> {
    set_dumpable(true)?;
    unshare(CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{} 0 1", user.uid))?;
    fs::write("/proc/self/gid_map", format!("{} 0 1", user.gid))?;
    // Functions of a pod have the same user as the wrapper-server: they may not read its memory or
    // the program's file.
    set_dumpable(false)?;
    for set in [Bounding, Ambient, Inheritable, Effective, Permitted] {
        caps::clear(None, set).map_err(io::Error::other)?;
    }
    Ok(())
}

/// libcontainer opens the sandbox's own /dev/null for reading alone, also for outputs that lead
/// there.
fn reopen_null() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let device = null.metadata()?.rdev();
    for fd in 0..=2 {
        if fstat(fd)?.st_rdev == device {
            dup2(null.as_raw_fd(), fd)?;
        }
    }
    Ok(())
}

/// Reads a file of the image, which may be anything.
fn read_small(path: &str) -> Option<String> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut text = String::new();
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    file.take(MAX_PASSWD).read_to_string(&mut text).ok()?;
    Some(text)
}
