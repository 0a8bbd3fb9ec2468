//! A server with prepared responses, for tests of clients.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Sends each response (status line and body) once. Returns the server's address, and a task that
/// returns the request targets in order.
pub(crate) async fn serve(answers: Vec<(String, String)>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = tokio::spawn(async move {
        let mut asked = Vec::new();
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let request = String::from_utf8(request).unwrap().to_ascii_lowercase();
            let length = request.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            let length = length.map_or(0, |length| length.parse().unwrap());
            stream.read_exact(&mut vec![0; length]).await.unwrap();
            asked.push(request.split(' ').nth(1).unwrap().to_owned());
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}", body.len());
            stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        }
        asked
    });
    (address, asked)
}
