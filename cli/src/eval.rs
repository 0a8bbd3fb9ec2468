//! `porch-fn eval`: one function on one package, through the same call that Porch makes.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue};
use porch_fn_package::{
    FunctionConfig, FunctionConfigError, Output, Package, ReadError, ResourceListError, SplitError,
    WriteError,
};
use porch_fn_proto::{PREFIX_LEN, encode_request, evaluator::EvaluateFunctionResponse, frame};
use porch_fn_service::conn::{self, AddressError, Connection};
use porch_fn_service::flags::{EXIT_USAGE, GoDuration};
use porch_fn_service::grpc::{Charge, Reply, code_name, format_timeout, message_of};
use porch_fn_service::unary::{self, CallError};
use prost::Message;
use tokio::time::timeout;
use tonic::Code;

use crate::cluster::{CALLED, ClusterArgs, ClusterError, GRPC, ROUTERS};
use crate::progress::Progress;

/// Where a router is unless told otherwise.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:9445";
/// Standing for standard input as a package.
const STDIN: &str = "-";
/// How dialling is done: one call, no pings.
const CONNECTION: conn::Options = conn::Options {
    connect_timeout: Duration::from_secs(5),
    ping: None,
    user_timeout: Duration::from_secs(30),
    keepalive: None,
};

#[derive(Debug, clap::Args)]
#[command(override_usage = "porch-fn eval --image IMAGE --package DIR [FLAGS] [-- key=value...]")]
pub(crate) struct Args {
    /// The function's image, as a Kptfile has it
    #[arg(long)]
    image: String,
    /// Semver constraint on the image's tag, as a Kptfile's tag field has it
    #[arg(long, default_value = "")]
    tag: String,
    /// Directory of a kpt package, or - for a ResourceList on standard input
    #[arg(long, value_name = "DIR")]
    package: PathBuf,
    /// File with the function's config; key=value pairs behind -- are the short form
    #[arg(long, value_name = "FILE")]
    fn_config: Option<PathBuf>,
    /// Write the result back to the package instead of printing it
    #[arg(long)]
    write: bool,
    /// Address of a router or runner, where it can be reached without a cluster
    #[arg(long, value_name = "HOST:PORT", default_value = DEFAULT_ADDRESS, conflicts_with_all = ["namespace", "kubeconfig", "context"])]
    address: String,
    /// How long the call may take
    #[arg(long, default_value = "5m")]
    timeout: GoDuration,
    /// Largest package and result in bytes; must not be above the router's
    #[arg(long, default_value_t = 6_291_456)]
    max_request_body_size: usize,
    /// The function's arguments
    #[arg(last = true, value_name = "KEY=VALUE")]
    arguments: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, thiserror::Error)]
enum EvalError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("standard input: {0}")]
    Stdin(std::io::Error),
    #[error("standard input is larger than {0} bytes; see --max-request-body-size")]
    StdinTooLarge(usize),
    #[error("standard input: {0}")]
    List(#[from] ResourceListError),
    #[error(transparent)]
    Config(#[from] FunctionConfigError),
    #[error("give the function's config either with --fn-config or as key=value pairs")]
    TwoConfigs,
    #[error("--write needs a package directory, not standard input")]
    WriteStdin,
    #[error("--address: {0}")]
    Address(#[from] AddressError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// What came of a call by a forwarded port.
    #[error("{0}")]
    Forwarded(String),
    #[error("cannot reach {address}: {error}; is it running? `porch-fn up` starts one; see --address")]
    Connect { address: String, error: conn::ConnectError },
    #[error("{0}; raise --max-request-body-size, to no more than the router's")]
    TooLarge(CallError),
    #[error("{0}; see the router's log")]
    Call(CallError),
    #[error("no answer in time; see --timeout")]
    Timeout,
    #[error("{}: {message}", code_name(*code))]
    Failed { code: Code, message: String },
    #[error("the answer is no EvaluateFunctionResponse: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("the function's result: {0}")]
    Split(#[from] SplitError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("standard output: {0}")]
    Stdout(std::io::Error),
}

pub(crate) async fn run(args: Args) -> ExitCode {
    match eval(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("porch-fn eval: {error}");
            error.exit_code()
        }
    }
}

impl EvalError {
    /// 64 for what is wrong with the command line, so that 1 is left for functions that fail.
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::TwoConfigs | Self::WriteStdin | Self::Address(_) => {
                ExitCode::from(EXIT_USAGE)
            }
            _ => ExitCode::FAILURE,
        }
    }
}

/// What a function gets, and where it came from.
enum Input {
    Directory(PathBuf, Package),
    Stdin,
}

async fn eval(args: Args) -> Result<(), EvalError> {
    let config = function_config(&args)?;
    let (input, list) = read(&args, config.as_ref())?;
    let reply = call(&args, list).await?;
    let response = answer(&reply)?;
    if !response.log.is_empty() {
        eprintln!("{}", String::from_utf8_lossy(&response.log).trim_end());
    }
    let output = porch_fn_package::split(&response.resource_list)?;
    for result in &output.results {
        eprintln!("{result}");
    }
    match input {
        Input::Directory(dir, read) if args.write => write_back(&dir, &read, &output),
        _ => print(&response.resource_list).map_err(EvalError::Stdout),
    }
}

fn function_config(args: &Args) -> Result<Option<FunctionConfig>, EvalError> {
    match &args.fn_config {
        Some(_) if !args.arguments.is_empty() => Err(EvalError::TwoConfigs),
        Some(path) => Ok(Some(FunctionConfig::from_file(path)?)),
        None if args.arguments.is_empty() => Ok(None),
        None => Ok(Some(FunctionConfig::from_pairs(&args.arguments)?)),
    }
}

fn read(args: &Args, config: Option<&FunctionConfig>) -> Result<(Input, Bytes), EvalError> {
    let limit = args.max_request_body_size;
    if args.package != Path::new(STDIN) {
        let read = porch_fn_package::read(&args.package, limit as u64)?;
        let list = read.to_resource_list(config);
        return Ok((Input::Directory(args.package.clone(), read), list.into()));
    }
    if args.write {
        return Err(EvalError::WriteStdin);
    }
    let mut list = Vec::new();
    std::io::stdin()
        .lock()
        .take((limit as u64).saturating_add(1))
        .read_to_end(&mut list)
        .map_err(EvalError::Stdin)?;
    if list.len() > limit {
        return Err(EvalError::StdinTooLarge(limit));
    }
    let list = match config {
        Some(config) => porch_fn_package::set_function_config(&list, config)?.into(),
        None => list.into(),
    };
    Ok((Input::Stdin, list))
}

async fn call(args: &Args, list: Bytes) -> Result<Reply, EvalError> {
    let reached = args.cluster.reach(args.address.clone(), &[ROUTERS, CALLED], &GRPC).await?;
    let connection = Connection::new(reached.address.as_str(), CONNECTION)?;
    let limit = Duration::from(args.timeout);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    format_timeout(&mut headers, limit);
    let request = frame(encode_request(list.into(), &args.image, &args.tag));
    let _progress = Progress::start(format!("waiting for {} (a first call starts its pod)", args.image));
    let free = Charge::default();
    let called = unary::call(&connection, headers, &request, args.max_request_body_size, &free);
    match timeout(limit, called).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error @ CallError::TooLarge { .. })) => Err(EvalError::TooLarge(error)),
        Ok(Err(error)) if reached.is_forwarded() => Err(EvalError::Forwarded(reached.explain(error))),
        Ok(Err(CallError::Connect(error))) => Err(EvalError::Connect { address: reached.address, error }),
        Ok(Err(error)) => Err(EvalError::Call(error)),
        Err(_) => Err(EvalError::Timeout),
    }
}

fn answer(reply: &Reply) -> Result<EvaluateFunctionResponse, EvalError> {
    let code = reply.code();
    if code != Code::Ok {
        return Err(EvalError::Failed { code, message: message_of(reply.status_headers()) });
    }
    let message = reply.framed.slice(PREFIX_LEN..reply.framed.len()).contiguous();
    Ok(EvaluateFunctionResponse::decode(message)?)
}

fn write_back(dir: &Path, read: &Package, output: &Output) -> Result<(), EvalError> {
    let changes = porch_fn_package::write(dir, read, output)?;
    eprintln!("{changes}");
    Ok(())
}

fn print(list: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(list)?;
    if stdout.is_terminal() && !list.ends_with(b"\n") {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}
