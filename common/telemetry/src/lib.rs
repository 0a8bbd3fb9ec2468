//! Logs events with fields to standard error, at klog's verbosity levels. Also trace context and
//! spans of calls.

mod causes;
mod json;
pub mod span;
pub mod trace_context;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write as _};
use std::net::SocketAddr;

use porch_fn_flags::LogFormat;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::json::JsonLines;

pub use self::causes::Causes;

/// Reports the start of a program, also if its log's level is low.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    program: &'static str,
    format: LogFormat,
}

/// Installs the global subscriber, and logs panics to it. A second call is ignored, so that several
/// servers can run in one process.
///
/// `level` is `--log-level`, from 0 to 5 like in Porch's runner: 0 errors, 1 warnings, 2 and 3
/// events, 4 details of calls, 5 everything including HTTP/2. No level logs package contents or
/// environments.
pub fn init(program: &'static str, level: u8, format: LogFormat) -> Log {
    let (ours, theirs) = match level {
        0 => (LevelFilter::ERROR, LevelFilter::ERROR),
        1 => (LevelFilter::WARN, LevelFilter::WARN),
        2 | 3 => (LevelFilter::INFO, LevelFilter::WARN),
        4 => (LevelFilter::DEBUG, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    // A peer's faults are warnings of h2, one for each frame. Our own log has one line for each peer.
    let http2 = if level < 5 { LevelFilter::ERROR } else { theirs };
    // Prefixes of targets. The first covers all of our crates except the wrapper-server.
    let targets = [("porch_fn", ours), ("wrapper_server", ours), ("h2", http2)];
    let filter = Targets::new().with_default(theirs).with_targets(targets);
    let lines = match format {
        // Targets are paths of Rust modules, which mean nothing to users.
        LogFormat::Text => tracing_subscriber::fmt::layer()
            .with_target(false)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .boxed(),
        LogFormat::Json => JsonLines(io::stderr).boxed(),
    };
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        log_panics();
    }
    Log { program, format }
}

/// Logs panics with the span in which they happen.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        let error = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(at, error, "a thread panicked");
    }));
}

// === impl Log ===

impl Log {
    /// Prints the server's addresses on standard output. Parent processes and tests read them
    /// there. Without `address`, the server has a Unix socket, and the parent process knows it.
    pub fn listening(&self, address: Option<SocketAddr>, admin_address: Option<SocketAddr>) {
        let address = address.map_or_else(|| "a Unix socket".to_owned(), |address| address.to_string());
        match self.format {
            LogFormat::Text => {
                let admin = admin_address.map(|admin| format!(", admin on {admin}")).unwrap_or_default();
                println!("{}: listening on {address}{admin}", self.program);
            }
            LogFormat::Json => {
                let mut line = json::object("INFO", "listening".into());
                line.insert("address".to_owned(), address.into());
                if let Some(admin) = admin_address {
                    line.insert("admin_address".to_owned(), admin.to_string().into());
                }
                json::write(io::stdout(), line);
            }
        }
    }

    /// Reports why the program does not run.
    pub fn failed(&self, error: &dyn Display) {
        match self.format {
            LogFormat::Text => {
                let _ = writeln!(io::stderr(), "{}: {error}", self.program);
            }
            LogFormat::Json => tracing::error!(%error, "{} does not start", self.program),
        }
    }
}
