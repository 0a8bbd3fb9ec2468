//! TLS between the hops, and on listeners by choice. Files are read again when they change, as in a mounted Secret after
//! its certificate was renewed; open connections stay.
//!
//! Between router and runner TLS is mutual: each side sends a certificate and trusts those of one CA. A runner's
//! certificate must also name the Service; of a router any certificate of the CA is accepted.

mod files;
mod gauges;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, InvalidMessage, ServerConfig};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

pub use self::files::{Files, TlsError};
pub use self::gauges::Gauges;
use porch_fn_grpc::serve::Accept;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The server's side. Clones share the last good files.
#[derive(Debug, Clone)]
pub struct Acceptor {
    config: watch::Receiver<Arc<ServerConfig>>,
    /// What the flags begin with: `--tls` or `--listen-tls`.
    flags: &'static str,
}

/// The client's side. Clones share the last good files.
#[derive(Debug, Clone)]
pub struct Connector {
    config: watch::Receiver<Arc<ClientConfig>>,
    /// What the server's certificate must name; its address when there is none.
    name: Option<ServerName<'static>>,
}

// === impl Acceptor ===

impl Accept for Acceptor {
    type Stream = server::TlsStream<TcpStream>;

    /// Fails if the client sends no valid certificate where one is required, or takes longer than 10 s.
    async fn accept(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        let acceptor = TlsAcceptor::from(self.config.borrow().clone());
        let accepted = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
        accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| self.in_words(error))
    }
}

impl Acceptor {
    /// The most frequent mistake in words: rustls calls plain text corrupt.
    fn in_words(&self, error: io::Error) -> io::Error {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                io::Error::other(match self.flags {
                    "--listen-tls" => {
                        "the peer speaks plain text, and --listen-tls-cert has callers speak TLS; Porch needs a mesh or a \
                         proxy in between"
                    }
                    _ => {
                        "the peer speaks plain text; a router needs --tls-cert, --tls-key and --tls-client-ca"
                    }
                })
            }
            _ => error,
        }
    }
}

// === impl Connector ===

impl Connector {
    /// Speaks TLS with the server at `host`, and waits for the first bytes from it, which an HTTP/2
    /// server sends at once. A server refuses our certificate only then, and no request may have
    /// been sent by that time.
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
