//! The gRPC call to a router or runner.

use bytes::Bytes;
use porch_fn_grpc::{FUNCTIONS_TRAILER, Reply, message_of};
use porch_fn_grpc_client::unary::CallError;
use porch_fn_proto::{PREFIX_LEN, encode_request, evaluator::EvaluateFunctionResponse, frame};
use prost::Message;
use tonic::Code;

use super::EvalArgs;
use crate::admin::AdminPort;
use crate::call::{self, connection};
use crate::cluster::GRPC;
use crate::failure::Failure;
use crate::progress::report_if_slow;

/// The status of a call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    pub(super) message: String,
    /// If the function was not found: the functions that there are, separated by commas. Empty if
    /// they are not known.
    pub(super) functions: String,
}

type Answer = Result<EvaluateFunctionResponse, Status>;

/// Calls the function with the ResourceList `list`. A status other than OK is the inner error.
///
/// # Errors
///
/// When there is no answer.
pub(super) async fn call(args: &EvalArgs, list: Bytes) -> Result<Answer, Failure> {
    let reached = args.cluster.reach(args.address.clone(), &GRPC).await?;
    let connection = connection(&reached.address)?;
    let request = frame(encode_request(list.into(), &args.image, args.tag.as_deref().unwrap_or_default()));
    let called = call::call(&connection, &request, args.timeout.into(), args.max_request_body_size);
    let what = format!("waiting for {} (the first call starts its pod)", args.image);
    let error = match report_if_slow(&what, called).await {
        Ok(Some(reply)) => return answer_of(&reply),
        Ok(None) => return Err(Failure::unreachable("no answer in time; see --timeout")),
        Err(error) => error,
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

fn answer_of(reply: &Reply) -> Result<Answer, Failure> {
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
