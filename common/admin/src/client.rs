//! HTTP client for another server's admin port.

use std::error::Error;
use std::io;
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

/// Why a server's page was not read.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// No connection.
    #[error("it cannot be reached: {0}")]
    Connect(#[source] io::Error),
    /// The answer is not HTTP, or the connection was lost.
    #[error("its answer was not read: {0}")]
    Http(#[source] Box<dyn Error + Send + Sync>),
    /// The server has no such page.
    #[error("it answered {0}")]
    Status(StatusCode),
    /// The page has more bytes than allowed.
    #[error("its page is larger than {0} bytes")]
    TooLarge(usize),
    /// The whole page did not arrive in time.
    #[error("it did not answer within {0:?}")]
    Late(Duration),
}

/// Reads the page at `path`, which may have a query, from the admin port at `address`. Reads at
/// most `limit` bytes.
///
/// # Errors
/// [`GetError`], also if it takes longer than `within`.
pub async fn get(address: &str, path: &str, within: Duration, limit: usize) -> Result<Bytes, GetError> {
    let answer = timeout(within, request(address, path, limit));
    answer.await.unwrap_or(Err(GetError::Late(within)))
}

async fn request(address: &str, path: &str, limit: usize) -> Result<Bytes, GetError> {
    let http = |error: hyper::Error| GetError::Http(error.into());
    let stream = TcpStream::connect(address).await.map_err(GetError::Connect)?;
    // Each admin port accepts its address, but not each name.
    let host = stream.peer_addr().map_err(GetError::Connect)?.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
    let answer = pin!(async {
        let request = Request::get(path).header(header::HOST, host).body(Empty::<Bytes>::new());
        let request = request.map_err(|error| GetError::Http(error.into()))?;
        let response = sender.send_request(request).await.map_err(http)?;
        if response.status() != StatusCode::OK {
            return Err(GetError::Status(response.status()));
        }
        match Limited::new(response.into_body(), limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(GetError::TooLarge(limit)),
            Err(error) => Err(GetError::Http(error)),
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
            async { Ok(text.into()) }.boxed()
        };
        let page = Page { path: "/page", content_type: JSON, policy: None, content: Box::new(content) };
        let _serving = tokio::spawn(serve(listener, Admin::new(Health::new(), None, vec![page], &[])));
        let get = |path, limit| get(&address, path, WITHIN, limit);
        assert_eq!(get("/page?own", 300_000).await.unwrap(), "own".repeat(100_000));
        assert!(matches!(get("/page?own", 299_999).await, Err(GetError::TooLarge(299_999))));
        assert!(matches!(get("/other", 300_000).await, Err(GetError::Status(StatusCode::NOT_FOUND))));
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_in_time_is_given_up() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let within = Duration::from_millis(20);
        assert!(matches!(get(&address, "/", within, 1).await, Err(GetError::Late(_))));
        drop(silent);
        assert!(matches!(get(&address, "/", WITHIN, 1).await, Err(GetError::Connect(_))));
    }
}
