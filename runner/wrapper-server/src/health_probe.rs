//! The part of `grpc-health-probe` that Porch's pod templates need: one gRPC health check, whose
//! result is the exit code. The image also contains this binary under the name `grpc-health-probe`.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;

use clap::Parser;
use porch_fn_flags::GoDuration;
use porch_fn_proto::{PREFIX_LEN, frame};
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::codegen::Bytes;
use tonic::codegen::http::{HeaderValue, Method, Request, Uri};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// The binary acts as the probe if it is started under this name.
pub(crate) const NAME: &str = "grpc-health-probe";

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
            eprintln!("{NAME}: {problem}");
            ExitCode::from(code)
        }
    }
}

async fn check(flags: Flags) -> Result<(), Failure> {
    let connected = timeout(flags.connect_timeout.into(), connect(&flags.addr)).await;
    let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = connected.map_err(|error| no_connection(&error))?;
    let answered = timeout(flags.rpc_timeout.into(), call(stream, flags.service)).await;
    let answered = answered.map_err(|_| (3, "no answer within -rpc-timeout".to_owned()))?;
    let interrupted = "the call was interrupted, or the server does not speak HTTP/2";
    match answered.map_err(|error| (3, format!("{interrupted}: {error}")))? {
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

async fn call(stream: TcpStream, service: String) -> Result<Option<ServingStatus>, h2::Error> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("http://localhost/grpc.health.v1.Health/Check");
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
    let message = Bytes::from(HealthCheckRequest { service }.encode_to_vec());

    let (client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    let (response, mut body) = client.ready().await?.send_request(request, false)?;
    body.send_data(frame(message.into()).contiguous(), true)?;
    let mut body = response.await?.into_body();
    let mut answer = Vec::new();
    // This code releases no flow-control capacity, so the answer cannot exceed 64 KiB.
    while let Some(data) = body.data().await {
        answer.extend_from_slice(&data?);
    }
    // A call that failed has a gRPC status and no message. The status is not read: without a
    // message the result is `None`.
    let answer = answer.get(PREFIX_LEN..).and_then(|answer| HealthCheckResponse::decode(answer).ok());
    Ok(answer.map(|answer| answer.status()))
}
