//! Two small KRM functions that are part of porch-fn, a mutator and a validator. With them a new
//! user can evaluate a package offline. They are not copies of functions of kpt's catalog.
//!
//! They follow the KRM functions specification. A function reads a ResourceList from standard input
//! and writes the changed list, with structured results, to standard output. It writes messages to
//! standard error. Unlike functions that use kpt's SDKs, these do not keep comments.

mod annotate;
mod require_resources;
mod resource_list;

use std::io::{Read, Write};
use std::process::ExitCode;

pub use annotate::annotate;
pub use require_resources::require_resources;
pub use resource_list::ResourceList;

/// Limit of the input in bytes. Runners send less.
const MAX_INPUT: u64 = 256 * 1024 * 1024;

/// Runs the function of this name on standard input and output. Returns the program's exit code.
pub fn run(name: &str) -> ExitCode {
    let function = match name {
        "annotate" => annotate,
        "require-resources" => require_resources,
        _ => {
            eprintln!("there is no example function {name:?}; use annotate or require-resources");
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

/// Returns whether the function accepted the package.
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
