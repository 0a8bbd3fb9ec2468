//! The subcommands and how they are found.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::output::HELP;
use crate::up::{EXAMPLE_FUNCTION, WRAPPER_SERVER};
use crate::{completion, config, doctor, eval, exec_config, porch_config, shards, up};

/// How porch-fn's own --help reads.
const ROOT_HELP: &str = "{about-with-newline}\nCommands:\n{subcommands}\n\nOptions:\n{options}\n\nUsage:\n  porch-fn COMMAND \
                         [flags]\n\nUse \"porch-fn COMMAND --help\" for more about a command.\n";

/// Runs KRM functions through a sharded function runner for Porch: try it on this machine, evaluate packages, look after
/// an installation.
#[derive(Debug, Parser)]
#[command(name = "porch-fn", version, arg_required_else_help = true, help_template = ROOT_HELP)]
#[command(disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a whole cluster in this process: a router, runners, and pods as local processes
    #[command(help_template = HELP, before_help = UP)]
    Up(up::UpArgs),
    /// Run one function on a package and print or write back the result
    #[command(help_template = HELP, before_help = EVAL)]
    Eval(eval::EvalArgs),
    /// Show the runners behind a router, their health and load, and which images they own
    #[command(help_template = HELP, before_help = SHARDS)]
    Shards(shards::ShardsArgs),
    /// Show what holds for one image on a runner, and which flag, file or FunctionConfig says so
    #[command(help_template = HELP, before_help = CONFIG)]
    Config(config::ConfigArgs),
    /// Look over an installation in a cluster, and say of everything that is wrong what to do about it
    #[command(help_template = HELP, before_help = DOCTOR)]
    Doctor(doctor::DoctorArgs),
    /// Print FunctionConfigs that lead the functions of a porch-server that evaluates in pods to the routers, or back
    #[command(subcommand, help_template = HELP, before_help = PORCH_CONFIG, disable_help_subcommand = true)]
    #[command(arg_required_else_help = true)]
    PorchConfig(porch_config::Action),
    /// Print the runners' --config for a folder of executables of the functions catalog
    #[command(help_template = HELP, before_help = EXEC_CONFIG)]
    ExecConfig(exec_config::ExecConfigArgs),
    /// Print a script that completes commands and flags in bash, zsh, fish, elvish or PowerShell
    #[command(help_template = HELP, before_help = COMPLETION)]
    Completion(completion::CompletionArgs),
}

const UP: &str = "\
Examples:
  # A router, three runners and two example functions
  porch-fn up

  # Functions of your own, for a Porch elsewhere
  porch-fn up --local-functions functions.yaml --address 0.0.0.0";
const EVAL: &str = "\
Examples:
  # A function on a package directory; the result is printed
  porch-fn eval --image set-namespace:v0.4.5 --package ./app -- namespace=prod

  # In a cluster, through the same Service as Porch; the result is written back
  porch-fn eval -n porch-system --image set-namespace:v0.4.5 --package ./app --write -- namespace=prod

  # A ResourceList
  porch-fn eval --image kubeconform:v0.1.1 --package - < list.yaml";
const SHARDS: &str = "\
Examples:
  # Of porch-fn up
  porch-fn shards

  # In a cluster
  porch-fn shards -n porch-system

  # Everything, for a script
  porch-fn shards -n porch-system -o json";
const CONFIG: &str = "\
Examples:
  # What holds for an image, and why
  porch-fn config -n porch-system set-namespace:v0.4.5";
const DOCTOR: &str = "\
Examples:
  # Namespace porch-system of kubectl's cluster; ends with 1 when there are problems
  porch-fn doctor

  # For a script
  porch-fn doctor --context prod -o json

  # What Porch's own function runner has left behind: lists it, asks, and deletes it
  porch-fn doctor --clean-legacy";
const PORCH_CONFIG: &str = "\
Examples:
  # All functions that have a FunctionConfig
  porch-fn porch-config generate | kubectl apply -f -

  # Two that have none
  porch-fn porch-config generate my-function example.com/functions/mine | kubectl apply -f -

  # The way back; it names the new objects, which are to be deleted
  porch-fn porch-config remove | kubectl apply -f -";
const EXEC_CONFIG: &str = "\
Examples:
  # Of the executables in Porch's image
  porch-fn exec-config ./functions > config.yaml

  # Of another version
  porch-fn exec-config ./functions --tag set-labels=v0.1.5";
const COMPLETION: &str = "\
Examples:
  # In this shell
  source <(porch-fn completion bash)

  # In every fish
  porch-fn completion fish > ~/.config/fish/completions/porch-fn.fish";

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
    let cli: Cli = match porch_fn_flags::parse(args) {
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
    let (subcommand, done) = runtime.block_on(async {
        match cli.command {
            Command::Up(args) => ("up", up::run(args).await),
            Command::Eval(args) => ("eval", eval::run(args).await),
            Command::Shards(args) => ("shards", shards::run(args).await),
            Command::Config(args) => ("config", config::run(args).await),
            Command::Doctor(args) => (args.name(), doctor::run(args).await),
            Command::PorchConfig(action) => ("porch-config", porch_config::run(&action).await),
            Command::ExecConfig(args) => ("exec-config", exec_config::run(&args)),
            Command::Completion(args) => ("completion", Ok(completion::run(&args, Cli::command()))),
        }
    });
    done.unwrap_or_else(|failure| failure.report(subcommand))
}
