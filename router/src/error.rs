//! The router's own errors. A runner's answer is passed on unchanged and is not one of them.

use porch_fn_grpc::{Refused, Reply};
use porch_fn_image::NotAllowed;
use porch_fn_proto::PeekError;
use tonic::Code;

/// An error with which the router itself fails a call. The texts contain no names, addresses or
/// times, because Porch may commit the texts to git.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The message is not an `EvaluateFunctionRequest`.
    #[error("{0}")]
    Peek(#[from] PeekError),
    /// The request names no image.
    #[error("the request names no function image")]
    NoImage,
    /// The image may not run.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// With this call, the image would hold more than its share of the bytes in flight.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No runner was available in time. Contains the number of runners in each health state.
    #[error("no function runner is ready: {0}; see the router's /shards page and --runners")]
    NoRunner(String),
    /// Runners were ready, but each refused or reset the call's stream until the wait ended.
    #[error(
        "no ready function runner took the call: each refused or reset its stream; see the runners' logs, and \
         check the proxies between router and runners"
    )]
    NotTaken,
    /// The connection was lost during the call, and the other runners refused the call.
    #[error(
        "the connection to a function runner was lost during this call, and no other runner takes the call \
         at the moment; look for out-of-memory kills and panics in the runners' logs"
    )]
    Broken,
    /// The call was sent twice, and both connections were lost.
    #[error(
        "the connections to two function runners were lost during this call; it is not sent a third time, \
         because the call itself may have ended the runners: look for out-of-memory kills and panics in the \
         runners' logs"
    )]
    BrokenTwice,
    /// The connection was lost during the call, and the retry budget was empty.
    #[error(
        "the connection to a function runner was lost during this call, and too many calls are being \
         retried already; see the router's /shards page"
    )]
    Budget,
}

impl RouteError {
    /// The gRPC code.
    pub fn code(&self) -> Code {
        match self {
            // grpc-go servers answer with this code when they cannot unmarshal a message.
            RouteError::Peek(_) => Code::Internal,
            RouteError::NoImage => Code::InvalidArgument,
            RouteError::NotAllowed(_) => Code::PermissionDenied,
            RouteError::Refused(_) => Code::ResourceExhausted,
            _ => Code::Unavailable,
        }
    }
}

impl From<RouteError> for Reply {
    fn from(error: RouteError) -> Self {
        Reply::failed(error.code(), &error.to_string())
    }
}
