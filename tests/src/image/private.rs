//! A registry in this process with one image, which only the right user may pull.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::{Blob, Image, Parts};
use crate::registry::{User, base64};

/// Serves the image by plain HTTP at its digest and at each tag, until the test ends.
pub async fn serve_private(image: &Image, user: &User) -> SocketAddr {
    let Parts { manifest, config, layers } = image.parts();
    let blobs: Arc<Vec<_>> = Arc::new([vec![manifest, config], layers].concat());
    let wanted: Arc<str> = format!("Basic {}", base64(&format!("{}:{}", user.name, user.password))).into();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (blobs, wanted) = (Arc::clone(&blobs), Arc::clone(&wanted));
            let service = service_fn(move |request| {
                let answer = answer(&request, &blobs, &wanted);
                async move { Ok::<_, Infallible>(answer) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

fn answer(request: &Request<Incoming>, blobs: &[Blob], wanted: &str) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let is_user = request.headers().get(header::AUTHORIZATION).is_some_and(|sent| sent == wanted);
    let found = blobs.iter().find(|blob| path.ends_with(&blob.digest));
    let (status, blob) = match found {
        _ if !is_user => (StatusCode::UNAUTHORIZED, None),
        _ if path == "/v2/" => (StatusCode::OK, None),
        Some(blob) => (StatusCode::OK, Some(blob)),
        None if path.contains("/manifests/") => (StatusCode::OK, blobs.first()),
        None => (StatusCode::NOT_FOUND, None),
    };
    let bytes = blob.map(|blob| Bytes::from(blob.bytes.clone())).unwrap_or_default();
    let answer = Response::builder()
        .status(status)
        .header(header::WWW_AUTHENTICATE, "Basic realm=\"test\"")
        .header(header::CONTENT_TYPE, "application/vnd.oci.image.manifest.v1+json");
    answer.body(Full::new(bytes)).expect("a response")
}
