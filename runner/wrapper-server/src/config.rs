//! The wrapper's flags.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::Parser;
use porch_fn_service::flags::GoDuration;

/// Serves one KRM function over gRPC: starts it once per call, with the ResourceList on its standard input.
///
/// Runs as the entry point of a function pod, with the function's own entry point behind "--".
#[derive(Debug, Clone, Parser)]
#[command(name = "wrapper-server", version, override_usage = "wrapper-server [FLAGS] -- ENTRYPOINT [ARG...]")]
pub struct Flags {
    /// Address to listen on; all interfaces when not given
    #[arg(long)]
    pub address: Option<IpAddr>,
    /// Port for function calls and gRPC health; 0 takes any and prints it
    #[arg(long, default_value_t = 9446)]
    pub port: u16,
    /// Largest request and answer in bytes
    #[arg(long, default_value_t = 6_291_456)]
    pub max_request_body_size: usize,
    /// Calls at once; more are refused, and the runner tries elsewhere
    #[arg(long, default_value_t = 64)]
    pub max_concurrent_calls: usize,
    /// How long a call may take whose caller sets no deadline
    #[arg(long, default_value = "5m")]
    pub request_timeout: GoDuration,
    /// How long calls in flight may take after SIGTERM
    #[arg(long, default_value = "5m")]
    pub drain_timeout: GoDuration,
    /// Log verbosity: 0 errors, 1 warnings, 2 events, 4 calls, 5 everything
    #[arg(long, default_value_t = porch_fn_service::telemetry::DEFAULT_LOG_LEVEL, value_parser = clap::value_parser!(u8).range(0..=5))]
    pub verbosity: u8,
    /// End, calls in flight included, when standard input does: for whoever starts it as a child process
    #[arg(long, default_value_t = false)]
    pub exit_with_stdin: bool,
    /// The function's entry point and its arguments
    #[arg(last = true, required = true, value_name = "ENTRYPOINT")]
    pub entrypoint: Vec<OsString>,
}
