//! Which certificates of registries are trusted: the system's roots, and a CA of the user's beside
//! them.

mod verifier;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use porch_fn_files::{FileSource, WatchedFiles};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::file;

pub(crate) use verifier::tls;

/// The trusted roots as the CA file changes. The system's alone are used until it could be read
/// once.
pub type Roots = WatchedFiles<CaFile>;

/// A CA file beside the system's roots.
#[derive(Debug)]
pub struct CaFile {
    /// `--tls-secret-path`, with `--enable-private-registries-tls`.
    directory: Option<PathBuf>,
    system: RootCertStore,
}

/// The certificates that are trusted.
#[derive(Debug)]
pub struct Trusted {
    roots: Arc<RootCertStore>,
    /// The certificates of the CA file.
    given: Vec<CertificateDer<'static>>,
    /// Whether the CA file has been read, if there is to be one.
    is_complete: bool,
}

/// The system's roots, and `ca.crt` or else `ca.pem` of this directory. Blocks: the system's roots
/// are files.
pub fn roots(directory: Option<PathBuf>) -> Roots {
    let mut system = RootCertStore::empty();
    let (found, _) = system.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if found == 0 {
        tracing::warn!(
            "the system has no root certificates: install its ca-certificates, or set SSL_CERT_FILE"
        );
    }
    let is_complete = directory.is_none();
    let first = Trusted { roots: system.clone().into(), given: Vec::new(), is_complete };
    WatchedFiles::unread(CaFile { directory, system }, Arc::new(first))
}

/// The certificates that are trusted now; the same `Arc` while nothing changes.
pub(crate) async fn trusted(roots: &Roots) -> Arc<Trusted> {
    roots.value_or_reload(|trusted| trusted.is_complete).await
}

impl FileSource for CaFile {
    /// The file that was found.
    type Content = Option<(PathBuf, Bytes)>;
    type Value = Arc<Trusted>;
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

    fn parse(&self, content: &Self::Content, _: Option<&Self::Value>) -> Result<Self::Value, String> {
        let mut roots = self.system.clone();
        let given = content.as_ref().map(|(path, pem)| {
            add_certificates(&mut roots, pem).map_err(|problem| format!("{}: {problem}", path.display()))
        });
        let given = given.transpose()?.unwrap_or_default();
        Ok(Arc::new(Trusted { roots: roots.into(), given, is_complete: true }))
    }

    /// Connections stay while the certificates do.
    fn is_same(&self, last: &Self::Value, new: &Self::Value) -> bool {
        last.given == new.given && last.is_complete
    }
}

/// Adds the certificates of a CA file, all of them usable, and returns them.
fn add_certificates(
    roots: &mut RootCertStore,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|_| "it is not PEM")?;
    if certificates.is_empty() {
        return Err("it has no certificate");
    }
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|_| "it has a malformed certificate")?;
    }
    Ok(certificates)
}
