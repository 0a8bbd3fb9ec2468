//! Which certificates of registries are trusted: the system's roots, and a CA of the user's beside them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::file::{self, FileError};

/// The most that is read of a CA file.
const MAX_FILE: usize = 1 << 20;
/// In `--tls-secret-path`, the first that is there.
const NAMES: [&str; 2] = ["ca.crt", "ca.pem"];

/// The trusted roots. Cheap to clone; clones share one state.
#[derive(Clone)]
pub struct Roots {
    inner: Arc<Inner>,
}

struct Inner {
    /// `--tls-secret-path`, with `--enable-private-registries-tls`.
    directory: Option<PathBuf>,
    reading: tokio::sync::Mutex<()>,
    error: Mutex<Option<String>>,
    trusted: watch::Sender<Option<Arc<Trusted>>>,
}

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
        Self::build(None)
    }

    /// The system's, and `ca.crt` or else `ca.pem` of this directory.
    pub fn with_private(directory: PathBuf) -> Self {
        Self::build(Some(directory))
    }

    fn build(directory: Option<PathBuf>) -> Self {
        let inner = Inner {
            directory,
            reading: tokio::sync::Mutex::new(()),
            error: Mutex::default(),
            trusted: watch::Sender::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Reads the CA file again. What was good stays when it is missing or broken now.
    pub async fn reload(&self) {
        let _reading = self.inner.reading.lock().await;
        self.read().await;
    }

    /// Why the CA file as it was last read is not used, if it is not.
    pub fn last_error(&self) -> Option<String> {
        self.inner.error.lock().clone()
    }

    /// What is trusted now; the same `Arc` while nothing changes.
    pub(crate) async fn trusted(&self) -> Arc<Trusted> {
        let known = || self.inner.trusted.borrow().clone();
        if let Some(trusted) = known() {
            return trusted;
        }
        let _reading = self.inner.reading.lock().await;
        if known().is_none() {
            self.read().await;
        }
        // `None` only while the runtime ends.
        known().unwrap_or_else(|| {
            Arc::new(Trusted { roots: RootCertStore::empty().into(), private: Vec::new() })
        })
    }

    async fn read(&self) {
        let inner = Arc::clone(&self.inner);
        let private = match spawn_blocking(move || inner.read_private()).await {
            Ok(Ok(private)) => {
                if self.inner.error.lock().take().is_some() {
                    tracing::info!("the CA of private registries is read again");
                }
                private
            }
            Ok(Err(error)) => {
                let kept = self.inner.trusted.borrow().as_ref().is_some_and(|it| !it.private.is_empty());
                let mut known = self.inner.error.lock();
                if known.as_ref() != Some(&error) {
                    let used = if kept { "the CA that was read before" } else { "the system's roots alone" };
                    tracing::warn!(%error, used, "the CA of private registries was not read");
                }
                *known = Some(error);
                drop(known);
                if self.inner.trusted.borrow().is_some() {
                    return;
                }
                Vec::new()
            }
            Err(_) => return,
        };
        if self.inner.trusted.borrow().as_ref().is_some_and(|known| known.private == private) {
            return;
        }
        if let Ok(trusted) = spawn_blocking(move || Trusted::new(private)).await {
            self.inner.trusted.send_replace(Some(Arc::new(trusted)));
        }
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots").field("directory", &self.inner.directory).finish_non_exhaustive()
    }
}

// === impl Inner ===

impl Inner {
    /// The certificates of the CA file, all of them usable. Blocks.
    fn read_private(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        for name in NAMES {
            let path = directory.join(name);
            let problem = |problem: &dyn fmt::Display| format!("{}: {problem}", path.display());
            let read = match file::read(&path, MAX_FILE) {
                Ok(read) => read,
                Err(FileError::NotFound) => continue,
                Err(error) => return Err(problem(&error)),
            };
            let certificates: Vec<_> = CertificateDer::pem_slice_iter(&read.bytes)
                .collect::<Result<_, _>>()
                .map_err(|_| problem(&"it is not PEM"))?;
            if certificates.is_empty() {
                return Err(problem(&"it has no certificate"));
            }
            let mut store = RootCertStore::empty();
            for certificate in &certificates {
                store.add(certificate.clone()).map_err(|_| problem(&"it has a malformed certificate"))?;
            }
            return Ok(certificates);
        }
        Err(format!("{}: there is neither ca.crt nor ca.pem", directory.display()))
    }
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
