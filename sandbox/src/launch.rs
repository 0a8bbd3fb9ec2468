//! The caller's side of a sandbox: it holds the cgroup, the pipes and the socket whose end ends the
//! sandbox.

use std::fs;
use std::io::{self, BufRead as _, BufReader, PipeReader, PipeWriter, Write as _, pipe};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command, Stdio};

use fork::{Fork, fork};
use rustix::fs::{Gid, Uid, fchown};
use rustix::process::{Pid, WaitOptions, setpgid, waitpid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::cgroups::{Cgroup, Exceeded};
use crate::error::step;
use crate::limits::Rlimits;
use crate::order::{BUILD, Order, Report, TERMINATE};
use crate::spec::Sandbox;
use crate::user::User;
use crate::{SandboxError, UNPRIVILEGED, build, exit_code, handover, is_root, signals};

/// The caller's ends of the sandbox's standard input and outputs.
#[derive(Debug)]
pub struct Pipes {
    /// Standard input.
    pub stdin: PipeWriter,
    /// Standard output.
    pub stdout: PipeReader,
    /// Standard error.
    pub stderr: PipeReader,
}

/// A sandbox whose processes do not run yet.
#[derive(Debug)]
pub struct Launch {
    sandbox: Sandbox,
    /// Where the server listens, and its arguments.
    server: Option<(UnixListener, Vec<String>)>,
    cgroup: Cgroup,
    control: UnixStream,
    /// The other end of `control`.
    theirs: UnixStream,
    /// Standard input and outputs.
    stdio: [OwnedFd; 3],
}

/// A sandbox that is built or runs. Dropping it ends the sandbox.
#[derive(Debug)]
pub struct Running {
    control: BufReader<UnixStream>,
    cgroup: Cgroup,
    /// The process that builds it.
    builder: Option<Pid>,
    rlimits: Rlimits,
}

// === impl Launch ===

impl Launch {
    /// Prepares a sandbox. `server` is a server of this program, which runs in place of its command:
    /// where it listens, and its arguments. Returns the caller's ends of its pipes, too.
    ///
    /// # Errors
    /// This process has no more descriptors.
    pub fn new(
        sandbox: Sandbox,
        server: Option<(UnixListener, Vec<String>)>,
    ) -> Result<(Self, Pipes), SandboxError> {
        signals::handle_ignored().map_err(step("read /proc/self/status"))?;
        let prepare = || -> io::Result<_> {
            let (control, theirs) = UnixStream::pair()?;
            let ((input, stdin), (stdout, output), (stderr, errors)) = (pipe()?, pipe()?, pipe()?);
            let stdio = [OwnedFd::from(input), output.into(), errors.into()];
            if is_root() {
                // The function may open them again, as /dev/stdin for example.
                let owner = (Some(Uid::from_raw(UNPRIVILEGED)), Some(Gid::from_raw(UNPRIVILEGED)));
                stdio.iter().try_for_each(|pipe| fchown(pipe, owner.0, owner.1))?;
            }
            Ok((control, theirs, stdio, Pipes { stdin, stdout, stderr }))
        };
        let (control, theirs, stdio, pipes) = prepare().map_err(step("get its pipes"))?;
        let cgroup = Cgroup::create(&sandbox.limits);
        Ok((Self { sandbox, server, cgroup, control, theirs, stdio }, pipes))
    }

    /// The command of the process that builds the sandbox. After it was spawned, [`Launch::start`] must
    /// follow.
    ///
    /// # Errors
    /// This process has no more descriptors.
    pub fn command(&self) -> io::Result<Command> {
        // The program may be replaced while it runs. This is still the same.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("porch-fn")
            .arg(BUILD)
            .env_clear()
            // An interrupt from the terminal reaches only the caller.
            .process_group(0)
            .stdin(OwnedFd::from(self.theirs.try_clone()?))
            .stdout(Stdio::null())
            .stderr(self.stdio[2].try_clone()?);
        Ok(command)
    }

    /// Starts the sandbox. [`Running::wait`] must follow. If this process has one thread, a copy of it
    /// builds the sandbox, in a third of the CPU time that a fresh start takes.
    ///
    /// # Errors
    /// This process may have no more children.
    pub fn spawn(self) -> Result<Running, SandboxError> {
        let spawn = || -> io::Result<u32> {
            // A copy would lack the other threads, and what they hold.
            if fs::read_dir("/proc/self/task")?.count() > 1 {
                return Ok(self.command()?.spawn()?.id());
            }
            match fork()? {
                Fork::Parent(child) => Ok(child.cast_unsigned()),
                Fork::Child => process::exit(self.build().unwrap_or(build::FAILED).into()),
            }
        };
        let builder = spawn().map_err(step("start its process"))?;
        self.start(builder)
    }

    /// In the copy: does what a fresh start does.
    fn build(&self) -> io::Result<u8> {
        setpgid(None, None)?;
        dup2_stdin(&self.theirs)?;
        // Nothing is written there.
        dup2_stdout(&self.stdio[2])?;
        dup2_stderr(&self.stdio[2])?;
        Ok(build::run())
    }

    /// Starts the sandbox. `process` is the process of the command.
    ///
    /// # Errors
    /// The process has ended.
    pub fn start(mut self, process: u32) -> Result<Running, SandboxError> {
        let (listener, args) = self.server.unzip();
        let mut descriptors: Vec<BorrowedFd<'_>> = self.stdio.iter().map(OwnedFd::as_fd).collect();
        descriptors.extend(listener.as_ref().map(UnixListener::as_fd));
        let (limits, rlimits) = (self.sandbox.limits, Rlimits::default());
        let order = Order { sandbox: self.sandbox, rlimits, server: args, user: User::default() };
        handover::send(&self.control, &order, &descriptors).map_err(step("send its order"))?;
        // Beside the process, which mounts what it needs: with version 1, this takes some ms.
        self.cgroup.add(process);
        let rlimits = Rlimits::beside(&self.cgroup, &limits);
        let builder = Pid::from_raw(process.cast_signed());
        Ok(Running { control: BufReader::new(self.control), cgroup: self.cgroup, rlimits, builder })
    }
}

// === impl Running ===

impl Running {
    /// Waits until the command or the server runs.
    ///
    /// # Errors
    /// There is no sandbox.
    pub fn started(&mut self) -> Result<(), SandboxError> {
        match self.report() {
            Some(Report::Started) => Ok(()),
            Some(Report::Waits) => {
                self.go_on().map_err(step("map its user"))?;
                self.started()
            }
            Some(Report::Failed { text, code, is_refused }) => {
                Err(SandboxError::Inside { text, code, is_refused })
            }
            _ => Err(step("start")(io::Error::other("its first process ended, see its standard error"))),
        }
    }

    /// Waits for the end of a sandbox that [`Launch::spawn`] started. Returns the command's exit code, or
    /// 128 and the number of the signal that ended it, as Docker does.
    ///
    /// # Errors
    /// It was not started so.
    pub fn wait(&self) -> io::Result<u8> {
        let ended = waitpid(self.builder, WaitOptions::empty())?;
        let (_, status) = ended.ok_or(io::ErrorKind::NotFound)?;
        Ok(exit_code(status.exit_status(), status.terminating_signal()))
    }

    /// What ends the sandbox at once, for another thread.
    ///
    /// # Errors
    /// This process has no more descriptors.
    pub fn ender(&self) -> io::Result<impl Fn() + Send + use<>> {
        let control = self.control.get_ref().try_clone()?;
        // It may have just ended.
        Ok(move || drop(control.shutdown(Shutdown::Both)))
    }

    /// Sends SIGTERM to the first process.
    pub fn terminate(&self) {
        // It may have just ended.
        let _ = self.control.get_ref().write_all(&[TERMINATE]);
    }

    /// The limits that the kernel had to enforce so far.
    pub fn exceeded(&self) -> Vec<Exceeded> {
        self.cgroup.exceeded()
    }

    /// The limits that were reached. The sandbox has ended.
    pub fn reached(mut self) -> Vec<Exceeded> {
        let mut reached = self.exceeded();
        while let Some(report) = self.report() {
            reached.extend(matches!(report, Report::TmpIsFull).then_some(Exceeded::Tmp));
        }
        reached
    }

    /// Lets the process that builds the sandbox go on. If it was root, its user becomes root in its user
    /// namespace.
    fn go_on(&self) -> io::Result<()> {
        let maps: &[&str] = if is_root() { &["uid_map", "gid_map"] } else { &[] };
        for file in maps {
            let path = format!("/proc/{}/{file}", Pid::as_raw(self.builder));
            fs::write(path, format!("0 {UNPRIVILEGED} 1"))?;
        }
        handover::send(self.control.get_ref(), &self.rlimits, &[])
    }

    /// The next report. `None`: the sandbox has ended.
    fn report(&mut self) -> Option<Report> {
        let mut line = String::new();
        self.control.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}
