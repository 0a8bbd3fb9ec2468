//! `porch-fn completion`: prints a script with which a shell completes subcommands and flags.

use std::io::Write as _;
use std::process::ExitCode;

use clap_complete::Shell;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// The shell that is to read it
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for `command`.
pub(crate) fn run(args: &CompletionArgs, mut command: clap::Command) -> ExitCode {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    // Do not panic if the shell has closed the pipe.
    std::io::stdout().write_all(&script).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}
