//! The command line of every program: clap parses it, by the rules of Go's `flag` package.
//!
//! The programs replace Go programs, and existing manifests use Go's flags. Go and clap differ. Go
//! accepts `-port=1` as well as `--port=1`. In Go, a boolean flag never takes the next argument as
//! its value, and every other flag does. Of a repeated flag, the last value counts. So [`parse`]
//! rewrites each argument to a spelling that Go and clap read alike, and then calls clap.
//!
//! Declare flags with clap's derive as usual. [`parse`] applies Go's rules to the command:
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
//!     /// A comma-separated list; `--disable=` is the empty list.
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
//! A `Vec` field collects all occurrences of the flag, like in clap. A [`CommaList`] keeps only the
//! last one.

mod duration;
mod normalise;
mod server;
mod size;
#[cfg(test)]
mod tests;
mod values;

use self::values::one_line;
use std::{collections::BTreeSet, ffi::OsString, fmt::Display, io::Write as _, process::ExitCode};

use clap::{
    Arg, ArgAction, ArgMatches, Command,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

pub use self::{
    duration::{GoDuration, parse_duration, positive},
    server::{DEFAULT_LOG_LEVEL, LogFormat, ServerFlags},
    size::Size,
    values::{CommaList, parse_bool},
};

/// Exit code of a usage error: `EX_USAGE` of sysexits.h.
pub const EXIT_USAGE: u8 = 64;

/// Why [`parse`] returned no flags: the user asked for help or the version, gave no subcommand, or
/// made a mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct FlagError {
    /// The help, the version, or one line with the program, the flag and its accepted
    /// values.
    pub text: String,
    /// The process's exit code: 0 for help and version, else [`EXIT_USAGE`].
    pub exit_code: u8,
}

/// Names, without dashes, of the flags that the user set on the command line or by an environment
/// variable. Flags of subcommands are not included.
pub type SetFlags = BTreeSet<String>;

/// Arguments that [`parse_leniently`] ignored. Values are not stored, since they may be secrets. A
/// word after an unknown flag may be such a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignored {
    /// The names of unknown flags, with their dashes.
    pub flags: Vec<String>,
    /// The number of other words.
    pub words: usize,
}

/// Parses `args`. The first item is the program's path, like in [`std::env::args_os`], and is
/// ignored.
///
/// # Errors
/// [`FlagError`], also for help and version.
pub fn parse<T: clap::Parser>(args: impl IntoIterator<Item = OsString>) -> Result<T, FlagError> {
    parse_with_set(args).map(|(flags, _)| flags)
}

/// Like [`parse`], but also returns which flags the user set.
///
/// # Errors
/// Like [`parse`].
pub fn parse_with_set<T: clap::Parser>(
    args: impl IntoIterator<Item = OsString>,
) -> Result<(T, SetFlags), FlagError> {
    parse_normalised(args, None)
}

/// Like [`parse`], but ignores unknown arguments before `--`, and returns them as [`Ignored`].
///
/// # Errors
/// Like [`parse`].
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
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                FlagError { text: error.render().to_string(), exit_code: 0 }
            }
            _ => FlagError::usage(&program, describe(&error)),
        })
}

/// Maximum length of an error, in bytes.
const MAX_MESSAGE: usize = 300;

/// Returns clap's error on one line, so that it is easy to find in a pod's log. It has the usage
/// only if an argument is missing.
fn describe(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
    let usage = usage.filter(|usage| explains(usage, error));
    let usage = usage.map(|usage| format!("; usage: {usage}")).unwrap_or_default();
    let ends = ["\n\nUsage:", "\n\nFor more information", "\n\n  tip:"];
    let ends = if has_near_suggestion(error) { &ends[..2] } else { &ends };
    let end = ends.iter().filter_map(|end| text.find(end)).min();
    let text = text[..end.unwrap_or(text.len())]
        .trim_start_matches("error: ")
        .replace("\n\n  tip:", "; tip:")
        .replace("\n  tip:", "; tip:");
    one_line(&(text.split_whitespace().collect::<Vec<_>>().join(" ") + &usage), MAX_MESSAGE)
}

/// Returns whether the usage explains the error: an argument is missing, or must be after `--`.
fn explains(usage: &str, error: &clap::Error) -> bool {
    let given = error.get(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::MissingRequiredArgument => true,
        ErrorKind::UnknownArgument => {
            let is_flag = matches!(given, Some(ContextValue::String(given)) if given.starts_with('-'));
            !is_flag && usage.contains("[-- ")
        }
        _ => false,
    }
}

/// Returns whether one of clap's suggestions differs from the user's word by typing errors only.
/// clap also suggests names that merely have many letters in common. Other tips of clap count as
/// near.
fn has_near_suggestion(error: &clap::Error) -> bool {
    let suggested = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    let Some(suggested) = suggested.into_iter().find_map(|kind| error.get(kind)) else { return true };
    let given = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let given = given.into_iter().find_map(|kind| error.get(kind));
    let Some(ContextValue::String(given)) = given else { return true };
    let suggested = match suggested {
        ContextValue::String(one) => std::slice::from_ref(one),
        ContextValue::Strings(several) => several,
        _ => return true,
    };
    let given = given.trim_start_matches('-');
    let errors = (given.chars().count() / 3).max(1);
    let mut names = suggested.iter().map(|name| name.trim_start_matches('-'));
    names.any(|name| name.starts_with(given) || strsim::osa_distance(given, name) <= errors)
}

fn set_flags(command: &Command, matches: &ArgMatches) -> SetFlags {
    // The matches do not contain the arguments help and version.
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
    // For `SetTrue`, clap itself adds the default `false`; for `Set` it does not.
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
    /// Creates a usage error that the program finds after parsing, such as a missing file.
    /// `message` is one line that begins with the flag and names its accepted values.
    pub fn usage(program: &str, message: impl Display) -> Self {
        Self { text: format!("{program}: {message}"), exit_code: EXIT_USAGE }
    }

    /// Prints the text to stdout or the error to stderr, and returns the exit code for `main`.
    pub fn report(&self) -> ExitCode {
        // If stdout or stderr is closed, the error cannot be reported anywhere.
        let _ = match self.exit_code {
            0 => writeln!(std::io::stdout(), "{}", self.text.trim_end()),
            _ => writeln!(std::io::stderr(), "{self}"),
        };
        ExitCode::from(self.exit_code)
    }
}
