//! How the wrapper gets from its own image into a function's container, without an init container: a container
//! that [`idle`]s keeps its volume while its postStart hook calls [`copy_to`], which holds the function back.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use porch_fn_service::lifecycle::StopSignals;

use crate::copy::replace;

/// What the copy is called, and what pod templates start.
const FILE: &str = "wrapper-server";

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
#[error("--copy-to {directory}: {error}; mount a writable volume there")]
pub(crate) struct CopyToError {
    directory: PathBuf,
    error: io::Error,
}

/// Copies this executable into `directory`, so that everybody may run it.
pub(crate) fn copy_to(directory: &Path) -> Result<(), CopyToError> {
    std::env::current_exe()
        .and_then(|executable| replace(&executable, &directory.join(FILE), Some(0o755)))
        .map_err(|error| CopyToError { directory: directory.to_owned(), error })
}

/// Does nothing until SIGTERM or SIGINT.
pub(crate) fn idle() -> ExitCode {
    // One thread, since it stays for as long as the pod.
    let waited = tokio::runtime::Builder::new_current_thread().enable_io().build().and_then(|runtime| {
        runtime.block_on(async {
            let mut signals = StopSignals::catch()?;
            println!("wrapper-server: idle");
            signals.first(std::future::pending()).await;
            Ok(())
        })
    });
    match waited {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "wrapper-server: --idle cannot catch SIGTERM and SIGINT: {error}; raise the pod's limits"
            );
            ExitCode::FAILURE
        }
    }
}
