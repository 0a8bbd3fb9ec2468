//! Unary gRPC on h2, for hops that forward a message without decoding it.
//!
//! tonic's own server and transport do not fit. They answer an oversized message with `OUT_OF_RANGE`,
//! and an expired `grpc-timeout` with CANCELLED. They use hyper, which hides control frames: see the
//! decisions in ARCHITECTURE.md. This crate implements only the unary call. It uses tonic's `Status`
//! and tonic's generated health service.

mod compression;
mod cork;
mod frames;
mod heartbeat;
mod incoming;
mod inflight;
pub mod listen;
mod outgoing;
mod receive;
mod reply;
pub mod serve;
mod server;
mod status;
mod streams;
mod timeout;

pub use cork::{Cork, Ended};
pub use heartbeat::silence;
pub use incoming::Incoming;
pub use inflight::{CALL_OVERHEAD, Charge, Hop, Inflight, Refused, inflight_limit};
pub use outgoing::Outgoing;
pub use receive::{ReceiveError, Received, receive};
pub use reply::{Body, Reply};
pub use server::{Call, Evaluate, Observe, Options, Server};
pub use status::{
    FUNCTIONS_TRAILER, LOAD_TRAILER, MAX_MESSAGE_BYTES, SHED_TRAILER, SHED_VALUE, START_TRAILER,
    bound_message, code_name, code_of, cut_message, header_bytes, is_shed, load_of, message_of, set_load,
    set_message,
};
pub use timeout::{format_timeout, parse_timeout};

/// Maximum header list of a request in bytes, at the first hop. A caller that sends more gets an
/// answer that says so.
pub const MAX_REQUEST_HEADERS: usize = 64 * 1024;
/// What a hop may add to the header list of a request, in bytes: deadline and trace context. The next
/// hop accepts that much more.
pub const ADDED_HEADERS: usize = 4 * 1024;

/// Maximum header list in bytes for HTTP/2 itself. A request above it gets no status of gRPC. It also
/// is the limit of our answers: a status message of [`MAX_MESSAGE_BYTES`] and the metadata must fit
/// into it together, although percent-encoding can triple the length of the message.
pub const MAX_HEADER_LIST_BYTES: u32 = 1024 * 1024;

/// Maximum header list in bytes that our client accepts in answers. Other servers, such as Porch's
/// own wrapper-server, do not limit their status messages. So our client accepts more than our servers
/// send. A list of small fields takes twice as much memory, which a call may hold.
pub const MAX_ANSWER_HEADER_LIST_BYTES: u32 = 2 * 1024 * 1024;

/// Maximum payload of a frame that our client accepts, in bytes. The smaller it is, the more frames of
/// one header list h2 accepts: here 20, which is 330 KB in the small frames of grpc-go.
pub const MAX_ANSWER_FRAME_BYTES: u32 = 128 * 1024;

/// Maximum payload of a DATA frame that our servers accept from our own hops, in bytes. A package of
/// 1 MiB is then one frame.
pub const MAX_FRAME_BYTES: u32 = 1024 * 1024;

/// The smallest maximum that HTTP/2 allows, in bytes. grpc-go never sends larger frames.
pub const MIN_FRAME_BYTES: u32 = 16 * 1024;
