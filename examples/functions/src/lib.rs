//! Two small KRM functions that come with porch-fn, so that a newcomer's first evaluation works
//! offline: a mutator and a validator. They are examples under names of their own, not copies of
//! kpt's catalog.
//!
//! They follow the KRM functions specification: a ResourceList on standard input, the changed one
//! on standard output (with structured results), words for people on standard error, and an exit
//! code. Unlike functions on kpt's SDKs they do not keep comments.

mod annotate;
mod require_resources;
mod resource_list;

use std::io::{Read, Write};
use std::process::ExitCode;

pub use annotate::annotate;
pub use require_resources::require_resources;
pub use resource_list::ResourceList;

/// Largest input, in bytes: well above what a runner sends.
const MAX_INPUT: u64 = 256 * 1024 * 1024;

/// Runs the function of this name on standard input and output: the whole of a function's `main`.
pub fn run(name: &str) -> ExitCode {
    let function = match name {
        "annotate" => annotate,
        "require-resources" => require_resources,
        _ => {
            eprintln!("there is no example function {name:?}; there are annotate and require-resources");
            return ExitCode::from(64);
        }
    };
    match evaluate(function) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the function accepted the package.
fn evaluate(
    function: fn(&mut ResourceList) -> Result<bool, String>,
) -> Result<bool, Box<dyn std::error::Error>> {
    let mut input = String::new();
    std::io::stdin().lock().take(MAX_INPUT).read_to_string(&mut input)?;
    let mut list = ResourceList::parse(&input)?;
    let accepted = function(&mut list)?;
    std::io::stdout().lock().write_all(list.to_yaml()?.as_bytes())?;
    Ok(accepted)
}
