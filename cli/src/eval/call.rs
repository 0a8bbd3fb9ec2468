//! The gRPC call to a router or runner.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue};
use porch_fn_grpc::{Charge, FUNCTIONS_TRAILER, Reply, format_timeout, message_of};
use porch_fn_grpc_client::conn::{self, Connection};
use porch_fn_grpc_client::unary::{self, CallError};
use porch_fn_proto::{PREFIX_LEN, encode_request, evaluator::EvaluateFunctionResponse, frame};
use prost::Message;
use tokio::time::timeout;
use tonic::Code;

use super::EvalArgs;
use crate::admin::AdminPort;
use crate::cluster::{CALLED, GRPC, ROUTERS};
use crate::failure::Failure;
use crate::progress::report_if_slow;

/// Connection options for a single call, without pings.
const CONNECTION: conn::Options = conn::Options {
    connect_timeout: Duration::from_secs(5),
    ping: None,
    user_timeout: Duration::from_secs(30),
    keepalive: None,
};

/// The status of a call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    pub(super) message: String,
    /// If the function was not found: the functions that there are, separated by commas. Empty if
    /// they are not known.
    pub(super) functions: String,
}

/// Calls the function with the ResourceList `list`. A status other than OK is the inner error.
///
/// # Errors
///
/// When there is no answer.
pub(super) async fn call(
    args: &EvalArgs,
    list: Bytes,
) -> Result<Result<EvaluateFunctionResponse, Status>, Failure> {
    let reached = args.cluster.reach(args.address.clone(), &[ROUTERS, CALLED], &GRPC).await?;
    let connection = Connection::new(reached.address.as_str(), CONNECTION, None);
    let connection = connection.map_err(|error| Failure::usage(format!("--address: {error}")))?;
    let limit = Duration::from(args.timeout);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    format_timeout(&mut headers, limit);
    let request = frame(encode_request(list.into(), &args.image, args.tag.as_deref().unwrap_or_default()));
    let free = Charge::default();
    let called = unary::call(&connection, || headers.clone(), &request, args.max_request_body_size, &free);
    let what = format!("waiting for {} (the first call starts its pod)", args.image);
    let answer = report_if_slow(&what, timeout(limit, called)).await;
    let error = match answer {
        Ok(Ok(reply)) => return answer_of(&reply),
        Err(_) => return Err(Failure::unreachable("no answer in time; see --timeout")),
        Ok(Err(error)) => error,
    };
    Err(match error {
        CallError::TooLarge { .. } => {
            Failure::new(format!("{error}; raise --max-request-body-size, at most to the router's limit"))
        }
        error if reached.forward.is_some() => reached.explain(error),
        CallError::Connect(error) => Failure::unreachable(format!(
            "cannot reach {}: {error}; is it running? `porch-fn up` starts one; see --address",
            reached.address
        )),
        _ if is_http_port(&reached.address).await => Failure::unreachable(format!(
            "{} is an HTTP port, such as the admin port; calls go to the gRPC port, which is 9445 by default",
            reached.address
        )),
        error => Failure::unreachable(format!("{error}; see the router's log")),
    })
}

/// Returns whether a server at `address` answers an HTTP/1 request.
async fn is_http_port(address: &str) -> bool {
    AdminPort { kind: "router", address: address.to_owned() }.get("/healthz").await.is_ok()
}

fn answer_of(reply: &Reply) -> Result<Result<EvaluateFunctionResponse, Status>, Failure> {
    let code = reply.code();
    if code != Code::Ok {
        let trailers = reply.status_headers();
        let functions = trailers.get(FUNCTIONS_TRAILER).and_then(|value| value.to_str().ok());
        let functions = functions.unwrap_or_default().replace(',', ", ");
        return Ok(Err(Status { code, message: message_of(trailers), functions }));
    }
    let message = reply.framed.slice(PREFIX_LEN..reply.framed.len()).contiguous();
    let response = EvaluateFunctionResponse::decode(message);
    let response = response
        .map_err(|error| Failure::new(format!("the response is not an EvaluateFunctionResponse: {error}")))?;
    Ok(Ok(response))
}
