//! The wrapper-server's process. The library contains all code, because porch-fn runs it in its own
//! process too.

use std::process::ExitCode;

fn main() -> ExitCode {
    wrapper_server::run(std::env::args_os())
}
