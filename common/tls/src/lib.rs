//! TLS between the hops, and optionally on listeners. Files, for example of a mounted Secret, are
//! read again when they change. Open connections stay.
//!
//! Between router and runner TLS is mutual: each side sends a certificate, and both trust one CA. A
//! runner's certificate must also contain the name that the router expects, such as the Service's
//! name. A runner accepts any client certificate that this CA signed.

mod files;
mod gauges;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use porch_fn_grpc::serve::Acceptor;
use porch_fn_grpc::serve::Stream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, InvalidMessage, ServerConfig};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

pub use self::files::{Files, TlsError};
pub use self::gauges::Gauges;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The client side of TLS. Clones share the last valid files.
#[derive(Debug, Clone)]
pub struct Connector {
    config: watch::Receiver<Arc<ClientConfig>>,
    /// The name that the server's certificate must contain. `None` means the server's address.
    name: Option<ServerName<'static>>,
}

/// The server side of TLS, for the flags that begin with `flags`. The handshake fails if the client
/// sends no valid certificate where one is required, or takes too long.
fn acceptor(config: watch::Receiver<Arc<ServerConfig>>, flags: &'static str) -> Acceptor {
    Arc::new(move |stream| {
        let acceptor = TlsAcceptor::from(config.borrow().clone());
        Box::pin(async move {
            let accepted = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
            match accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => Ok(Box::new(stream) as Box<dyn Stream>),
                Err(error) => Err(explained(error, flags)),
            }
        })
    })
}

/// Adds an explanation to the most frequent error: rustls reports plain text as a corrupt message.
fn explained(error: io::Error, flags: &str) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            io::Error::other(match flags {
                "--listen-tls" => {
                    "the peer speaks plain text, but --listen-tls-cert requires TLS; Porch speaks no TLS, so put a mesh or a \
                     proxy in between"
                }
                _ => "the peer speaks plain text; a router needs --tls-cert, --tls-key and --tls-client-ca",
            })
        }
        _ => error,
    }
}

// === impl Connector ===

impl Connector {
    /// Performs the TLS handshake with the server at `host`, and then waits for its first bytes. An
    /// HTTP/2 server sends them at once. A server that refuses our certificate sends an error
    /// instead, so no request may be sent before the first bytes.
    ///
    /// # Errors
    /// When one side does not accept the other's certificate.
    pub async fn connect(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> io::Result<BufReader<client::TlsStream<TcpStream>>> {
        let connector = TlsConnector::from(self.config.borrow().clone());
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        let mut stream = BufReader::new(connector.connect(name, stream).await?);
        if stream.fill_buf().await?.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(stream)
    }
}
