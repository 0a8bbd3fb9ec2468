//! One line for each of clap's errors: which flag, and what it accepts.
//!
//! clap's own texts run over several lines with usage and hints. In a pod's log, one line that names the
//! flag is what gets found.

use std::{
    error::Error as _,
    ffi::OsString,
    net::AddrParseError,
    num::{IntErrorKind, ParseFloatError, ParseIntError},
};

use clap::{
    Arg, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::values::{plain, quote};

/// The line for `error`, without the program's name. `args` are the normalised arguments.
pub(super) fn describe(error: &clap::Error, command: &Command, args: &[OsString]) -> String {
    let flag = || flag_name(&text(error, ContextKind::InvalidArg));
    match error.kind() {
        ErrorKind::UnknownArgument => unknown(error),
        ErrorKind::InvalidSubcommand
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => subcommand(error, command),
        ErrorKind::ValueValidation => {
            format!("{}: {}{}", flag(), bad_value(error), environment(&flag(), command, args))
        }
        ErrorKind::InvalidValue => {
            format!("{}: {}{}", flag(), not_one_of(error), environment(&flag(), command, args))
        }
        ErrorKind::InvalidUtf8 => match args.iter().find(|arg| arg.to_str().is_none()) {
            Some(arg) => format!("{} is not valid UTF-8", quote(&arg.to_string_lossy())),
            None => "a value is not valid UTF-8".to_owned(),
        },
        ErrorKind::MissingRequiredArgument => {
            let missing = list(error, ContextKind::InvalidArg, flag_name).join(", ");
            if missing.starts_with('<') {
                // The name of an argument that is no flag does not show where it goes.
                let usage = command.clone().render_usage().to_string();
                format!("{missing} must be set; usage: {}", plain(usage.trim_start_matches("Usage: ")))
            } else {
                format!("{missing} must be set; see --help")
            }
        }
        ErrorKind::ArgumentConflict => {
            let prior = list(error, ContextKind::PriorArg, flag_name).join(", ");
            format!("{} cannot be set together with {prior}", flag())
        }
        // What is left says how many values a flag takes; clap's first line is to the point.
        _ => {
            let rendered = error.render().to_string();
            let line = rendered.lines().next().unwrap_or_default();
            format!("{}; see --help", plain(line.strip_prefix("error: ").unwrap_or(line)))
        }
    }
}

fn unknown(error: &clap::Error) -> String {
    let arg = text(error, ContextKind::InvalidArg);
    if arg == "-" || !arg.starts_with('-') {
        return format!("unexpected argument {}; flags are written --name=value, see --help", quote(&arg));
    }
    let suggestion = text(error, ContextKind::SuggestedArg);
    if suggestion.is_empty() {
        format!("unknown flag {}; see --help", plain(&arg))
    } else {
        format!("unknown flag {} (did you mean {}?); see --help", plain(&arg), flag_name(&suggestion))
    }
}

fn subcommand(error: &clap::Error, command: &Command) -> String {
    let mut known = list(error, ContextKind::ValidSubcommand, str::to_owned);
    if known.is_empty() {
        let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
        known = commands.map(|command| command.get_name().to_owned()).collect();
    }
    let known = known.join(", ");
    match text(error, ContextKind::InvalidSubcommand) {
        given if given.is_empty() => format!("a command is missing; use one of {known}"),
        given => format!("unknown command {}; use one of {known}", quote(&given)),
    }
}

fn bad_value(error: &clap::Error) -> String {
    let value = quote(&text(error, ContextKind::InvalidValue));
    let Some(source) = error.source() else { return format!("{value} is not accepted; see --help") };
    if let Some(int) = source.downcast_ref::<ParseIntError>() {
        return match int.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => format!("{value} is out of range"),
            _ => format!("{value} is not a whole number"),
        };
    }
    if source.is::<ParseFloatError>() {
        return format!("{value} is not a number");
    }
    if source.is::<AddrParseError>() {
        return format!("{value} is not an IP address; use forms such as 0.0.0.0 or ::");
    }
    let reason = plain_line(&source.to_string());
    // clap's parser of bounded integers gives only these texts, and no type to tell them by.
    if reason == "invalid digit found in string" || reason == "cannot parse integer from empty string" {
        return format!("{value} is not a whole number");
    }
    if let Some((_, range)) = reason.split_once(" is not in ") {
        return format!("{value} is out of range; use {range}");
    }
    // Our own parsers quote the value themselves.
    if reason.contains(&value) { reason } else { format!("{value} is not accepted: {reason}") }
}

fn not_one_of(error: &clap::Error) -> String {
    let accepted = list(error, ContextKind::ValidValue, str::to_owned).join(", ");
    let value = text(error, ContextKind::InvalidValue);
    match (value.is_empty(), accepted.is_empty()) {
        (true, true) => "a value is missing; write --name=value".to_owned(),
        (true, false) => format!("a value is missing; use one of {accepted}"),
        (false, true) => format!("{} is not accepted; see --help", quote(&value)),
        (false, false) => format!("{} is not accepted; use one of {accepted}", quote(&value)),
    }
}

/// A hint for a value that the user did not write on the command line.
fn environment(flag: &str, command: &Command, args: &[OsString]) -> String {
    let given = |arg: &OsString| {
        let rest = arg.to_str().and_then(|arg| arg.strip_prefix(flag));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let variable = find(command, flag).and_then(Arg::get_env);
    match variable {
        Some(variable) if !args.iter().any(given) => {
            format!(" (from the environment variable {})", variable.to_string_lossy())
        }
        _ => String::new(),
    }
}

fn find<'a>(command: &'a Command, flag: &str) -> Option<&'a Arg> {
    let long = flag.strip_prefix("--")?;
    command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(long))
        .or_else(|| command.get_subcommands().find_map(|command| find(command, flag)))
}

/// `--pod-ttl <POD_TTL>` and `--warm-up[=<true|false>]` as `--pod-ttl` and `--warm-up`.
fn flag_name(shown: &str) -> String {
    let end = if shown.starts_with('-') { shown.find([' ', '[', '=']) } else { None };
    plain(&shown[..end.unwrap_or(shown.len())])
}

fn plain_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

fn text(error: &clap::Error, kind: ContextKind) -> String {
    list(error, kind, str::to_owned).into_iter().next().unwrap_or_default()
}

fn list(error: &clap::Error, kind: ContextKind, map: impl Fn(&str) -> String) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(one)) => vec![map(one)],
        Some(ContextValue::Strings(many)) => many.iter().map(|one| map(one)).collect(),
        _ => Vec::new(),
    }
}
