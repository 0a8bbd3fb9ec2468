//! Reads the files that the TLS flags name, and builds rustls' configuration from them.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use porch_fn_files::{FileSource, WatchedFiles, read};
use porch_fn_lifecycle::tasks::Tasks;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::sync::watch;

use crate::{Acceptor, Connector, Gauges, acceptor};

/// How often the files are read.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// Largest file that is read, in bytes.
const MAX_BYTES: usize = 1024 * 1024;
/// HTTP/2, which gRPC requires.
const PROTOCOL: &[u8] = b"h2";

/// Why TLS cannot be used. The texts name the flag and the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A flag is set without another flag that it needs.
    #[error("{given} needs {missing} as well")]
    Incomplete {
        /// The flag that is set.
        given: String,
        /// The flag that is missing.
        missing: String,
    },
    /// A file cannot be read or used.
    #[error("{flag} {path}: {source}")]
    File {
        /// The flag.
        flag: String,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The name that the runners' certificates must contain is not valid.
    #[error("--tls-server-name {0:?} is neither a DNS name nor an IP address")]
    Name(String),
}

/// A certificate, its key, and the CA for the other side's certificate.
#[derive(Debug, Clone)]
pub struct Files {
    /// The beginning of the flags: `--tls` or `--listen-tls`.
    flags: &'static str,
    certificate: PemFile,
    key: PemFile,
    client_ca: Option<PemFile>,
}

#[derive(Debug, Clone)]
struct PemFile {
    flag: String,
    path: PathBuf,
}

/// The files of a listener (`C` is a [`ServerConfig`]) or of connections ([`ClientConfig`]).
struct ConfigFiles<C> {
    files: Files,
    gauges: Gauges,
    build: fn(&Files, Parsed) -> Result<C, TlsError>,
}

/// The parsed files.
struct Parsed {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    client_ca: Option<RootCertStore>,
}

// === impl PemFile ===

impl PemFile {
    fn read(&self) -> Result<Bytes, TlsError> {
        read(&self.path, MAX_BYTES).map_err(|error| self.error(error))
    }

    fn certificates(&self, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        match CertificateDer::pem_slice_iter(content).collect::<Result<Vec<_>, _>>() {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            other => Err(self.pem_error(&other.err().unwrap_or(pem::Error::NoItemsFound), "certificates")),
        }
    }

    fn roots(&self, content: &[u8]) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(content)? {
            roots.add(certificate).map_err(|error| self.error(error))?;
        }
        Ok(roots)
    }

    fn pem_error(&self, error: &pem::Error, expected: &str) -> TlsError {
        self.error(format!("{error}; a PEM file with {expected} is expected"))
    }

    fn error(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> TlsError {
        TlsError::File { flag: self.flag.clone(), path: self.path.clone(), source: source.into() }
    }
}

// === impl Files ===

impl Files {
    /// The files of the flags that begin with `flags`; `None` if none of them is set.
    ///
    /// # Errors
    /// When any of the flags is set, but the certificate or the key is missing. Also when `mutual`
    /// is true and the CA is missing.
    pub fn of(
        flags: &'static str,
        [certificate, key, client_ca]: [&Option<PathBuf>; 3],
        mutual: bool,
    ) -> Result<Option<Self>, TlsError> {
        let file = |name: &str, path: &Option<PathBuf>| {
            let flag = format!("{flags}-{name}");
            path.clone().map(|path| PemFile { flag: flag.clone(), path }).ok_or(flag)
        };
        let files = [file("cert", certificate), file("key", key), file("client-ca", client_ca)];
        let Some(given) = files.iter().find_map(|file| file.as_ref().ok()) else { return Ok(None) };
        let given = given.flag.clone();
        match files {
            [Err(missing), _, _] | [_, Err(missing), _] => Err(TlsError::Incomplete { given, missing }),
            [_, _, Err(missing)] if mutual => Err(TlsError::Incomplete { given, missing }),
            [Ok(certificate), Ok(key), client_ca] => {
                Ok(Some(Self { flags, certificate, key, client_ca: client_ca.ok() }))
            }
        }
    }

    /// Builds an acceptor for a listener. A task reads changed files again and updates `gauges`.
    ///
    /// # Errors
    /// When a file cannot be read or used.
    pub fn acceptor(self, gauges: &Gauges, tasks: &mut Tasks) -> Result<Acceptor, TlsError> {
        let flags = self.flags;
        Ok(acceptor(self.follow(Self::server, gauges, tasks)?, flags))
    }

    /// Builds a connector. A peer's certificate must contain `name`, or the peer's address if
    /// `name` is `None`. A task reads changed files again and updates `gauges`.
    ///
    /// # Errors
    /// When a file cannot be read or used, or `name` is not valid.
    pub fn connector(
        self,
        name: Option<&str>,
        gauges: &Gauges,
        tasks: &mut Tasks,
    ) -> Result<Connector, TlsError> {
        let checked =
            |name: &str| ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()));
        let name = name.map(checked).transpose()?;
        Ok(Connector { config: self.follow(Self::client, gauges, tasks)?, name })
    }

    fn follow<C: Send + Sync + 'static>(
        self,
        build: fn(&Self, Parsed) -> Result<C, TlsError>,
        gauges: &Gauges,
        tasks: &mut Tasks,
    ) -> Result<watch::Receiver<Arc<C>>, TlsError> {
        let (flags, gauges) = (self.flags, gauges.clone());
        let files = WatchedFiles::read(ConfigFiles { files: self, gauges: gauges.clone(), build })?;
        gauges.set_valid(flags, true);
        let config = files.subscribe();
        let follow = files.follow(READ_INTERVAL, move |valid| gauges.set_valid(flags, valid));
        tasks.keep(tracing::info_span!("tls"), follow);
        Ok(config)
    }

    fn server(&self, parsed: Parsed) -> Result<ServerConfig, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| self.certificate.error(error))?;
        let builder = match (&self.client_ca, parsed.client_ca) {
            (Some(file), Some(roots)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider());
                builder.with_client_cert_verifier(verifier.build().map_err(|error| file.error(error))?)
            }
            _ => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(parsed.chain, parsed.key);
        let mut config = config.map_err(|error| self.certificate.error(error))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // No session resumption: a client that resumes a session does not send its certificate, so
        // this server could not refuse a certificate that has expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn client(&self, parsed: Parsed) -> Result<ClientConfig, TlsError> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| self.certificate.error(error))?
            .with_root_certificates(parsed.client_ca.unwrap_or_else(RootCertStore::empty))
            .with_client_auth_cert(parsed.chain, parsed.key)
            .map_err(|error| self.certificate.error(error))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

// === impl ConfigFiles ===

impl<C: Send + Sync + 'static> FileSource for ConfigFiles<C> {
    /// Certificate, key and CA.
    type Content = (Bytes, Bytes, Option<Bytes>);
    type Value = Arc<C>;
    type Error = TlsError;

    /// If a mount changes during a read, the key may not match the certificate. The next read then
    /// succeeds.
    const TOLERATED_FAILURES: u32 = 1;

    fn name(&self) -> String {
        format!("{} certificates", self.files.flags)
    }

    fn read(&self, _: Option<&Self::Content>) -> Result<Self::Content, TlsError> {
        let Files { certificate, key, client_ca, .. } = &self.files;
        let client_ca = client_ca.as_ref().map(PemFile::read).transpose()?;
        Ok((certificate.read()?, key.read()?, client_ca))
    }

    fn parse(&self, content: &Self::Content) -> Result<Arc<C>, TlsError> {
        let ((certificate, key, client_ca), files) = (content, &self.files);
        let client_ca = files.client_ca.as_ref().zip(client_ca.as_ref());
        let client_ca = client_ca.map(|(file, content)| file.roots(content)).transpose()?;
        let chain = files.certificate.certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| files.key.pem_error(&error, "a private key"))?;
        let expiring = chain.first().cloned();
        let config = (self.build)(files, Parsed { chain, key, client_ca })?;
        self.gauges.set_expiry(files.flags, expiring.as_ref());
        Ok(Arc::new(config))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
