//! The caller's side of a sandbox: it holds the cgroup, the pipes and the socket whose end ends the
//! sandbox.

use std::io::{self, BufRead as _, BufReader, PipeReader, PipeWriter, Write as _, pipe};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::fs::{Gid, Uid, fchown};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::advice::advice;
use crate::cgroups::{Cgroup, Exceeded};
use crate::error::step;
use crate::limits::Rlimits;
use crate::spec::Sandbox;
use crate::{SandboxError, UNPRIVILEGED, handover};

/// First argument of the process that builds a sandbox, and of the sandbox's first process.
pub(crate) const BUILD: &str = "__sandbox";
pub(crate) const FIRST: &str = "__sandbox-first";
/// Asks the process that builds the sandbox to send SIGTERM to the first process.
pub(crate) const TERMINATE: u8 = b't';

/// What the processes of a sandbox need to know.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) sandbox: Sandbox,
    pub(crate) rlimits: Rlimits,
    /// The arguments of the program's own server, if the sandbox runs that.
    pub(crate) server: Option<Vec<String>>,
}

/// What the processes of a sandbox report, one line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The command runs, or the server is about to.
    Started,
    /// There is no sandbox.
    Failed { text: String, code: u8, needs_advice: bool },
    /// The command failed, and its `/tmp` is full.
    TmpIsFull,
}

/// A server of this program, which runs in place of the sandbox's command.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub listener: UnixListener,
    /// Its arguments.
    pub args: Vec<String>,
}

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
    server: Option<Server>,
    cgroup: Cgroup,
    control: UnixStream,
    /// Standard input and outputs.
    stdio: [OwnedFd; 3],
}

/// A sandbox that is built or runs. Dropping it ends the sandbox.
#[derive(Debug)]
pub struct Running {
    control: BufReader<UnixStream>,
    cgroup: Cgroup,
}

// === impl Launch ===

impl Launch {
    /// Prepares a sandbox. Returns the command of the process that builds it, and the caller's ends
    /// of the pipes. After the command was spawned, [`Launch::start`] must follow.
    ///
    /// # Errors
    /// This process has no more descriptors.
    pub fn new(sandbox: Sandbox, server: Option<Server>) -> Result<(Self, Command, Pipes), SandboxError> {
        let prepare = || -> io::Result<_> {
            let (control, theirs) = UnixStream::pair()?;
            let ((input, stdin), (stdout, output), (stderr, errors)) = (pipe()?, pipe()?, pipe()?);
            let stdio = [OwnedFd::from(input), output.into(), errors.into()];
            if geteuid().is_root() {
                // The function may open them again, as /dev/stdin for example.
                for pipe in &stdio {
                    let (user, group) = (Uid::from_raw(UNPRIVILEGED), Gid::from_raw(UNPRIVILEGED));
                    fchown(pipe, Some(user), Some(group))?;
                }
            }
            // The program may be replaced while it runs. This is still the same.
            let mut command = Command::new("/proc/self/exe");
            command
                .arg0("porch-fn")
                .arg(BUILD)
                .env_clear()
                // An interrupt from the terminal reaches only the caller.
                .process_group(0)
                .stdin(OwnedFd::from(theirs))
                .stdout(Stdio::null())
                .stderr(stdio[2].try_clone()?);
            Ok((control, stdio, command, Pipes { stdin, stdout, stderr }))
        };
        let (control, stdio, command, pipes) = prepare().map_err(step("get its pipes"))?;
        let cgroup = Cgroup::create(&sandbox.limits);
        Ok((Self { sandbox, server, cgroup, control, stdio }, command, pipes))
    }

    /// Starts the sandbox. `process` is the process of the command.
    ///
    /// # Errors
    /// The process has ended.
    pub fn start(mut self, process: u32) -> Result<Running, SandboxError> {
        // The process waits for its order, so it has done nothing outside of the cgroup.
        self.cgroup.add(process);
        let rlimits = Rlimits::beside(&self.cgroup, &self.sandbox.limits);
        let (listener, args) = self.server.map(|server| (server.listener, server.args)).unzip();
        let mut descriptors: Vec<BorrowedFd<'_>> = self.stdio.iter().map(OwnedFd::as_fd).collect();
        descriptors.extend(listener.as_ref().map(UnixListener::as_fd));
        let order = Order { sandbox: self.sandbox, rlimits, server: args };
        handover::send(&self.control, &order, &descriptors).map_err(step("send its order"))?;
        Ok(Running { control: BufReader::new(self.control), cgroup: self.cgroup })
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
            Some(Report::Failed { text, code, needs_advice }) => {
                let text = if needs_advice { format!("{text}. {}", advice()) } else { text };
                Err(SandboxError::Inside { text, code })
            }
            _ => Err(step("start")(io::Error::other("its first process ended, see its standard error"))),
        }
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

    /// The next report. `None`: the sandbox has ended.
    fn report(&mut self) -> Option<Report> {
        let mut line = String::new();
        self.control.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

// === impl Report ===

impl Report {
    pub(crate) fn failed(error: &SandboxError) -> Self {
        let needs_advice = matches!(error, SandboxError::Refused { .. });
        Self::Failed { text: error.to_string(), code: error.exit_code(), needs_advice }
    }

    /// Sends the report to the caller, who may have ended.
    pub(crate) fn send(&self, mut control: &UnixStream) {
        let line = serde_json::to_string(self).unwrap_or_default() + "\n";
        let _ = control.write_all(line.as_bytes());
    }
}
