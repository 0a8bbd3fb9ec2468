//! The porch-fn process. All code is in the library.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    porch_fn::run(std::env::args_os().collect())
}
