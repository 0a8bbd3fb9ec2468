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
        let subject = format!("/CN=The authority {name} of the tests");
        let more = [
            // Names differ: those who know another of the same name find its signature wrong, not its issuer unknown.
            ("-subj", OsStr::new(&subject)),
            ("-addext", OsStr::new("basicConstraints=critical,CA:TRUE")),
        ];
        make(sandbox, &key, &certificate, &more).await;
        Self { certificate, key }
    }

    /// Its own certificate, which others are to trust.
    pub fn path(&self) -> &Path {
        &self.certificate
    }

    /// Makes `NAME.key` and `NAME.crt` in the sandbox, for either end of a connection: `alternative` is what it is
    /// called, such as `DNS:a.b`. After `days` it expires, which may be none.
    ///
    /// # Panics
    /// When `openssl` fails.
    pub async fn issue(&self, sandbox: &Sandbox, name: &str, alternative: &str, days: u32) {
        let file = |suffix: &str| sandbox.path(&format!("{name}.{suffix}")).into_os_string();
        let (key, request, certificate) = (file("key"), file("csr"), file("crt"));
        let (alternative, days) = (format!("subjectAltName={alternative}"), days.to_string());
        let more = ["-subj", "/CN=A server of the tests", "-addext", "basicConstraints=critical,CA:FALSE"];
        let named = ["-addext", &alternative];
        let files = [OsStr::new("-keyout"), &key, OsStr::new("-out"), &request];
        let words = ["req", "-newkey"].into_iter().chain(KEY).chain(more).chain(named);
        openssl(sandbox, words.map(OsStr::new).chain(files).collect()).await;
        let words = ["x509", "-req", "-copy_extensions", "copy", "-days", &days];
        let (authority, signer) = (self.certificate.as_os_str(), self.key.as_os_str());
        let files = [("-in", &*request), ("-CA", authority), ("-CAkey", signer), ("-out", &*certificate)];
        let files = files.into_iter().flat_map(|(flag, value)| [OsStr::new(flag), value]);
        openssl(sandbox, words.into_iter().map(OsStr::new).chain(files).collect()).await;
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

/// The sort of key, and that it is not encrypted.
const KEY: [&str; 4] = ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

async fn make(sandbox: &Sandbox, key: &Path, certificate: &Path, more: &[(&str, &OsStr)]) {
    let mut args: Vec<&OsStr> = ["req", "-x509", "-newkey"].into_iter().chain(KEY).map(OsStr::new).collect();
    let files = [("-days", OsStr::new("2")), ("-keyout", key.as_os_str()), ("-out", certificate.as_os_str())];
    args.extend(files.iter().chain(more).flat_map(|&(flag, value)| [OsStr::new(flag), value]));
    openssl(sandbox, args).await;
}

async fn openssl(sandbox: &Sandbox, args: Vec<&OsStr>) {
    let ended = sandbox.run("openssl", args, b"").await;
    assert!(ended.status.success(), "openssl: {}", String::from_utf8_lossy(&ended.stderr));
}
