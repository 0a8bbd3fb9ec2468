//! The part of `grpc-health-probe` that Porch's pod templates need: one gRPC health check, whose
//! result is the exit code. The image also contains this binary under the name `grpc-health-probe`.

use std::ffi::OsString;
use std::io::{self, Write as _, stderr};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;

use clap::Parser;
use porch_fn_flags::GoDuration;
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::client::call;

/// The binary acts as the probe if it is started under this name.
pub(crate) const NAME: &str = "grpc-health-probe";
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// Asks a gRPC server for its health.
///
/// Exit codes: 0 SERVING, 1 wrong flags, 2 no connection, 3 no answer, 4 not SERVING.
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Flags {
    /// The server: HOST:PORT, with IPv6 in brackets; without HOST, this machine
    #[arg(long)]
    addr: String,
    /// The service whose health is asked for; empty for the whole server
    #[arg(long, default_value = "")]
    service: String,
    /// Longest time for the connection
    #[arg(long, default_value = "1s")]
    connect_timeout: GoDuration,
    /// Longest time for the answer
    #[arg(long, default_value = "1s")]
    rpc_timeout: GoDuration,
    /// Accepted without effect
    #[arg(long)]
    v: bool,
}

/// The exit code, like that of the original tool, and the reason.
type Failure = (u8, String);

/// The whole process, from its arguments to its exit code.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags: Flags = match porch_fn_flags::parse(args) {
        Ok(flags) => flags,
        Err(error) => {
            error.report();
            return ExitCode::from(u8::from(error.exit_code != 0));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(|error| no_connection(&error)).and_then(|runtime| runtime.block_on(check(flags))) {
        Ok(()) => {
            println!("status: SERVING");
            ExitCode::SUCCESS
        }
        Err((code, problem)) => {
            let _ = writeln!(stderr(), "{NAME}: {problem}");
            ExitCode::from(code)
        }
    }
}

async fn check(flags: Flags) -> Result<(), Failure> {
    let connected = timeout(flags.connect_timeout.into(), connect(&flags.addr)).await;
    let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = connected.map_err(|error| no_connection(&error))?;
    let request = HealthCheckRequest { service: flags.service }.encode_to_vec();
    let answered = timeout(flags.rpc_timeout.into(), call(stream, CHECK, request)).await;
    let answered = answered.map_err(|_| (3, "no answer within -rpc-timeout".to_owned()))?;
    let interrupted = "the call was interrupted, or the server does not speak HTTP/2";
    let answer = answered.map_err(|error| (3, format!("{interrupted}: {error}")))?;
    let answer = answer.and_then(|answer| HealthCheckResponse::decode(&*answer).ok());
    match answer.map(|answer| answer.status()) {
        Some(ServingStatus::Serving) => Ok(()),
        Some(status) => Err((4, format!("the server is not healthy: {}", status.as_str_name()))),
        None => {
            let refused = "the server refuses the call: it does not know that service, or implements no gRPC health \
                           (grpc.health.v1.Health)";
            Err((3, refused.to_owned()))
        }
    }
}

/// In Go, an address without a host means this machine. The kubelet runs such a probe every second,
/// so this machine's addresses are not looked up.
async fn connect(addr: &str) -> io::Result<TcpStream> {
    let port = addr.strip_prefix("localhost").unwrap_or(addr).strip_prefix(':');
    let Some(port) = port.and_then(|port| port.parse().ok()) else { return TcpStream::connect(addr).await };
    let here = [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
    TcpStream::connect(&here[..]).await
}

fn no_connection(error: &io::Error) -> Failure {
    (2, format!("no connection: {error}"))
}
