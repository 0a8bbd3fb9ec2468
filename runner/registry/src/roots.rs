//! Which certificates of registries are trusted: the system's roots, and a CA of the user's beside them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_files::{FileContent, FileSource, WatchedFiles};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use crate::file::{self, FileError};

/// In `--tls-secret-path`, the first that is there.
const NAMES: [&str; 2] = ["ca.crt", "ca.pem"];

/// The trusted roots. Cheap to clone; clones share one state.
#[derive(Debug, Clone)]
pub struct Roots {
    file: WatchedFiles<CaFile>,
    /// Used until the CA file could be read once.
    system: Arc<OnceCell<Arc<Trusted>>>,
}

/// The directory of `--tls-secret-path`, with `--enable-private-registries-tls`.
struct CaFile(Option<PathBuf>);

/// What is trusted, all in all.
#[derive(Debug)]
pub(crate) struct Trusted {
    pub(crate) roots: Arc<RootCertStore>,
    /// The user's own, as they were read.
    pub(crate) private: Vec<CertificateDer<'static>>,
}

// === impl Roots ===

impl Roots {
    /// The system's roots alone.
    pub fn system() -> Self {
        Self::new(CaFile(None))
    }

    /// The system's, and `ca.crt` or else `ca.pem` of this directory.
    pub fn with_private(directory: PathBuf) -> Self {
        Self::new(CaFile(Some(directory)))
    }

    fn new(file: CaFile) -> Self {
        Self { file: WatchedFiles::unread(file, None), system: Arc::default() }
    }

    /// Reads the CA file again. What was good stays when it is missing or broken now.
    pub async fn reload(&self) {
        self.file.reload().await;
    }

    /// Reads the CA file at every `interval`, for ever, and calls `report` with whether it can be used.
    pub async fn follow(self, interval: Duration, report: impl Fn(bool)) {
        self.file.follow(interval, report).await;
    }

    /// Why the CA file as it was last read is not used, if it is not.
    pub fn last_error(&self) -> Option<String> {
        self.file.last_error()
    }

    /// What is trusted now; the same `Arc` while nothing changes.
    pub(crate) async fn trusted(&self) -> Arc<Trusted> {
        if let Some(trusted) = self.file.value_or_reload(Option::is_some).await {
            return trusted;
        }
        let load =
            async || {
                // An error: the runtime shuts down.
                let trusted = spawn_blocking(|| Trusted::new(Vec::new())).await;
                Arc::new(trusted.unwrap_or_else(|_| Trusted {
                    roots: RootCertStore::empty().into(),
                    private: Vec::new(),
                }))
            };
        Arc::clone(self.system.get_or_init(load).await)
    }
}

// === impl CaFile ===

impl FileSource for CaFile {
    /// The file that was found.
    type Content = Option<(PathBuf, FileContent)>;
    type Value = Option<Arc<Trusted>>;
    type Error = String;

    fn name(&self) -> String {
        "CA certificates of private registries".to_owned()
    }

    fn read(&self, _: Option<&Self::Content>) -> Result<Self::Content, String> {
        let Some(directory) = &self.0 else { return Ok(None) };
        for name in NAMES {
            let path = directory.join(name);
            match file::read(&path) {
                Ok(content) => return Ok(Some((path, content))),
                Err(FileError::NotFound) => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        Err(format!("{}: there is neither ca.crt nor ca.pem", directory.display()))
    }

    fn parse(&self, content: &Self::Content, _: Option<&Self::Value>) -> Result<Self::Value, String> {
        let Some((path, content)) = content else { return Ok(Some(Arc::new(Trusted::new(Vec::new())))) };
        let certificates = certificates(&content.bytes);
        let certificates = certificates.map_err(|problem| format!("{}: {problem}", path.display()))?;
        Ok(Some(Arc::new(Trusted::new(certificates))))
    }

    /// Connections stay while the certificates do.
    fn is_same(&self, last: &Self::Value, new: &Self::Value) -> bool {
        last.as_ref().map(|last| &last.private) == new.as_ref().map(|new| &new.private)
    }
}

/// The certificates of a CA file, all of them usable.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|_| "it is not PEM")?;
    if certificates.is_empty() {
        return Err("it has no certificate");
    }
    let mut store = RootCertStore::empty();
    for certificate in &certificates {
        store.add(certificate.clone()).map_err(|_| "it has a malformed certificate")?;
    }
    Ok(certificates)
}

// === impl Trusted ===

impl Trusted {
    /// Blocks: the system's roots are files.
    fn new(private: Vec<CertificateDer<'static>>) -> Self {
        let system = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (found, _) = roots.add_parsable_certificates(system.certs);
        if found == 0 {
            tracing::warn!(
                "the system has no root certificates: install its ca-certificates, or set SSL_CERT_FILE"
            );
        }
        roots.add_parsable_certificates(private.iter().cloned());
        Self { roots: roots.into(), private }
    }
}
