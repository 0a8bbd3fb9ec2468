//! One unary call over a [`Connection`]: sends the raw frame and receives the whole answer.
//!
//! The caller receives nothing of the answer until its trailers have arrived. If the peer dies
//! before that, the caller can still send the request elsewhere. To decide about this, the caller
//! reads in the error whether the peer may have begun to process the request.

use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;

use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, uri::PathAndQuery};
use porch_fn_grpc::{
    Charge, Incoming, Outgoing, ReceiveError, Refused, Reply, bound_message, code_of, format_timeout,
    header_bytes, receive,
};
use porch_fn_proto::{Chunks, EVALUATE_FUNCTION_PATH, FrameError};
use tonic::Code;

use crate::conn::{ConnectError, Connection, Sender};

/// Maximum bytes of an answer's headers and trailers, without the status message. A runner's
/// headers and trailers have about 200 bytes.
const MAX_ANSWER_METADATA_BYTES: usize = 64 * 1024;

/// Errors with which the kernel closes a connection when the peer does not respond.
const SILENCE: [ErrorKind; 3] =
    [ErrorKind::TimedOut, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];

/// Why a call got no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The peer processed nothing of the request, so it is safe to send it elsewhere.
    #[error("the request was not sent")]
    NotSent,
    /// The call was interrupted after the request was sent. The peer may have processed it.
    #[error("the connection broke during the call")]
    Broken {
        /// What was lost.
        lost: Lost,
        /// What the connection reported.
        #[source]
        error: Box<dyn Error + Send + Sync>,
    },
    /// The answer is larger than the limit of the call.
    #[error("the answer of {size} bytes is larger than {limit} bytes")]
    TooLarge {
        /// Announced size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// There was no room for the answer, because too many bytes are held already.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// What was lost when a call was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// Only the stream: it was reset, or ended without an answer.
    Stream,
    /// The connection: the peer closed it, or the peer's process ended.
    Connection,
    /// The connection, because the peer is silent: it did not acknowledge a ping or data in time,
    /// or the network reports it as unreachable. The call is not the cause.
    Silence,
}

impl Lost {
    fn by(error: &(dyn Error + 'static)) -> Self {
        let h2 = error.downcast_ref::<h2::Error>().or_else(|| error.source()?.downcast_ref());
        match h2.map(|h2| (h2.get_io(), h2.is_go_away())) {
            Some((Some(io), _)) if SILENCE.contains(&io.kind()) => Self::Silence,
            Some((Some(_), _) | (None, true)) => Self::Connection,
            _ => Self::Stream,
        }
    }
}

impl CallError {
    fn broken(error: impl Error + Send + Sync + 'static, sender: &Sender) -> Self {
        let lost = if sender.is_silent() { Lost::Silence } else { Lost::by(&error) };
        if lost != Lost::Stream {
            // The connection's own task learns of the loss after its calls.
            sender.close();
        }
        Self::Broken { lost, error: error.into() }
    }

    /// The gRPC code for metrics and traces.
    pub fn code(&self) -> Code {
        match self {
            Self::Connect(_) | Self::NotSent | Self::Broken { .. } => Code::Unavailable,
            Self::TooLarge { .. } | Self::Refused(_) => Code::ResourceExhausted,
        }
    }
}

/// The headers of a request that the peer must answer within `remaining`.
pub fn request_headers(remaining: Duration) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(6);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    format_timeout(&mut headers, remaining);
    headers
}

/// Sends `framed` to `EvaluateFunction` and receives an answer of at most `limit` bytes. `charge`
/// counts the bytes that the call holds. The bytes of the answer are counted separately, in
/// [`Reply::charge`]. `headers` is called each time the request is sent, which is twice if the
/// connection has been closed since the last call.
pub async fn call(
    connection: &Connection,
    headers: impl Fn() -> HeaderMap,
    framed: &Chunks,
    limit: usize,
    charge: &Charge,
) -> Result<Reply, CallError> {
    // The connection may have been closed after the last call, because the peer drains or was
    // replaced. `send` notices this. The peer may be reachable again, so dial once more.
    let mut sender = connection.sender().await?;
    let response = match send(&sender, request(connection, headers()), framed).await {
        Err(CallError::NotSent) => {
            sender = connection.sender().await?;
            send(&sender, request(connection, headers()), framed).await?
        }
        sent => sent?,
    };
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK && code_of(&head.headers).is_none() {
        // The peer or a proxy refused this call, and the connection is as good as before. Two statuses
        // say that the call was not begun.
        let reply = match head.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Reply::shed,
            _ => Reply::failed,
        };
        return Ok(reply(code_of_http(head.status), &format!("the next hop answered {}", head.status)));
    }
    let head_metadata = metadata_bytes(&head.headers);
    if head_metadata > MAX_ANSWER_METADATA_BYTES {
        return Ok(too_much_metadata(head_metadata));
    }
    let (mut answer, head_bytes) = (charge.answer(0)?, header_bytes(&head.headers));
    match receive(body, limit, Duration::MAX, &mut answer).await {
        Ok(received) => {
            let mut reply = Reply {
                headers: head.headers,
                framed: received.framed,
                trailers: received.trailers,
                charge: answer,
            };
            // The peer ended too early, or a proxy answered instead of the gRPC server.
            if code_of(reply.status_headers()).is_none() {
                let error = "the answer has no gRPC status".into();
                return Err(CallError::Broken { lost: Lost::Stream, error });
            }
            let bytes = head_metadata.saturating_add(reply.trailers.as_ref().map_or(0, metadata_bytes));
            if bytes > MAX_ANSWER_METADATA_BYTES {
                return Ok(too_much_metadata(bytes));
            }
            bound_message(reply.status_headers_mut());
            if let Some(trailers) = &reply.trailers {
                reply.charge.grow(head_bytes + header_bytes(trailers))?;
            }
            Ok(reply)
        }
        Err(ReceiveError::Frame(FrameError::TooLarge { size, limit })) => {
            Err(CallError::TooLarge { size, limit })
        }
        Err(ReceiveError::Refused(refused)) => Err(refused.into()),
        Err(error) => Err(CallError::broken(error, &sender)),
    }
}

/// The bytes of headers or trailers without the status message.
fn metadata_bytes(headers: &HeaderMap) -> usize {
    header_bytes(headers).saturating_sub(headers.get("grpc-message").map_or(0, HeaderValue::len))
}

fn too_much_metadata(bytes: usize) -> Reply {
    let text = format!(
        "the answer's headers and trailers have {bytes} bytes, more than {MAX_ANSWER_METADATA_BYTES}: check the \
         proxies between router, runners and function pods"
    );
    Reply::failed(Code::ResourceExhausted, &text)
}

fn request(connection: &Connection, headers: HeaderMap) -> Request<()> {
    let mut uri = connection.origin().clone().into_parts();
    uri.path_and_query = Some(PathAndQuery::from_static(EVALUATE_FUNCTION_PATH));
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    // `from_parts` needs scheme, authority and path. All are set, so it does not fail.
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    *request.headers_mut() = headers;
    request
}

async fn send(
    sender: &Sender,
    request: Request<()>,
    framed: &Chunks,
) -> Result<Response<Incoming>, CallError> {
    let message = Outgoing::new(framed.clone(), Charge::default());
    let response = sender.send(request, message).await.map_err(|_| CallError::NotSent)?;
    match response.await {
        Ok(response) => Ok(response.map(Incoming)),
        Err(error) if was_refused(&error) => {
            // After a GOAWAY, the next request needs another connection.
            if error.is_go_away() {
                sender.close();
            }
            Err(CallError::NotSent)
        }
        Err(error) => Err(CallError::broken(error, sender)),
    }
}

/// The code for a status of HTTP, as in all gRPC libraries.
/// <https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>
fn code_of_http(status: StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        431 => Code::ResourceExhausted,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// Whether the peer reported that it did not process the stream: `REFUSED_STREAM`, or a GOAWAY
/// without error whose last processed stream is an earlier one (RFC 9113, sections 6.8 and 8.7).
fn was_refused(error: &h2::Error) -> bool {
    match error.reason() {
        Some(h2::Reason::REFUSED_STREAM) => true,
        Some(h2::Reason::NO_ERROR) => error.is_go_away() && error.is_remote(),
        _ => false,
    }
}
