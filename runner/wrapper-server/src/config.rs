//! The wrapper's flags.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Parser;
use porch_fn_flags::{FlagError, GoDuration, Ignored, LogFormat};

pub(crate) const NAME: &str = "wrapper-server";
const USAGE: &str = "wrapper-server [FLAGS] -- ENTRYPOINT [ARG...]";

/// Serves one KRM function over gRPC: starts it once per call, with the ResourceList on its
/// standard input.
///
/// Runs as the entry point of a function pod, with the function's own entry point after "--". For
/// Porch's pod templates, the program has two other names. As "cp" it copies files in init
/// containers: cp -a SOURCE... DESTINATION. As "grpc-health-probe" it asks a server for its health:
/// grpc-health-probe -addr IP:PORT.
#[derive(Debug, Clone, Parser)]
#[command(name = NAME, version = porch_fn_version::VERSION, override_usage = USAGE)]
pub struct Flags {
    /// IP address to listen on.
    ///
    /// Default: all interfaces
    #[arg(long, value_name = "IP", help_heading = "Listeners")]
    pub address: Option<IpAddr>,
    /// Port for function calls and gRPC health.
    ///
    /// 0 means any free port, which the program prints
    #[arg(long, value_name = "PORT", default_value_t = 9446, help_heading = "Listeners")]
    pub port: u16,
    /// Largest request and answer in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 6_291_456, help_heading = "Limits")]
    pub max_request_body_size: usize,
    /// Most calls at the same time; more are refused, and the runner tries another pod
    #[arg(long, value_name = "COUNT", default_value_t = 64, help_heading = "Limits")]
    pub max_concurrent_calls: usize,
    /// Deadline of calls that come without one
    #[arg(long, value_name = "DURATION", default_value = "5m", help_heading = "Limits")]
    pub request_timeout: GoDuration,
    /// How long calls in flight may take to finish after SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "5m", help_heading = "Shutdown")]
    pub drain_timeout: GoDuration,
    /// Log verbosity: 0 errors, 1 warnings, 2 events, 4 calls, 5 everything
    #[arg(long, value_name = "LEVEL", default_value_t = porch_fn_flags::DEFAULT_LOG_LEVEL, value_parser = clap::value_parser!(u8).range(0..=5), help_heading = "Logs")]
    pub verbosity: u8,
    /// Format of log lines; json has one object in each line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t, help_heading = "Logs")]
    pub log_format: LogFormat,
    /// Join the lines of the function's standard error with " | ", in the log and in error texts
    #[arg(long, default_value_t = false)]
    pub flatten_log: bool,
    /// Exit when standard input is closed, also while calls are in flight. This is for a parent
    /// process that starts the program as its child
    #[arg(long, default_value_t = false)]
    pub exit_with_stdin: bool,
    /// Instead of serving: copy this executable to DIR/wrapper-server and exit
    #[arg(long, value_name = "DIR")]
    pub copy_to: Option<PathBuf>,
    /// Instead of serving: do nothing until SIGTERM. This keeps a container running while its hook
    /// runs --copy-to
    #[arg(long, default_value_t = false)]
    pub idle: bool,
    /// The function's entry point and its arguments
    #[arg(last = true, value_name = "ENTRYPOINT")]
    pub entrypoint: Vec<OsString>,
}

impl Flags {
    /// Parses the process's arguments. To serve, an entry point is required. Unknown arguments
    /// before `--` are returned and are no error. They come from a user's pod template, which may
    /// be made for another version of Porch. An error would prevent the start of every pod.
    pub(crate) fn from_args(args: impl IntoIterator<Item = OsString>) -> Result<(Self, Ignored), FlagError> {
        let (flags, ignored) = porch_fn_flags::parse_leniently::<Self>(args)?;
        if flags.entrypoint.is_empty() && flags.copy_to.is_none() && !flags.idle {
            return Err(FlagError::usage(NAME, format!("<ENTRYPOINT>... must be set; usage: {USAGE}")));
        }
        Ok((flags, ignored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_args(args: &[&str]) -> Result<(Flags, Ignored), FlagError> {
        Flags::from_args(std::iter::once(&"wrapper-server").chain(args).map(OsString::from))
    }

    #[test]
    fn unknown_arguments_are_ignored() {
        let args =
            ["--otel=x", "--prestart", "--flatten-log", "--new", "value", "-v", "4", "--n=", "--port", "1"];
        let entrypoint = ["--", "f", "--unknown", "value", "--", "--port=2"];
        let (flags, ignored) = from_args(&[&args[..], &entrypoint].concat()).unwrap();
        assert_eq!((flags.flatten_log, flags.port), (true, 1));
        assert_eq!(flags.entrypoint, entrypoint[1..]);
        let names = ["--otel", "--prestart", "--new", "-v", "--n"].map(str::to_owned);
        assert_eq!(ignored, Ignored { flags: names.into(), words: 2 }, "no values: they may be secrets");
        let (flags, ignored) = from_args(&["--flatten-log=false", "--", "f"]).unwrap();
        assert_eq!((flags.flatten_log, ignored), (false, Ignored::default()));
    }

    #[test]
    fn bad_values_of_known_flags_are_errors() {
        for (args, expected) in [
            (
                &["--new", "--port=many", "--", "f"][..],
                "wrapper-server: invalid value 'many' for '--port <PORT>': invalid digit found in string",
            ),
            (&["--=x", "--", "f"], "wrapper-server: \"--=x\" is not a flag; flags are written --name=value"),
        ] {
            assert_eq!(from_args(args).unwrap_err().to_string(), expected);
        }
        // Unknown words do not count as an entry point.
        let error = from_args(&["--new", "f"]).unwrap_err().to_string();
        assert!(error.contains("<ENTRYPOINT>... must be set"), "{error}");
    }
}
