//! The client's side of gRPC between hops: connections that one caller owns, and unary calls over
//! them.

pub mod conn;
pub mod unary;
