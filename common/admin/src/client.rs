//! HTTP client for another server's admin port.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Reads the page at `path`, which may have a query, from the admin port at `address`. Reads at
/// most `limit` bytes.
///
/// # Errors
/// Why the page was not read, also if it takes longer than `within`.
pub async fn get(address: &str, path: &str, within: Duration, limit: usize) -> Result<Bytes, String> {
    let answer = timeout(within, request(address, path, limit));
    answer.await.unwrap_or_else(|_| Err(format!("it did not answer within {within:?}")))
}

async fn request(address: &str, path: &str, limit: usize) -> Result<Bytes, String> {
    let unread = |error: &dyn Error| format!("its answer was not read: {error}");
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(|error| format!("it cannot be reached: {error}"))?;
    let connected = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.map_err(|error| unread(&error))?;
    let answer = pin!(async {
        let request = Request::get(path).header(header::HOST, address).body(Empty::<Bytes>::new());
        let request = request.map_err(|error| unread(&error))?;
        let response = sender.send_request(request).await.map_err(|error| unread(&error))?;
        if response.status() != StatusCode::OK {
            return Err(format!("it answered {}", response.status()));
        }
        match Limited::new(response.into_body(), limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(format!("its page is larger than {limit} bytes"))
            }
            Err(error) => Err(unread(&*error)),
        }
    });
    // The connection may end before the body has been collected.
    match select(answer, pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_, answer)) => answer.await,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use porch_fn_lifecycle::health::Health;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{Admin, JSON, Page, serve};

    const WITHIN: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_page_is_read_with_its_query_and_at_most_to_its_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let content = |query: &str| {
            let text = query.repeat(100_000);
            async { Ok(text) }.boxed()
        };
        let page = Page { path: "/page", content_type: JSON, policy: None, content: Box::new(content) };
        let _serving = tokio::spawn(serve(listener, Admin::new(Health::new(), None, vec![page])));
        let get = |path, limit| get(&address, path, WITHIN, limit);
        assert_eq!(get("/page?own", 300_000).await.unwrap(), "own".repeat(100_000));
        assert_eq!(get("/page?own", 299_999).await.unwrap_err(), "its page is larger than 299999 bytes");
        assert_eq!(get("/other", 300_000).await.unwrap_err(), "it answered 404 Not Found");
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_in_time_is_given_up() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let within = Duration::from_millis(20);
        assert_eq!(get(&address, "/", within, 1).await.unwrap_err(), "it did not answer within 20ms");
        drop(silent);
        let refused = get(&address, "/", WITHIN, 1).await.unwrap_err();
        assert!(refused.starts_with("it cannot be reached: "), "{refused}");
    }
}
