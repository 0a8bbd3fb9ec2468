//! Logs events with fields to standard error, at klog's verbosity levels. Also trace context and
//! spans of calls.

mod causes;
pub mod span;
pub mod trace_context;

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use porch_fn_lifecycle::tasks;

pub use self::causes::Causes;

/// Installs the global subscriber, and logs panics to it. A second call is ignored, so that several
/// servers can run in one process.
///
/// `level` is `--log-level`, from 0 to 5 like in Porch's runner: 0 errors, 1 warnings, 2 and 3
/// events, 4 details of calls, 5 everything including HTTP/2. No level logs package contents or
/// environments.
pub fn init(level: u8) {
    let (ours, theirs) = match level {
        0 => (LevelFilter::ERROR, LevelFilter::ERROR),
        1 => (LevelFilter::WARN, LevelFilter::WARN),
        2 | 3 => (LevelFilter::INFO, LevelFilter::WARN),
        4 => (LevelFilter::DEBUG, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    // Prefixes of targets. The first covers all of our crates except the wrapper-server.
    let targets = [("porch_fn", ours), ("wrapper_server", ours)];
    let filter = Targets::new().with_default(theirs).with_targets(targets);
    let format = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if tracing_subscriber::registry().with(filter).with(format).try_init().is_ok() {
        tasks::log_panics();
    }
}
