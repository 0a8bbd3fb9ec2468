//! A registry of the test itself, which may also be a hostile one. It needs no program.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use super::layout::{Layout, MANIFEST};

/// A registry that sends a byte of each blob in a second.
#[derive(Debug)]
pub struct Slow {
    pub address: SocketAddr,
    asked: watch::Receiver<usize>,
}

/// Serves the images of a layout, whose names are `PATH:TAG`, until the test ends. A blob that the
/// layout does not have never ends.
pub async fn serve(layout: Layout) -> SocketAddr {
    start(layout, None).await
}

/// Like [`serve`], for a registry that is too slow.
pub async fn serve_slowly(layout: Layout) -> Slow {
    let (counter, asked) = watch::channel(0);
    Slow { address: start(layout, Some(counter)).await, asked }
}

async fn start(layout: Layout, slow: Option<watch::Sender<usize>>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let shared = Arc::new((layout, slow));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let shared = Arc::clone(&shared);
            // The client may end the connection at any time.
            tokio::spawn(async move { answer(stream, &shared.0, shared.1.as_ref()).await.is_ok() });
        }
    });
    address
}

// === impl Slow ===

impl Slow {
    /// Waits until a client reads a blob.
    pub async fn wait_reader(&mut self) {
        self.asked.wait_for(|count| *count > 0).await.expect("the registry runs");
    }
}

/// Answers one request.
async fn answer(
    stream: TcpStream,
    layout: &Layout,
    slow: Option<&watch::Sender<usize>>,
) -> std::io::Result<()> {
    /// The first byte of a client that tries TLS.
    const HANDSHAKE: u8 = 0x16;
    let mut stream = BufReader::new(stream);
    if stream.fill_buf().await?.first() == Some(&HANDSHAKE) {
        return stream.get_mut().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    }
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let mut words = request.split_whitespace();
    let (is_head, path) = (words.next() == Some("HEAD"), words.next().unwrap_or_default());
    let mut stream = stream.into_inner();
    if let Some((_, digest)) = path.split_once("/blobs/") {
        let Some(blob) = layout.blob_of(digest) else { return endless(stream).await };
        let head = head("200 OK", "application/octet-stream", digest, blob.len());
        stream.write_all(head.as_bytes()).await?;
        let Some(counter) = slow else { return stream.write_all(blob).await };
        counter.send_modify(|count| *count += 1);
        return slowly(stream, blob).await;
    }
    let found = path.strip_prefix("/v2/").and_then(|path| path.split_once("/manifests/"));
    let digest = found.and_then(|(name, reference)| {
        let is_digest = reference.contains(':');
        let named = || layout.digest_of(&format!("{name}:{reference}")).map(str::to_owned);
        if is_digest { Some(reference.to_owned()) } else { named() }
    });
    let manifest = digest.as_ref().and_then(|digest| layout.blob_of(digest));
    let (status, body) = match (path, manifest) {
        (_, Some(manifest)) => ("200 OK", manifest),
        ("/v2/", None) => ("200 OK", &b"{}"[..]),
        _ => ("404 Not Found", &br#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#[..]),
    };
    let kind =
        serde_json::from_slice(body).map_or(json!(MANIFEST), |document: Value| document["mediaType"].clone());
    let kind = kind.as_str().unwrap_or(MANIFEST);
    let head = head(status, kind, digest.as_deref().unwrap_or_default(), body.len());
    stream.write_all(head.as_bytes()).await?;
    if is_head { Ok(()) } else { stream.write_all(body).await }
}

fn head(status: &str, kind: &str, digest: &str, length: usize) -> String {
    let digest =
        if digest.is_empty() { String::new() } else { format!("Docker-Content-Digest: {digest}\r\n") };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{digest}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

async fn slowly(mut stream: TcpStream, blob: &[u8]) -> std::io::Result<()> {
    for byte in blob {
        stream.write_all(&[*byte]).await?;
        sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Sends zeros for as long as the client reads them.
async fn endless(mut stream: TcpStream) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let zeros = vec![0; 1 << 20];
    loop {
        stream.write_all(&zeros).await?;
    }
}
