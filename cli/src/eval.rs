//! `porch-fn eval`: runs one function on one package, with the same gRPC call that Porch makes.

use std::fmt::Display;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue};
use porch_fn_flags::GoDuration;
use porch_fn_grpc::{Charge, Reply, code_name, format_timeout, message_of};
use porch_fn_grpc_client::conn::{self, Connection};
use porch_fn_grpc_client::unary::{self, CallError};
use porch_fn_package::{FunctionConfig, Package};
use porch_fn_proto::{PREFIX_LEN, encode_request, evaluator::EvaluateFunctionResponse, frame};
use prost::Message;
use tokio::time::timeout;
use tonic::Code;

use crate::cluster::{CALLED, ClusterArgs, GRPC, ROUTERS};
use crate::failure::Failure;
use crate::progress::report_if_slow;

/// The value of `--package` that means standard input.
const STDIN: &str = "-";
/// Connection options for a single call, without pings.
const CONNECTION: conn::Options = conn::Options {
    connect_timeout: Duration::from_secs(5),
    ping: None,
    user_timeout: Duration::from_secs(30),
    keepalive: None,
};

#[derive(Debug, clap::Args)]
#[command(override_usage = "porch-fn eval --image IMAGE --package DIR [FLAGS] [-- key=value...]")]
pub(crate) struct EvalArgs {
    /// The function's image, as in a Kptfile
    #[arg(long)]
    image: String,
    /// Semver constraint on the image's tag, as in a Kptfile's tag field
    #[arg(long, default_value = "")]
    tag: String,
    /// Directory of a kpt package, or - for a ResourceList on standard input
    #[arg(long, value_name = "DIR")]
    package: PathBuf,
    /// File with the function's config; the short form is key=value pairs after --
    #[arg(long, value_name = "FILE")]
    fn_config: Option<PathBuf>,
    /// Write the result back to the package instead of printing it
    #[arg(long)]
    write: bool,
    /// Address of a router or runner, if it can be reached without port forwarding
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9445", conflicts_with_all = ["namespace", "kubeconfig", "context"])]
    address: String,
    /// Deadline of the call
    #[arg(long, default_value = "5m")]
    timeout: GoDuration,
    /// Maximum size of the package and of the result, in bytes; at most the router's limit
    #[arg(long, default_value_t = 6_291_456)]
    max_request_body_size: usize,
    /// The function's arguments
    #[arg(last = true, value_name = "KEY=VALUE", conflicts_with = "fn_config")]
    arguments: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: EvalArgs) -> Result<ExitCode, Failure> {
    let config = match (&args.fn_config, args.arguments.as_slice()) {
        (Some(path), _) => Some(FunctionConfig::from_file(path)),
        (None, []) => None,
        (None, arguments) => Some(FunctionConfig::from_pairs(arguments)),
    };
    let config = config.transpose().map_err(Failure::usage)?;
    let (package, list) = read(&args, config.as_ref())?;
    let response = answer(&call(&args, list).await?)?;
    if !response.log.is_empty() {
        eprintln!("{}", String::from_utf8_lossy(&response.log).trim_end());
    }
    let output = porch_fn_package::split(&response.resource_list);
    let output = output.map_err(|error| Failure::new(format!("the function's result: {error}")))?;
    for result in &output.results {
        eprintln!("{result}");
    }
    match package {
        Some(package) if args.write => {
            let written = porch_fn_package::write(&args.package, &package, &output);
            eprintln!("{}", written.map_err(Failure::new)?);
        }
        _ => print(&response.resource_list)
            .map_err(|error| Failure::new(format!("standard output: {error}")))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the package and the ResourceList for the function. There is no package if `--package` is
/// standard input.
fn read(args: &EvalArgs, config: Option<&FunctionConfig>) -> Result<(Option<Package>, Bytes), Failure> {
    let limit = args.max_request_body_size;
    if args.package != Path::new(STDIN) {
        let package = porch_fn_package::read(&args.package, limit as u64).map_err(Failure::new)?;
        let list = package.to_resource_list(config);
        return Ok((Some(package), list.into()));
    }
    if args.write {
        return Err(Failure::usage("--write needs a package directory, not standard input"));
    }
    let failed = |error: &dyn Display| Failure::new(format!("standard input: {error}"));
    let mut list = Vec::new();
    let mut stdin = std::io::stdin().lock().take((limit as u64).saturating_add(1));
    stdin.read_to_end(&mut list).map_err(|error| failed(&error))?;
    if list.len() > limit {
        let text = format!("standard input is larger than {limit} bytes; see --max-request-body-size");
        return Err(Failure::new(text));
    }
    match config {
        Some(config) => Ok((None, config.set_in(&list).map_err(|error| failed(&error))?.into())),
        None => Ok((None, list.into())),
    }
}

async fn call(args: &EvalArgs, list: Bytes) -> Result<Reply, Failure> {
    let reached = args.cluster.reach(args.address.clone(), &[ROUTERS, CALLED], &GRPC).await?;
    let connection = Connection::new(reached.address.as_str(), CONNECTION, None);
    let connection = connection.map_err(|error| Failure::usage(format!("--address: {error}")))?;
    let limit = Duration::from(args.timeout);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    format_timeout(&mut headers, limit);
    let request = frame(encode_request(list.into(), &args.image, &args.tag));
    let free = Charge::default();
    let called = unary::call(&connection, headers, &request, args.max_request_body_size, &free);
    let failed = |error| match error {
        CallError::TooLarge { .. } => {
            Failure::new(format!("{error}; raise --max-request-body-size, at most to the router's limit"))
        }
        error if reached.forward.is_some() => reached.explain(error),
        CallError::Connect(error) => Failure::new(format!(
            "cannot reach {}: {error}; is it running? `porch-fn up` starts one; see --address",
            reached.address
        )),
        error => Failure::new(format!("{error}; see the router's log")),
    };
    let what = format!("waiting for {} (the first call starts its pod)", args.image);
    let answer = report_if_slow(&what, timeout(limit, called)).await;
    answer.map_err(|_| Failure::new("no answer in time; see --timeout"))?.map_err(failed)
}

fn answer(reply: &Reply) -> Result<EvaluateFunctionResponse, Failure> {
    let code = reply.code();
    if code != Code::Ok {
        let message = message_of(reply.status_headers());
        return Err(Failure::new(format!("{}: {message}", code_name(code))));
    }
    let message = reply.framed.slice(PREFIX_LEN..reply.framed.len()).contiguous();
    EvaluateFunctionResponse::decode(message)
        .map_err(|error| Failure::new(format!("the response is not an EvaluateFunctionResponse: {error}")))
}

fn print(list: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(list)?;
    if stdout.is_terminal() && !list.ends_with(b"\n") {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}
