//! The HTTP clients for registries. They trust the system's roots and the user's CA.

use std::path::PathBuf;

use bytes::Bytes;
use porch_fn_files::{FileSource, WatchedFiles};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::file;
use crate::transport::Http;

/// The HTTP clients, replaced when the CA file changes. Until the file is read, they trust only the
/// system's roots.
pub type Roots = WatchedFiles<CaFile>;

/// The system's roots and an optional CA file.
#[derive(Debug)]
pub struct CaFile {
    /// `--tls-secret-path`, with `--enable-private-registries-tls`.
    directory: Option<PathBuf>,
    system: RootCertStore,
    /// `--insecure-registries`: registries that speak plain HTTP, each `host` or `host:port`.
    insecure: Vec<String>,
}

/// Trusts the system's roots and the CA file of this directory: `ca.crt`, or `ca.pem` if there is
/// no `ca.crt`. Blocks while it reads the system's roots from files.
///
/// # Errors
/// When the HTTP clients cannot be created.
pub fn roots(directory: Option<PathBuf>, insecure: Vec<String>) -> Result<Roots, String> {
    let mut system = RootCertStore::empty();
    let (found, _) = system.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if found == 0 {
        tracing::warn!(
            "the system has no root certificates: install its ca-certificates, or set SSL_CERT_FILE"
        );
    }
    let first = Http::new(system.clone(), Vec::new(), &insecure, directory.is_none())?;
    Ok(WatchedFiles::unread(CaFile { directory, system, insecure }, first))
}

impl FileSource for CaFile {
    /// The path and content of the CA file.
    type Content = Option<(PathBuf, Bytes)>;
    type Value = Http;
    type Error = String;

    fn name(&self) -> String {
        "CA certificates of private registries".to_owned()
    }

    fn read(&self, _: Option<&Self::Content>) -> Result<Self::Content, String> {
        let Some(directory) = &self.directory else { return Ok(None) };
        for name in ["ca.crt", "ca.pem"] {
            let path = directory.join(name);
            let content = file::read(&path).map_err(|problem| format!("{}: {problem}", path.display()))?;
            if let Some(content) = content {
                return Ok(Some((path, content)));
            }
        }
        Err(format!("{}: there is neither ca.crt nor ca.pem", directory.display()))
    }

    fn parse(&self, content: &Self::Content) -> Result<Http, String> {
        let mut roots = self.system.clone();
        let Some((path, pem)) = content else { return Http::new(roots, Vec::new(), &self.insecure, true) };
        let problem = |problem| format!("{}: {problem}", path.display());
        let given = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let given = given.map_err(|_| problem("it is not PEM"))?;
        match roots.add_parsable_certificates(given.iter().cloned()) {
            (0, 0) => Err(problem("it has no certificate")),
            (_, 0) => Http::new(roots, given, &self.insecure, true),
            _ => Err(problem("it has a malformed certificate")),
        }
    }
}
