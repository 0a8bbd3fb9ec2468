//! TLS between the hops, and on the listeners of those who opt in. Keys are files that are read again when they change,
//! as a mounted Secret does when its certificate is renewed; connections that are there stay.
//!
//! Between router and runner it is mutual: each shows a certificate, and trusts those of one authority. What the other
//! side is called counts for a runner (its certificate must name the Service); of a router the authority's word is enough.

mod gauges;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, InvalidMessage, RootCertStore, ServerConfig};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tokio_util::either::Either;

pub use self::gauges::Gauges;
use crate::serve::Accept;
use crate::tasks::Tasks;

/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 1024 * 1024;
/// How long a peer may take to say who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/2, which gRPC wants to hear.
const PROTOCOL: &[u8] = b"h2";

/// Why TLS cannot be had. The texts name flag and file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A flag without those that belong to it.
    #[error("{given} needs {missing} as well")]
    Incomplete {
        /// A flag that was given.
        given: String,
        /// The one that was not.
        missing: String,
    },
    /// A file cannot be read.
    #[error("{flag} {path}: {source}")]
    Read {
        /// The flag.
        flag: String,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{flag} {path}: {source}; a PEM file with {expected} is expected")]
    Pem {
        /// The flag.
        flag: String,
        /// The file.
        path: PathBuf,
        /// What should be in it.
        expected: &'static str,
        /// What is wrong.
        source: pem::Error,
    },
    /// The certificates cannot be used.
    #[error("{flag} {path}: {source}")]
    Certificate {
        /// The flag.
        flag: String,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The authority cannot be used.
    #[error("{flag} {path}: {source}")]
    Authority {
        /// The flag.
        flag: String,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: VerifierBuilderError,
    },
    /// What the runners' certificates must name is no name.
    #[error("--tls-server-name {name:?} is neither a DNS name nor an IP address")]
    Name {
        /// What was given.
        name: String,
        /// What is wrong.
        source: InvalidDnsNameError,
    },
}

/// A certificate, its key, and the authority that the other side's certificate must come from.
#[derive(Debug, Clone)]
pub struct Files {
    /// What the flags begin with: `--tls` or `--listen-tls`.
    flags: &'static str,
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// What is in the files.
#[derive(PartialEq, Eq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The server's side. Clones share what was read last.
#[derive(Debug, Clone)]
pub struct Acceptor {
    config: Arc<ArcSwap<ServerConfig>>,
    /// What the flags begin with: `--tls` or `--listen-tls`.
    flags: &'static str,
}

/// The client's side. Clones share what was read last.
#[derive(Debug, Clone)]
pub struct Connector {
    config: Arc<ArcSwap<ClientConfig>>,
    /// What the server's certificate must name; its address when there is none.
    name: Option<ServerName<'static>>,
}

// === impl Files ===

impl Files {
    /// The files of the flags that begin with `flags`, or `None` when none was given.
    ///
    /// # Errors
    /// When there is a certificate without a key or the other way round, or an authority without both; when there is no
    /// authority although `mutual` asks for one.
    pub fn of(
        flags: &'static str,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        client_ca: Option<PathBuf>,
        mutual: bool,
    ) -> Result<Option<Self>, TlsError> {
        let named = [("cert", &certificate), ("key", &key), ("client-ca", &client_ca)];
        let flag = |name: &str| format!("{flags}-{name}");
        let Some((given, _)) = named.iter().find(|(_, file)| file.is_some()) else {
            return Ok(None);
        };
        let given = flag(given);
        match (certificate, key, client_ca) {
            (None, _, _) => Err(TlsError::Incomplete { given, missing: flag("cert") }),
            (_, None, _) => Err(TlsError::Incomplete { given, missing: flag("key") }),
            (_, _, None) if mutual => Err(TlsError::Incomplete { given, missing: flag("client-ca") }),
            (Some(certificate), Some(key), client_ca) => {
                Ok(Some(Self { flags, certificate, key, client_ca }))
            }
        }
    }

    /// For a listener. A task keeps it in step with the files, and `gauges` with it.
    ///
    /// # Errors
    /// When a file cannot be read or used.
    pub fn acceptor(self, gauges: &Gauges, tasks: &mut Tasks) -> Result<Acceptor, TlsError> {
        let flags = self.flags;
        Ok(Acceptor { config: self.followed(Self::server, gauges, tasks)?, flags })
    }

    /// For connections to peers whose certificates name `name`, or else their own address. A task keeps it in step with the
    /// files, and `gauges` with it.
    ///
    /// # Errors
    /// When a file cannot be read or used, or `name` is not one.
    pub fn connector(
        self,
        name: Option<&str>,
        gauges: &Gauges,
        tasks: &mut Tasks,
    ) -> Result<Connector, TlsError> {
        let checked = |name: &str| {
            ServerName::try_from(name.to_owned())
                .map_err(|source| TlsError::Name { name: name.to_owned(), source })
        };
        let name = name.map(checked).transpose()?;
        Ok(Connector { config: self.followed(Self::client, gauges, tasks)?, name })
    }

    fn followed<C: Send + Sync + 'static>(
        self,
        make: fn(&Self, &Content) -> Result<C, TlsError>,
        gauges: &Gauges,
        tasks: &mut Tasks,
    ) -> Result<Arc<ArcSwap<C>>, TlsError> {
        let content = self.read()?;
        let config = Arc::new(ArcSwap::from_pointee(make(&self, &content)?));
        let (followed, gauges) = (Arc::clone(&config), gauges.clone());
        self.shows(&content, &gauges);
        gauges.valid(self.flags, true);
        let follow = async move { self.follow(content, make, &followed, &gauges).await };
        tasks.keep(tracing::info_span!("tls"), follow);
        Ok(config)
    }

    async fn follow<C>(
        self,
        mut seen: Content,
        make: fn(&Self, &Content) -> Result<C, TlsError>,
        config: &ArcSwap<C>,
        gauges: &Gauges,
    ) {
        // A mount that is changed while we read it shows a pair that does not fit: told when it stays so, once.
        let mut doubtful = false;
        let mut told = None;
        loop {
            sleep(LOOK_INTERVAL).await;
            let files = self.clone();
            let read = spawn_blocking(move || files.read()).await;
            let Ok(read) = read else { continue };
            let made = match read {
                Ok(content) if content == seen => Ok(None),
                Ok(content) => make(&self, &content).map(|made| Some((content, made))),
                Err(error) => Err(error),
            };
            match made {
                Ok(changed) => {
                    (doubtful, told) = (false, None);
                    if let Some((content, made)) = changed {
                        config.store(Arc::new(made));
                        self.shows(&content, gauges);
                        seen = content;
                        tracing::info!(flags = self.flags, "certificates were read again");
                    }
                    gauges.valid(self.flags, true);
                }
                Err(error) if doubtful => {
                    gauges.valid(self.flags, false);
                    let error = error.to_string();
                    if told.as_ref() != Some(&error) {
                        tracing::warn!(error, "keeping the last good certificates");
                        told = Some(error);
                    }
                }
                Err(_) => doubtful = true,
            }
        }
    }

    fn shows(&self, content: &Content, gauges: &Gauges) {
        let chain = self.certificates("cert", &self.certificate, &content.certificate);
        gauges.uses(self.flags, &chain.unwrap_or_default());
    }

    fn flag(&self, name: &str) -> String {
        format!("{}-{name}", self.flags)
    }

    fn read(&self) -> Result<Content, TlsError> {
        let client_ca = self.client_ca.as_deref().map(|path| self.read_one("client-ca", path)).transpose()?;
        Ok(Content {
            certificate: self.read_one("cert", &self.certificate)?,
            key: self.read_one("key", &self.key)?,
            client_ca,
        })
    }

    fn read_one(&self, name: &str, path: &Path) -> Result<Vec<u8>, TlsError> {
        let mut content = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut content))
            .map_err(|source| TlsError::Read { flag: self.flag(name), path: path.to_owned(), source })?;
        Ok(content)
    }

    fn certificates(
        &self,
        name: &str,
        path: &Path,
        content: &[u8],
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(content).collect();
        match certificates {
            Ok(some) if !some.is_empty() => Ok(some),
            other => Err(self.pem_error(name, path, "certificates", other.err())),
        }
    }

    fn key(&self, content: &Content) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&content.key)
            .map_err(|error| self.pem_error("key", &self.key, "a private key", Some(error)))
    }

    fn pem_error(
        &self,
        name: &str,
        path: &Path,
        expected: &'static str,
        source: Option<pem::Error>,
    ) -> TlsError {
        let source = source.unwrap_or(pem::Error::NoItemsFound);
        TlsError::Pem { flag: self.flag(name), path: path.to_owned(), expected, source }
    }

    fn unusable(&self, source: rustls::Error) -> TlsError {
        TlsError::Certificate { flag: self.flag("cert"), path: self.certificate.clone(), source }
    }

    /// The authority's certificates.
    fn roots(&self, content: &Content) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        if let (Some(path), Some(content)) = (&self.client_ca, &content.client_ca) {
            for certificate in self.certificates("client-ca", path, content)? {
                roots.add(certificate).map_err(|source| TlsError::Certificate {
                    flag: self.flag("client-ca"),
                    path: path.clone(),
                    source,
                })?;
            }
        }
        Ok(roots)
    }

    fn server(&self, content: &Content) -> Result<ServerConfig, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|source| self.unusable(source))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(self.roots(content)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
                let verifier = verifier.map_err(|source| TlsError::Authority {
                    flag: self.flag("client-ca"),
                    path: path.clone(),
                    source,
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let certificates = self.certificates("cert", &self.certificate, &content.certificate)?;
        let mut config = builder
            .with_single_cert(certificates, self.key(content)?)
            .map_err(|source| self.unusable(source))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Whoever comes back shows its certificate again, which may have expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn client(&self, content: &Content) -> Result<ClientConfig, TlsError> {
        let certificates = self.certificates("cert", &self.certificate, &content.certificate)?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|source| self.unusable(source))?
            .with_root_certificates(self.roots(content)?)
            .with_client_auth_cert(certificates, self.key(content)?)
            .map_err(|source| self.unusable(source))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

// === impl Acceptor ===

impl Acceptor {
    /// Speaks TLS with a client.
    ///
    /// # Errors
    /// When it has no certificate that is asked for, when that is not good, or when it takes longer than 10 s.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.config.load_full());
        let accepted = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
        accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| self.in_words(error))
    }

    /// What is most often wrong is called corrupt by rustls.
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
    /// Speaks TLS with the server at `host`, and waits for the first bytes that it sends, which an HTTP/2 server does at once: a
    /// server that refuses our certificate says so only then, and no request may have been sent by that time.
    ///
    /// # Errors
    /// When one side's certificate is not good for the other.
    pub async fn connect(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> io::Result<BufReader<client::TlsStream<TcpStream>>> {
        let connector = TlsConnector::from(self.config.load_full());
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

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

// === impl Accept for Option<Acceptor> ===

/// TLS where it was asked for.
impl Accept for Option<Acceptor> {
    type Stream = Either<TcpStream, server::TlsStream<TcpStream>>;

    async fn accept(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        match self {
            Some(acceptor) => Ok(Either::Right(acceptor.accept(stream).await?)),
            None => Ok(Either::Left(stream)),
        }
    }
}
