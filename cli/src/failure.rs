//! The error type of all subcommands: a text for the user and an exit code. No caller distinguishes
//! failures, so `?` converts any error to this type.

use std::error::Error;
use std::fmt::{self, Display};
use std::process::ExitCode;

use porch_fn_flags::EXIT_USAGE;

use crate::output::{escaped, note};

/// Exit codes of all subcommands. [`HELP`] describes them in `porch-fn --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The function failed, or its result cannot be used. In other commands: the command failed.
    Failed = 1,
    /// The call got no answer of a function runner, or a cluster could not be reached.
    Unreachable = 2,
    /// `doctor` found problems.
    Problems = 3,
    /// Wrong arguments or input.
    Usage = EXIT_USAGE as isize,
}

/// The exit codes in `porch-fn --help`.
pub(crate) const HELP: &str = "Exit codes:\n  \
     0   success\n  \
     1   the function or the command failed\n  \
     2   the call or the cluster could not be reached\n  \
     3   doctor found problems\n  \
     64  wrong arguments or input";

/// Reason why a subcommand failed.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    code: ExitCode,
}

// === impl Exit ===

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // All codes are below 256.
        Self::from(exit as u8)
    }
}

// === impl Failure ===

impl Failure {
    pub(crate) fn new(text: impl Display) -> Self {
        Self::with_code(text, Exit::Failed)
    }

    /// Creates an error of the command line or of the user's input.
    pub(crate) fn usage(text: impl Display) -> Self {
        Self::with_code(text, Exit::Usage)
    }

    /// Creates an error of the way to a server or a cluster.
    pub(crate) fn unreachable(text: impl Display) -> Self {
        Self::with_code(text, Exit::Unreachable)
    }

    /// The text may quote an image, an archive or a server, so it becomes safe for the terminal.
    pub(crate) fn with_code(text: impl Display, code: impl Into<ExitCode>) -> Self {
        Self::of_lines(escaped(&text.to_string()), code)
    }

    /// The text is safe for the terminal, or the user wants it as it is.
    pub(crate) fn of_lines(text: String, code: impl Into<ExitCode>) -> Self {
        Self { text, code: code.into() }
    }

    /// Prints why `subcommand` failed, and returns the exit code.
    pub(crate) fn report(&self, subcommand: &str) -> ExitCode {
        note(format_args!("porch-fn {subcommand}: {self}"));
        self.code
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> ExitCode {
        self.code
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
