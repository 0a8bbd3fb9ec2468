//! The wrapper-server's process. Everything is in the library, which porch-fn runs in itself as
//! well.

use std::process::ExitCode;

fn main() -> ExitCode {
    wrapper_server::run(std::env::args_os())
}
