//! As much of `grpc-health-probe` as the probes of Porch's pod templates need: one gRPC health check, with
//! the result as the exit code. Images without tools have this binary under that name too.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use porch_fn_flags::GoDuration;
use porch_fn_proto::{FrameReader, PREFIX_LEN, frame};
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::codegen::Bytes;
use tonic::codegen::http::Request;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// The name under which the binary is the probe.
pub(crate) const NAME: &str = "grpc-health-probe";

/// Largest answer in bytes. A health check's has two.
const MAX_ANSWER: usize = 100;

/// Asks a gRPC server for its health.
///
/// Exit codes: 0 SERVING, 1 wrong flags, 2 no connection, 3 no answer, 4 not SERVING.
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Flags {
    /// The server: IP:PORT (IPv6 in brackets) or localhost:PORT
    #[arg(long)]
    addr: Target,
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

/// Addresses of one server. Names are not looked up, because a probe asks its own pod.
#[derive(Debug, Clone)]
struct Target(Vec<SocketAddr>);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither IP:PORT (IPv6 in brackets) nor localhost:PORT")]
struct TargetError(String);

/// The exit codes are those of the tool of this name.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("no connection: {0}")]
    Connect(#[from] io::Error),
    #[error("no answer within -rpc-timeout")]
    Timeout,
    #[error("the call was interrupted, or the server does not speak HTTP/2: {0}")]
    Call(#[from] h2::Error),
    #[error(
        "the server refuses the call: it does not know that service, or implements no gRPC health (grpc.health.v1.Health)"
    )]
    Refused,
    #[error("the server is not healthy: {0}")]
    Unhealthy(&'static str),
}

/// The whole process, from its arguments to its exit code.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags: Flags = match porch_fn_flags::parse(args) {
        Ok(flags) => flags,
        Err(error) => {
            error.report();
            return ExitCode::from(u8::from(error.exit_code() != 0));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(ProbeError::from).and_then(|runtime| runtime.block_on(check(flags))) {
        Ok(()) => {
            println!("status: SERVING");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::from(match error {
                ProbeError::Connect(_) => 2,
                ProbeError::Timeout | ProbeError::Call(_) | ProbeError::Refused => 3,
                ProbeError::Unhealthy(_) => 4,
            })
        }
    }
}

async fn check(flags: Flags) -> Result<(), ProbeError> {
    let connect = timeout(flags.connect_timeout.into(), TcpStream::connect(&flags.addr.0[..]));
    let stream = connect.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let answer = timeout(flags.rpc_timeout.into(), call(stream, flags.service));
    match answer.await.map_err(|_| ProbeError::Timeout)??.status() {
        ServingStatus::Serving => Ok(()),
        status => Err(ProbeError::Unhealthy(status.as_str_name())),
    }
}

async fn call(stream: TcpStream, service: String) -> Result<HealthCheckResponse, ProbeError> {
    let uri = format!("http://{}/grpc.health.v1.Health/Check", stream.peer_addr()?);
    let request = Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    // The path of an address is always valid.
    let request = request.body(()).map_err(io::Error::other)?;
    let message = Bytes::from(HealthCheckRequest { service }.encode_to_vec());

    let (client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    let (response, mut body) = client.ready().await?.send_request(request, false)?;
    body.send_data(frame(message.into()).contiguous(), true)?;
    let mut body = response.await?.into_body();
    let mut reader = FrameReader::new(MAX_ANSWER);
    while let Some(data) = body.data().await {
        reader.push(data?).map_err(|_| ProbeError::Refused)?;
    }
    // There is no message if the status is an error. The status itself is in headers, which say no more.
    let (answer, _) = reader.finish().map_err(|_| ProbeError::Refused)?;
    let answer = answer.slice(PREFIX_LEN..answer.len()).contiguous();
    HealthCheckResponse::decode(answer).map_err(|_| ProbeError::Refused)
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if let Ok(address) = text.parse() {
            return Ok(Self(vec![address]));
        }
        // Go dials this machine if the host is left out.
        let port = text.strip_prefix("localhost").unwrap_or(text).strip_prefix(':');
        let port: u16 =
            port.and_then(|port| port.parse().ok()).ok_or_else(|| TargetError(text.to_owned()))?;
        Ok(Self(vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_or_this_machine() {
        let local = Some("127.0.0.1:9446 [::1]:9446");
        for (text, expected) in [
            ("10.0.0.1:9445", Some("10.0.0.1:9445")),
            ("[fd00::1]:9445", Some("[fd00::1]:9445")),
            ("localhost:9446", local),
            (":9446", local),
            ("", None),
            ("localhost", None),
            ("localhost:", None),
            ("localhost:70000", None),
            ("example.com:9446", None),
            ("::1:9446", None),
            ("10.0.0.1", None),
        ] {
            let addresses = text.parse::<Target>().ok().map(|Target(addresses)| {
                addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(addresses.as_deref(), expected, "{text}");
        }
    }
}
