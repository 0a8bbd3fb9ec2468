//! One gRPC call to a router or runner.

use std::time::Duration;

use porch_fn_grpc::{Charge, Reply};
use porch_fn_grpc_client::conn::{self, Connection};
use porch_fn_grpc_client::unary::{self, CallError, request_headers};
use porch_fn_proto::Chunks;
use tokio::time::timeout;

use crate::failure::Failure;

/// Without pings, which a client with few calls does not need.
const OPTIONS: conn::Options = conn::Options {
    connect_timeout: Duration::from_secs(5),
    ping: None,
    user_timeout: Duration::from_secs(30),
    keepalive: None,
};

/// Returns a connection to `address` of `--address`. It is opened by the first call.
pub(crate) fn connection(address: &str) -> Result<Connection, Failure> {
    let connection = Connection::new(address, OPTIONS, None);
    connection.map_err(|error| Failure::usage(format!("--address: {error}")))
}

/// Calls a function. Returns `None` if there is no answer after `limit`.
///
/// # Errors
/// When there is no answer, or it has more than `max_answer` bytes.
pub(crate) async fn call(
    connection: &Connection,
    request: &Chunks,
    limit: Duration,
    max_answer: usize,
) -> Result<Option<Reply>, CallError> {
    let (headers, free) = (|| request_headers(limit), Charge::default());
    timeout(limit, unary::call(connection, headers, request, max_answer, &free)).await.ok().transpose()
}
