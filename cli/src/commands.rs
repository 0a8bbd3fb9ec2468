//! The subcommands and how they are found.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use porch_fn_service::flags;

use crate::{config, eval, shards, up};

/// The first argument by which porch-fn starts itself as a local pod's wrapper-server.
pub(crate) const WRAPPER_SERVER: &str = "__wrapper-server";
/// The first argument by which it starts itself as one of the example functions; the next one names it.
pub(crate) const EXAMPLE_FUNCTION: &str = "__function";

/// Runs KRM functions through a sharded function runner for Porch: try it on this machine, evaluate packages, look at
/// shards.
#[derive(Debug, Parser)]
#[command(name = "porch-fn", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a whole cluster in this process: a router, runners, and pods as local processes
    Up(up::Args),
    /// Run one function on a package and print or write back the result
    Eval(eval::Args),
    /// Show the runners behind a router, their health and load, and which images they own
    Shards(shards::Args),
    /// Show what holds for one image on a runner, and which flag, file or FunctionConfig says so
    Config(config::Args),
}

/// Runs the command line `args`, program name included, and returns the exit code.
pub fn run(args: Vec<OsString>) -> ExitCode {
    match args.get(1).and_then(|first| first.to_str()) {
        Some(WRAPPER_SERVER) => return wrapper_server::run(args.into_iter().skip(1)),
        Some(EXAMPLE_FUNCTION) => {
            let name = args.get(2).and_then(|name| name.to_str()).unwrap_or_default();
            return example_functions::run(name);
        }
        _ => (),
    }
    let cli: Cli = match flags::parse(args) {
        Ok(cli) => cli,
        Err(error) => return error.report(),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("porch-fn: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        match cli.command {
            Command::Up(args) => up::run(args).await,
            Command::Eval(args) => eval::run(args).await,
            Command::Shards(args) => shards::run(args).await,
            Command::Config(args) => config::run(args).await,
        }
    })
}
