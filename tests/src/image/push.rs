//! Pushes images to a registry that needs no credentials.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;

use super::{Blob, Image, Parts};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Pushes an image. `name` is `PATH:TAG`.
pub async fn push(registry: SocketAddr, name: &str, image: &Image) {
    let (path, tag) = name.rsplit_once(':').expect("a name with a tag");
    let manifest = push_parts(registry, path, image.parts()).await;
    put_manifest(registry, path, tag, MANIFEST, manifest.bytes).await;
}

/// Pushes an index with an image for each platform, `linux/ARCHITECTURE`.
pub async fn push_index(registry: SocketAddr, name: &str, images: &[(&str, &Image)]) {
    let (path, tag) = name.rsplit_once(':').expect("a name with a tag");
    let mut entries = Vec::new();
    for (architecture, image) in images {
        let manifest = push_parts(registry, path, image.parts()).await;
        entries.push(json!({
            "mediaType": MANIFEST,
            "digest": manifest.digest,
            "size": manifest.bytes.len(),
            "platform": {"os": "linux", "architecture": architecture},
        }));
        let digest = manifest.digest.clone();
        put_manifest(registry, path, &digest, MANIFEST, manifest.bytes).await;
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
    put_manifest(registry, path, tag, INDEX, index.to_string().into_bytes()).await;
}

async fn push_parts(registry: SocketAddr, path: &str, parts: Parts) -> Blob {
    for Blob { digest, bytes } in parts.layers.into_iter().chain([parts.config]) {
        let started =
            send(registry, Method::POST, &format!("/v2/{path}/blobs/uploads/"), None, Vec::new()).await;
        let place: Uri = started.expect("the place of the upload").parse().expect("a URL");
        let query = place.query().map(|query| format!("{query}&")).unwrap_or_default();
        let to = format!("{}?{query}digest={digest}", place.path());
        send(registry, Method::PUT, &to, Some("application/octet-stream"), bytes).await;
    }
    parts.manifest
}

async fn put_manifest(registry: SocketAddr, path: &str, reference: &str, media_type: &str, bytes: Vec<u8>) {
    let to = format!("/v2/{path}/manifests/{reference}");
    send(registry, Method::PUT, &to, Some(media_type), bytes).await;
}

/// Sends a request, and returns the header `Location` of its answer.
async fn send(
    registry: SocketAddr,
    method: Method,
    path: &str,
    media_type: Option<&str>,
    body: Vec<u8>,
) -> Option<String> {
    let stream = TcpStream::connect(registry).await.expect("a registry");
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP/1");
    let connection = tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, registry.to_string());
    if let Some(media_type) = media_type {
        request = request.header(header::CONTENT_TYPE, media_type);
    }
    let request = request.body(Full::new(Bytes::from(body))).expect("a request");
    let answer = sender.send_request(request).await.expect("an answer");
    let location =
        answer.headers().get(header::LOCATION).and_then(|place| place.to_str().ok()).map(str::to_owned);
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("its body").to_bytes();
    assert!(status.is_success(), "{path}: {status} {}", String::from_utf8_lossy(&body));
    connection.abort();
    location
}
