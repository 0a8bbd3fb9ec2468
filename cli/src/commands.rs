//! Defines the subcommands, and runs the one that the command line names.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tokio::runtime::Builder;

use crate::admin::PageArgs;
use crate::output::{HELP, note, show};
use crate::{bench, config, doctor, eval, exec_config, failure, porch_config, shards, top};
#[cfg(feature = "up")]
use crate::{images, one_shot, shim, up};

/// The program's name.
const NAME: &str = "porch-fn";
/// Template of `porch-fn --help`.
const ROOT_HELP: &str = "{about-with-newline}\nCommands:\n{subcommands}\n\nOptions:\n{options}\n\nUsage:\n  porch-fn COMMAND \
                         [flags]{after-help}\n\nUse \"porch-fn COMMAND --help\" for more about a command.\n";

/// Runs KRM functions through a sharded function runner for Porch: try it on this machine, evaluate
/// packages, check an installation.
#[derive(Debug, Parser)]
#[command(name = NAME, version = porch_fn_version::VERSION, arg_required_else_help = true)]
#[command(help_template = ROOT_HELP, after_help = failure::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(feature = "up")]
    /// Start a router and runners in this process, with local processes as function pods
    #[command(help_template = HELP, before_help = include_str!("commands/examples/up.txt"))]
    Up(up::UpArgs),
    /// Run one function on a package and print or write back the result
    #[command(help_template = HELP, before_help = include_str!("commands/examples/eval.txt"))]
    Eval(Box<eval::EvalArgs>),
    #[cfg(feature = "up")]
    /// Run one function image once, in a sandbox, with this command's standard input and output
    #[command(help_template = HELP, before_help = include_str!("commands/examples/run.txt"))]
    Run(Box<one_shot::RunArgs>),
    #[cfg(feature = "up")]
    /// List, pull, import, export and remove the function images of this machine
    #[command(help_template = HELP, before_help = include_str!("commands/examples/images.txt"), disable_help_subcommand = true)]
    #[command(arg_required_else_help = true)]
    Images(images::ImagesArgs),
    #[cfg(feature = "up")]
    /// Run functions for kpt and kustomize in place of docker, podman or nerdctl
    #[command(subcommand, help_template = HELP, before_help = include_str!("commands/examples/shim.txt"), disable_help_subcommand = true)]
    #[command(arg_required_else_help = true)]
    Shim(shim::Action),
    #[cfg(feature = "up")]
    /// Run kpt, with functions in sandboxes instead of a container engine
    #[command(help_template = HELP, before_help = include_str!("commands/examples/kpt.txt"))]
    Kpt(shim::KptArgs),
    /// Show the runners behind a router, their health and load, and which images they own
    #[command(help_template = HELP, before_help = include_str!("commands/examples/shards.txt"))]
    Shards(PageArgs),
    /// Show which functions are called, and how often they fail, how long they take and wait
    #[command(help_template = HELP, before_help = include_str!("commands/examples/top.txt"))]
    Top(top::TopArgs),
    /// Measure how many calls a router or runner serves, and how long they take
    #[command(help_template = HELP, before_help = include_str!("commands/examples/bench.txt"))]
    Bench(Box<bench::BenchArgs>),
    /// Show the settings for an image, and the flag, file or FunctionConfig that sets each
    #[command(help_template = HELP, before_help = include_str!("commands/examples/config.txt"))]
    Config(config::ConfigArgs),
    /// Check an installation in a cluster, and report how to fix each fault
    #[command(help_template = HELP, before_help = include_str!("commands/examples/doctor.txt"))]
    Doctor(doctor::DoctorArgs),
    /// Print FunctionConfigs that make a porch-server call the routers instead of its own function
    /// pods, or FunctionConfigs that undo this
    #[command(subcommand, help_template = HELP, before_help = include_str!("commands/examples/porch-config.txt"), disable_help_subcommand = true)]
    #[command(arg_required_else_help = true)]
    PorchConfig(porch_config::Action),
    /// Print the runners' --config for a folder of executables of the functions catalog
    #[command(help_template = HELP, before_help = include_str!("commands/examples/exec-config.txt"))]
    ExecConfig(exec_config::ExecConfigArgs),
    /// Print a script that completes commands and flags in bash, zsh, fish, elvish or PowerShell
    #[command(help_template = HELP, before_help = include_str!("commands/examples/completion.txt"))]
    Completion {
        /// The shell that reads the script
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the version, and the commit and its date from which porch-fn was built
    #[command(help_template = HELP)]
    Version,
}

/// Runs the command line `args`, program name included, and returns the exit code.
pub fn run(args: Vec<OsString>) -> ExitCode {
    #[cfg(feature = "up")]
    if let Some(exit) = up::run_child(&args).or_else(|| shim::run_as_engine(&args)) {
        return exit;
    }
    let cli: Cli = match porch_fn_flags::parse(args) {
        Ok(cli) => cli,
        Err(error) => return error.report(),
    };
    let mut threads = match cli.command {
        // A sandbox starts sooner where there are no threads.
        #[cfg(feature = "up")]
        Command::Run(_) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let threads = threads.enable_all().build();
    let Ok(runtime) =
        threads.inspect_err(|error| note(format_args!("porch-fn: cannot start threads: {error}")))
    else {
        return ExitCode::FAILURE;
    };
    let (subcommand, done) = runtime.block_on(async {
        match cli.command {
            #[cfg(feature = "up")]
            Command::Up(args) => ("up", up::run(args).await),
            #[cfg(feature = "up")]
            Command::Images(args) => ("images", images::run(args).await),
            #[cfg(feature = "up")]
            Command::Shim(action) => ("shim", shim::install(action)),
            #[cfg(feature = "up")]
            Command::Kpt(args) => ("kpt", shim::kpt(args)),
            #[cfg(feature = "up")]
            Command::Run(args) => ("run", one_shot::run(*args).await),
            Command::Eval(args) => ("eval", eval::run(*args).await),
            Command::Shards(args) => ("shards", shards::run(args).await),
            Command::Top(args) => ("top", top::run(args).await),
            Command::Bench(args) => ("bench", bench::run(*args).await),
            Command::Config(args) => ("config", config::run(args).await),
            Command::Doctor(args) => ("doctor", doctor::run(args).await),
            Command::PorchConfig(action) => ("porch-config", porch_config::run(&action).await),
            Command::ExecConfig(args) => ("exec-config", exec_config::run(&args)),
            Command::Completion { shell } => ("completion", Ok(print_completion(shell))),
            Command::Version => {
                show(&format!("porch-fn {}\n", porch_fn_version::VERSION));
                ("version", Ok(ExitCode::SUCCESS))
            }
        }
    });
    done.unwrap_or_else(|failure| failure.report(subcommand))
}

/// Prints a script with which a shell completes subcommands and flags.
fn print_completion(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Bash {
        // clap_complete 4.6 writes the hyphen in the program's name in two ways, so its cases for
        // the subcommands never match.
        script = script.replace("porch__subcmd__fn", "porch__fn");
    }
    show(&script);
    ExitCode::SUCCESS
}
