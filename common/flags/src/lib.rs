//! The command line of every binary: clap parses it, in Go's spellings.
//!
//! The binaries replace Go programs, and manifests in the field carry Go's flags. Go's `flag`
//! package and clap differ: Go takes `-port=1` as well as `--port=1`, a boolean never takes the
//! next argument while any other flag always does, and of a repeated flag the last one counts. So
//! [`parse`] rewrites the arguments into the one spelling that means the same to both, and lets
//! clap do the rest.
//!
//! Declare flags with clap's derive as usual. What Go needs is applied to the command by [`parse`]:
//!
//! ```
//! use porch_fn_flags::{CommaList, GoDuration};
//!
//! #[derive(clap::Parser)]
//! #[command(name = "server", version)]
//! struct Flags {
//!     /// A plain `bool` accepts `--warm-up`, `--warm-up=false`, `--warm-up=0` and so on.
//!     #[arg(long, default_value_t = true)]
//!     warm_up: bool,
//!     /// Go's durations: `30m`, `1h30m`, `500ms`.
//!     #[arg(long, default_value = "30m")]
//!     pod_ttl: GoDuration,
//!     /// Comma separated; `--disable=` is the empty list.
//!     #[arg(long, default_value = "")]
//!     disable: CommaList,
//! }
//!
//! let args = ["server", "-pod-ttl", "1h", "--warm-up=f", "--disable=exec,pod"];
//! let flags: Flags = porch_fn_flags::parse(args.map(Into::into))?;
//! assert!(!flags.warm_up);
//! assert_eq!(flags.pod_ttl.to_string(), "1h0m0s");
//! assert_eq!(flags.disable.len(), 2);
//! # Ok::<(), porch_fn_flags::FlagError>(())
//! ```
//!
//! A `Vec` field collects every occurrence, as in clap; in a [`CommaList`] the last one counts.

mod duration;
mod normalise;
mod server;
#[cfg(test)]
mod tests;
mod values;

use self::values::one_line;
use std::{collections::BTreeSet, ffi::OsString, fmt::Display, io::Write as _, process::ExitCode};

use clap::{Arg, ArgAction, ArgMatches, Command, error::ErrorKind, parser::ValueSource};

pub use self::{
    duration::{GoDuration, parse_duration, positive},
    server::ServerFlags,
    values::{CommaList, parse_bool},
};

/// Exit code of a usage error: `EX_USAGE` of sysexits.h.
pub const EXIT_USAGE: u8 = 64;

/// Why [`parse`] returned no flags: the user requested a text, or made a mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct FlagError {
    /// The text of `--help` or `--version`, or one line that names the program, the flag and what
    /// it accepts.
    pub text: String,
    /// The process's exit code: 0 for a text that was requested, else [`EXIT_USAGE`].
    pub exit_code: u8,
}

/// The flags, those of subcommands apart, that the user set on the command line or by an
/// environment variable. Written without dashes.
pub type SetFlags = BTreeSet<String>;

/// Arguments that [`parse_leniently`] left out, without values, which may be secrets: a word behind
/// an unknown flag may be its value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignored {
    /// The names of unknown flags, with their dashes.
    pub flags: Vec<String>,
    /// How many other words there were.
    pub words: usize,
}

/// Parses `args`, whose first item is the program's path (as [`std::env::args_os`] gives it) and is
/// ignored.
///
/// # Errors
/// [`FlagError`], also for help and version.
pub fn parse<T: clap::Parser>(args: impl IntoIterator<Item = OsString>) -> Result<T, FlagError> {
    parse_with_set(args).map(|(flags, _)| flags)
}

/// Like [`parse`], and returns which flags the user set, as opposed to defaults.
///
/// # Errors
/// As [`parse`].
pub fn parse_with_set<T: clap::Parser>(
    args: impl IntoIterator<Item = OsString>,
) -> Result<(T, SetFlags), FlagError> {
    parse_normalised(args, None)
}

/// Like [`parse`], but arguments before `--` that the program does not know are left out, and
/// returned as [`Ignored`].
///
/// # Errors
/// As [`parse`].
pub fn parse_leniently<T: clap::Parser>(
    args: impl IntoIterator<Item = OsString>,
) -> Result<(T, Ignored), FlagError> {
    let mut ignored = Ignored::default();
    let (flags, _) = parse_normalised(args, Some(&mut ignored))?;
    Ok((flags, ignored))
}

fn parse_normalised<T: clap::Parser>(
    args: impl IntoIterator<Item = OsString>,
    ignored: Option<&mut Ignored>,
) -> Result<(T, SetFlags), FlagError> {
    let mut command = go_command(T::command());
    command.build();
    let program = command.get_name().to_owned();
    let args = normalise::normalise(&command, args.into_iter().skip(1), ignored)
        .map_err(|error| FlagError::usage(&program, error))?;
    let argv = std::iter::once(OsString::from(&program)).chain(args);

    command
        .clone()
        .try_get_matches_from(argv)
        .and_then(|matches| Ok((T::from_arg_matches(&matches)?, set_flags(&command, &matches))))
        .map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                FlagError { text: error.render().to_string(), exit_code: 0 }
            }
            _ => FlagError::usage(&program, describe(&error)),
        })
}

/// Longest text of an error, in characters.
const MAX_MESSAGE: usize = 300;

/// clap's own words on one line, without its usage and pointers: one line is what gets found in a
/// pod's log.
fn describe(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command is missing; see --help".to_owned();
    }
    let text = error.render().to_string();
    let end = ["\n\nUsage:", "\n\nFor more information"].into_iter().filter_map(|end| text.find(end)).min();
    let text =
        text[..end.unwrap_or(text.len())].trim_start_matches("error: ").replace("\n\n  tip:", "; tip:");
    one_line(&text.split_whitespace().collect::<Vec<_>>().join(" "), MAX_MESSAGE)
}

fn set_flags(command: &Command, matches: &ArgMatches) -> SetFlags {
    // Help and version are arguments without a place in the matches.
    let is_set = |arg: &&Arg| {
        let mut ids = matches.ids().filter(|id| *id == arg.get_id());
        ids.any(|id| matches.value_source(id.as_str()) != Some(ValueSource::DefaultValue))
    };
    command.get_arguments().filter(is_set).filter_map(Arg::get_long).map(str::to_owned).collect()
}

/// Applies Go's rules to every flag of `command` and its subcommands.
fn go_command(command: Command) -> Command {
    command.args_override_self(true).mut_args(go_bool).mut_subcommands(go_command)
}

/// Gives a boolean flag Go's forms: `--x` and `--x=VALUE`, never `--x VALUE`.
fn go_bool(arg: Arg) -> Arg {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    // clap would add this default itself to a `SetTrue`, but we turn it into a `Set`.
    let default_needed = arg.get_default_values().is_empty();
    let arg = arg
        .action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .value_parser(parse_bool)
        .value_name("true|false");
    if default_needed { arg.default_value("false") } else { arg }
}

// === impl FlagError ===

impl FlagError {
    /// A usage error that is found after parsing, such as a file that does not exist. `message` is
    /// one line that begins with the flag and names what is accepted.
    pub fn usage(program: &str, message: impl Display) -> Self {
        Self { text: format!("{program}: {message}"), exit_code: EXIT_USAGE }
    }

    /// Prints the text to stdout or the error to stderr, and returns the exit code for `main`.
    pub fn report(&self) -> ExitCode {
        // Nothing can be done about a closed stdout or stderr at this point.
        let _ = match self.exit_code {
            0 => writeln!(std::io::stdout(), "{}", self.text.trim_end()),
            _ => writeln!(std::io::stderr(), "{self}"),
        };
        ExitCode::from(self.exit_code)
    }
}
