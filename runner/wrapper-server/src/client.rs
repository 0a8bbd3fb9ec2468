//! One small unary gRPC call, without TLS.

use porch_fn_proto::{PREFIX_LEN, frame};
use tokio::net::TcpStream;
use tonic::codegen::Bytes;
use tonic::codegen::http::{HeaderValue, Method, Request, Uri};

/// Sends `message` to the method `path`. Returns the answer's message, or `None` if the call
/// failed: such an answer has a gRPC status and no message, and the status is not read.
pub(crate) async fn call(
    stream: TcpStream,
    path: &'static str,
    message: Vec<u8>,
) -> Result<Option<Vec<u8>>, h2::Error> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    let uri = Uri::builder().scheme("http").authority("localhost").path_and_query(path);
    // A constant path is valid.
    *request.uri_mut() = uri.build().unwrap_or_default();
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert("te", HeaderValue::from_static("trailers"));

    let (client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    let (response, mut body) = client.ready().await?.send_request(request, false)?;
    body.send_data(frame(Bytes::from(message).into()).contiguous(), true)?;
    let mut body = response.await?.into_body();
    let mut answer = Vec::new();
    // This code releases no flow-control capacity, so the answer cannot exceed 64 KiB.
    while let Some(data) = body.data().await {
        answer.extend_from_slice(&data?);
    }
    Ok(answer.get(PREFIX_LEN..).map(<[u8]>::to_vec))
}
