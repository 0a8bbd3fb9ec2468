//! Rewrites Go's spellings of a flag to `--name=value`, which clap parses to the same value.
//!
//! The command's flags decide which arguments are values. In `-functions -x`, `-x` is the value,
//! since `--functions` takes one. In `-warm-up x`, `x` is not a value, since `--warm-up` is a
//! boolean.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
};

use clap::{Arg, ArgAction, Command};

use super::Ignored;
use super::values::{QUOTE_LIMIT, one_line, quote};

/// Rewrites `args` (without the program's name) for `command`, which must have been built.
///
/// Known flags become `--name` or `--name=value`. Positional arguments, unknown flags and
/// everything after `--` or in a place for another program's arguments stay, so that clap checks
/// them. An unknown flag of several letters gets
/// two dashes, since clap would read `-abc` as three one-letter flags. With `ignored`, positional
/// arguments and unknown flags before `--` are recorded there instead. Fails for an argument with
/// dashes that cannot be a flag, such as `--=x`.
pub(super) fn normalise(
    command: &Command,
    args: impl IntoIterator<Item = OsString>,
    mut ignored: Option<&mut Ignored>,
) -> Result<Vec<OsString>, String> {
    let mut command = command;
    let mut places = command.get_positionals();
    let mut args = args.into_iter();
    let mut out = Vec::new();
    while let Some(arg) = args.next() {
        let Some((name, value)) = split_flag(&arg)? else {
            if let Some(subcommand) = command.find_subcommand(&arg) {
                command = subcommand;
                places = command.get_positionals();
            } else if arg == "--" || places.next().is_some_and(Arg::is_trailing_var_arg_set) {
                out.push(arg);
                out.extend(args);
                break;
            } else if let Some(ignored) = &mut ignored {
                ignored.words += 1;
                continue;
            }
            out.push(arg);
            continue;
        };
        let Some((flag, mut spelled)) = name.to_str().and_then(|name| find(command, name)) else {
            match &mut ignored {
                Some(ignored) => {
                    let given = arg.to_string_lossy();
                    let name = given.split('=').next().unwrap_or_default();
                    ignored.flags.push(one_line(name, QUOTE_LIMIT));
                }
                None => out.push(unknown(&arg, name)),
            }
            continue;
        };
        let next = || if takes_value(flag) { args.next() } else { None };
        let value = value.map(OsStr::to_owned).or_else(next);
        if let Some(value) = value {
            spelled.push("=");
            spelled.push(value);
        }
        out.push(spelled);
    }
    Ok(out)
}

/// Splits `-name`, `--name`, `-name=value` and `--name=value` into name and value. `None`: it is a
/// positional argument, such as `-`, or `--`.
fn split_flag(arg: &OsStr) -> Result<Option<(&OsStr, Option<&OsStr>)>, String> {
    let bytes = arg.as_bytes();
    let Some(body) = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")) else { return Ok(None) };
    if matches!(bytes, b"-" | b"--") {
        return Ok(None);
    }
    if matches!(body.first(), None | Some(b'-' | b'=')) {
        let quoted = quote(&arg.to_string_lossy());
        return Err(format!("{quoted} is not a flag; flags are written --name=value"));
    }
    let (name, value) = match body.iter().position(|byte| *byte == b'=') {
        Some(at) => (&body[..at], Some(OsStr::from_bytes(&body[at + 1..]))),
        None => (body, None),
    };
    Ok(Some((OsStr::from_bytes(name), value)))
}

/// Returns the flag with this long or one-letter name, and clap's spelling of it.
fn find<'a>(command: &'a Command, name: &str) -> Option<(&'a Arg, OsString)> {
    let is_named = |arg: &&Arg| {
        let short = arg.get_short().map(|letter| letter.to_string());
        arg.get_long() == Some(name) || short.as_deref() == Some(name)
    };
    let arg = command.get_arguments().find(is_named)?;
    // clap prints a shorter help for `-h`. All other flags mean the same in both spellings.
    let is_short_help = matches!(arg.get_action(), ArgAction::Help) && arg.get_long() != Some(name);
    let long = arg.get_long().filter(|_| !is_short_help);
    Some((arg, long.map_or_else(|| format!("-{name}"), |long| format!("--{long}")).into()))
}

/// Returns whether the next argument is this flag's value if there is no `=value`.
fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values() && arg.get_num_args().is_none_or(|range| range.min_values() > 0)
}

fn unknown(arg: &OsStr, name: &OsStr) -> OsString {
    let two_dashes = arg.as_bytes().starts_with(b"--");
    let one_letter = name.to_str().is_some_and(|name| name.chars().nth(1).is_none());
    if two_dashes || one_letter {
        return arg.to_owned();
    }
    OsString::from_vec([b"-", arg.as_bytes()].concat())
}
