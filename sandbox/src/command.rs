//! Runs the sandbox's command as a child of the first process.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode};

use rustix::fs::statvfs;
use rustix::process::{WaitOptions, wait};

use crate::order::{Order, Report};
use crate::{SandboxError, exit_code};

/// The PATH of an image that has none, as in Docker.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its environment, each `NAME=VALUE`.
    pub env: Vec<String>,
}

// === impl Inside ===

impl Inside {
    pub(crate) fn new(Order { sandbox, user, .. }: &Order) -> Self {
        let mut env = sandbox.env.clone();
        for (name, value) in [("PATH", DEFAULT_PATH), ("HOME", &user.home)] {
            if lookup(&env, name).is_none() {
                env.push(format!("{name}={value}"));
            }
        }
        Self { command: sandbox.command.clone(), env }
    }

    /// The program itself, or its name in each folder of PATH.
    fn candidates(&self) -> Vec<String> {
        let Some(program) = self.command.first() else { return Vec::new() };
        if program.contains('/') {
            return vec![program.clone()];
        }
        let folders = lookup(&self.env, "PATH").unwrap_or(DEFAULT_PATH).split(':');
        folders.map(|folder| format!("{}/{program}", if folder.is_empty() { "." } else { folder })).collect()
    }

    fn spawn(&self) -> io::Result<Child> {
        let variables = self.env.iter().filter_map(|variable| variable.split_once('='));
        let mut programs = self.candidates();
        programs
            .retain(|program| !fs::metadata(program).is_err_and(|it| it.kind() == io::ErrorKind::NotFound));
        // Like a shell: a name that is not executable counts only if there is no other.
        let is_executable = |program: &&String| {
            fs::metadata(program).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
        };
        let program = programs.iter().find(is_executable).or(programs.first());
        let mut command = Command::new(program.ok_or(io::ErrorKind::NotFound)?);
        command.args(&self.command[1..]).env_clear().envs(variables);
        command.arg0(&self.command[0]).spawn()
    }
}

/// The value of a variable. The last one counts.
fn lookup<'a>(env: &'a [String], name: &str) -> Option<&'a str> {
    env.iter().rev().find_map(|variable| variable.strip_prefix(name)?.strip_prefix('='))
}

/// Runs the command, and waits for its end, and for that of all processes that lost their parent.
pub(crate) fn run(inside: &Inside, report: &UnixStream) -> Result<ExitCode, SandboxError> {
    let child = inside.spawn().map_err(|source| SandboxError::Command {
        name: inside.command.first().cloned().unwrap_or_default(),
        source,
    })?;
    Report::Started.send(report);
    let number = child.id().cast_signed();
    let status = loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((process, status))) if process.as_raw_nonzero().get() == number => break status,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(crate::error::step("wait for the command")(error)),
        }
    };
    let code = exit_code(status.exit_status(), status.terminating_signal());
    if code != 0 && statvfs("/tmp").is_ok_and(|tmp| tmp.f_bavail == 0 || tmp.f_ffree == 0) {
        Report::TmpIsFull.send(report);
    }
    Ok(ExitCode::from(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_up_in_the_last_path() {
        let inside = |program: &str, env: &[&str]| Inside {
            command: vec![program.to_owned()],
            env: env.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(inside("a/b", &[]).candidates(), ["a/b"]);
        assert_eq!(inside("f", &["PATH=/x", "PATH=/y::/z"]).candidates(), ["/y/f", "./f", "/z/f"]);
        assert_eq!(inside("f", &["PATHS=/x"]).candidates().len(), 6);
    }
}
