//! The error type of all subcommands: a text for the user and an exit code. No caller distinguishes
//! failures, so `?` converts any error to this type.

use std::error::Error;
use std::fmt::{self, Display};
use std::process::ExitCode;

use porch_fn_flags::EXIT_USAGE;

/// Reason why a subcommand failed.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    code: ExitCode,
}

// === impl Failure ===

impl Failure {
    pub(crate) fn new(text: impl Display) -> Self {
        Self::with_code(text, ExitCode::FAILURE)
    }

    /// Creates a command-line error, with exit code 64. Other errors, such as a failed function,
    /// have exit code 1.
    pub(crate) fn usage(text: impl Display) -> Self {
        Self::with_code(text, ExitCode::from(EXIT_USAGE))
    }

    pub(crate) fn with_code(text: impl Display, code: ExitCode) -> Self {
        Self { text: text.to_string(), code }
    }

    /// Prints why `subcommand` failed, and returns the exit code.
    pub(crate) fn report(&self, subcommand: &str) -> ExitCode {
        eprintln!("porch-fn {subcommand}: {self}");
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
