//! `porch-fn eval`: runs one function on one package, with the same gRPC call that Porch makes.

mod call;
mod input;
mod report;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use porch_fn_flags::GoDuration;
use porch_fn_image::{Constraint, parse_version};
use porch_fn_package::{FunctionConfig, Output, Selector};

use self::input::Input;
use self::report::Report;
use crate::cluster::ClusterArgs;
use crate::failure::Failure;
use crate::output::note;

#[derive(Debug, clap::Args)]
#[command(override_usage = "porch-fn eval [DIR | -] --image IMAGE [FLAGS] [-- key=value...]")]
pub(crate) struct EvalArgs {
    /// Directory of a kpt package, or - for standard input: a ResourceList, or YAML documents
    /// [default: .]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// The function's image, as in a Kptfile
    #[arg(short, long, value_parser = image)]
    image: String,
    /// Semver constraint on the image's tag, as in a Kptfile's tag field
    #[arg(long, value_name = "CONSTRAINT", value_parser = constraint)]
    tag: Option<String>,
    /// The same as the argument DIR
    #[arg(long, value_name = "DIR", conflicts_with = "directory")]
    package: Option<PathBuf>,
    /// File with the function's config; the short form is key=value pairs after --
    #[arg(long, value_name = "FILE")]
    fn_config: Option<PathBuf>,
    /// Where the result goes: stdout (a ResourceList), unwrap (YAML documents on standard output),
    /// or a new directory. Default: stdout; unwrap for YAML documents on standard input
    #[arg(short, long, value_name = "stdout|unwrap|DIR", conflicts_with = "write")]
    output: Option<Destination>,
    /// Write the result back to the package instead of printing it
    #[arg(long)]
    write: bool,
    /// Directory for results.yaml, which has the exit code and the function's results
    #[arg(long, value_name = "DIR")]
    results_dir: Option<PathBuf>,
    /// Print the whole text of an error, as Porch displays it
    #[arg(short, long)]
    verbose: bool,
    /// Deadline of the call
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    timeout: GoDuration,
    /// Maximum size of the package and of the result, in bytes; at most the router's limit
    #[arg(long, value_name = "BYTES", default_value_t = 6_291_456)]
    max_request_body_size: usize,
    /// The function's arguments
    #[arg(last = true, value_name = "KEY=VALUE", conflicts_with = "fn_config")]
    arguments: Vec<String>,
    /// Address of a router or runner, if it can be reached without port forwarding
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9445", conflicts_with_all = ["namespace", "kubeconfig", "context"])]
    address: String,
    #[command(flatten)]
    matching: MatchArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Flags that select resources of a package directory or of YAML documents.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "the names of the flags, like kpt's")]
#[command(next_help_heading = "Resources that the function gets; the others stay as they are")]
struct MatchArgs {
    /// Resources of this kind
    #[arg(long, value_name = "KIND")]
    match_kind: Option<String>,
    /// Resources with this name
    #[arg(long, value_name = "NAME")]
    match_name: Option<String>,
    /// Resources in this namespace
    #[arg(long, value_name = "NAMESPACE")]
    match_namespace: Option<String>,
    /// Resources of this apiVersion
    #[arg(long, value_name = "VERSION")]
    match_api_version: Option<String>,
}

/// Where the result goes, unless it is written back to the package.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Destination {
    Stdout,
    Unwrap,
    Directory(PathBuf),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("give stdout, unwrap or a directory".to_owned()),
            "stdout" => Ok(Self::Stdout),
            "unwrap" => Ok(Self::Unwrap),
            // kubectl's formats would make a directory with that name.
            "json" | "yaml" => {
                Err(format!("give stdout or unwrap, or ./{text} for a directory of that name"))
            }
            directory => Ok(Self::Directory(directory.into())),
        }
    }
}

fn image(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("name the function's image".to_owned());
    }
    Ok(text.to_owned())
}

/// Accepts what kpt accepts: a version, a constraint, or nothing.
fn constraint(text: &str) -> Result<String, String> {
    if text.is_empty() || parse_version(text).is_some() || Constraint::parse(text).is_some() {
        return Ok(text.to_owned());
    }
    Err("not a semver constraint, such as v0.4 or >=0.4.1 <1; put another tag into --image".to_owned())
}

pub(crate) async fn run(args: EvalArgs) -> Result<ExitCode, Failure> {
    let config = match (&args.fn_config, args.arguments.as_slice()) {
        (Some(path), _) => Some(FunctionConfig::from_file(path)),
        (None, []) => None,
        (None, arguments) => Some(FunctionConfig::from_pairs(arguments)),
    };
    let config = config.transpose().map_err(Failure::usage)?;
    if let Some(Destination::Directory(directory)) = &args.output {
        // Fails before the function runs.
        porch_fn_package::require_new(directory).map_err(Failure::usage)?;
    }
    let input = Input::read(&args, config.as_ref())?;
    let report = Report { image: &args.image, verbose: args.verbose, results: args.results_dir.as_deref() };
    report.running(input.selected);
    let response = match call::call(&args, input.list.clone()).await? {
        Ok(response) => response,
        Err(status) => return report.failed(&status),
    };
    let output = porch_fn_package::split_with(&response.resource_list, input.unselected.clone());
    let output = output.map_err(|error| Failure::new(format!("the function's result: {error}")))?;
    report.passed(&response, &output)?;
    deliver(&args, &input, &output, &response.resource_list)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the result, or writes it to a directory.
fn deliver(args: &EvalArgs, input: &Input, output: &Output, list: &[u8]) -> Result<(), Failure> {
    if let (Some((directory, package)), true) = (&input.package, args.write) {
        let written = porch_fn_package::write(directory, package, output);
        note(written.map_err(Failure::new)?);
        return Ok(());
    }
    let printed = match args.output.clone().unwrap_or(input.destination()) {
        Destination::Directory(directory) => {
            let package = input.package.as_ref().map(|(_, package)| package.clone()).unwrap_or_default();
            let written = porch_fn_package::write_new(&directory, &package, output);
            note(written.map_err(Failure::new)?);
            return Ok(());
        }
        Destination::Unwrap => print(output.documents().as_bytes()),
        Destination::Stdout if input.is_whole() => print(list),
        Destination::Stdout => {
            let package = output.package().map_err(Failure::new)?;
            print(package.to_resource_list(None).as_bytes())
        }
    };
    printed.map_err(|error| Failure::new(format!("standard output: {error}")))
}

fn print(text: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text)?;
    if stdout.is_terminal() && !text.ends_with(b"\n") {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}

// === impl MatchArgs ===

impl MatchArgs {
    fn selector(&self) -> Selector {
        Selector {
            kind: self.match_kind.clone(),
            name: self.match_name.clone(),
            namespace: self.match_namespace.clone(),
            api_version: self.match_api_version.clone(),
        }
    }
}
