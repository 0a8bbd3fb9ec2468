//! The example function `annotate` as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    example_functions::run("annotate")
}
