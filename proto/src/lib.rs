//! The wire contract of Porch's function evaluator, and how each hop reads and forwards messages.
//!
//! A package may be several MiB and crosses three hops, so no hop decodes it. [`Chunks`] holds a
//! message as the slices in which it arrived, [`FrameReader`] reads it from the HTTP/2 body, and
//! [`peek`] reads the few bytes that routing needs. A hop forwards the same bytes, so unknown
//! fields are kept.

mod chunks;
mod frame;
mod message;
mod peek;

pub use chunks::{Chunks, Reader};
pub use frame::{FrameError, FrameReader, PREFIX_LEN, frame};
pub use message::{encode_request, encode_response};
pub use peek::{Peek, PeekError, peek};

/// Types, client and server generated from `evaluator.proto`.
#[allow(missing_docs, clippy::pedantic, unreachable_pub)]
pub mod evaluator {
    tonic::include_proto!("evaluator");
}

/// Types, client and server generated from `shard.proto`: the reports of runners about themselves.
#[allow(missing_docs, clippy::pedantic, unreachable_pub)]
pub mod shard {
    tonic::include_proto!("porch_fn.v1");
}

/// Prefix of the HTTP/2 paths of [`shard`]'s methods.
pub const SHARD_PATHS: &str = "/porch_fn.v1.Shard/";

/// The HTTP/2 path of the evaluator's only method.
pub const EVALUATE_FUNCTION_PATH: &str = "/evaluator.FunctionEvaluator/EvaluateFunction";
