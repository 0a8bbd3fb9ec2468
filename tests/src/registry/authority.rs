//! A private certificate authority, made by `openssl`.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::process::Sandbox;

/// A key whose certificates only those trust who are given [`certificate`](Self::path).
#[derive(Debug, Clone)]
pub struct Authority {
    certificate: PathBuf,
    key: PathBuf,
}

// === impl Authority ===

impl Authority {
    /// Makes one with files of that name in the sandbox.
    ///
    /// # Panics
    /// When `openssl` fails.
    pub async fn create(sandbox: &Sandbox, name: &str) -> Self {
        let (key, certificate) = (sandbox.path(&format!("{name}.key")), sandbox.path(&format!("{name}.crt")));
        let more = [
            ("-subj", OsStr::new("/CN=An authority of the tests")),
            ("-addext", OsStr::new("basicConstraints=critical,CA:TRUE")),
        ];
        make(sandbox, &key, &certificate, &more).await;
        Self { certificate, key }
    }

    /// Its own certificate, which others are to trust.
    pub fn path(&self) -> &Path {
        &self.certificate
    }

    /// Makes `NAME.key` and `NAME.crt` in the sandbox, for a server at `ip`.
    pub(super) async fn certificate(&self, sandbox: &Sandbox, name: &str, ip: IpAddr) {
        let (key, certificate) = (sandbox.path(&format!("{name}.key")), sandbox.path(&format!("{name}.crt")));
        let alternative = format!("subjectAltName=IP:{ip}");
        let more = [
            ("-subj", OsStr::new("/CN=A registry of the tests")),
            ("-CA", self.certificate.as_os_str()),
            ("-CAkey", self.key.as_os_str()),
            ("-addext", OsStr::new("basicConstraints=critical,CA:FALSE")),
            ("-addext", OsStr::new(&alternative)),
            ("-addext", OsStr::new("extendedKeyUsage=serverAuth")),
        ];
        make(sandbox, &key, &certificate, &more).await;
    }
}

async fn make(sandbox: &Sandbox, key: &Path, certificate: &Path, more: &[(&str, &OsStr)]) {
    let curve = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let mut args: Vec<&OsStr> = curve.iter().map(OsStr::new).collect();
    let files = [("-days", OsStr::new("2")), ("-keyout", key.as_os_str()), ("-out", certificate.as_os_str())];
    args.extend(files.iter().chain(more).flat_map(|&(flag, value)| [OsStr::new(flag), value]));
    let ended = sandbox.run("openssl", args, b"").await;
    assert!(ended.status.success(), "openssl: {}", String::from_utf8_lossy(&ended.stderr));
}
