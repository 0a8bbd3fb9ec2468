//! Displays what a slow operation waits for.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use crate::output::note;

/// How long an operation may take before the message is displayed.
const SILENT: Duration = Duration::from_secs(1);

/// Waits for `work`. After [`SILENT`], prints `what` on standard error if that is a terminal.
pub(crate) async fn report_if_slow<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Ok(done) = timeout(SILENT, &mut work).await {
        return done;
    }
    if std::io::stderr().is_terminal() {
        note(format_args!("{what} ..."));
    }
    work.await
}
