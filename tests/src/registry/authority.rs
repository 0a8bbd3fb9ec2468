//! A private certificate authority, created by `openssl`.

use std::path::{Path, PathBuf};

use crate::process::Sandbox;

/// `openssl`'s options for a new key that is not encrypted.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

#[derive(Debug, Clone)]
pub struct Authority {
    certificate: PathBuf,
    key: PathBuf,
}

impl Authority {
    /// Creates an authority as `NAME.key` and `NAME.crt` in the sandbox.
    pub async fn create(sandbox: &Sandbox, name: &str) -> Self {
        // Each authority has its own subject. A peer that trusts another authority then reports an
        // unknown issuer. With equal subjects it would report a wrong signature.
        let subject = format!("/CN=The authority {name} of the tests");
        let words = format!(
            "req -x509 {KEY} -days 2 -keyout {name}.key -out {name}.crt -addext basicConstraints=critical,CA:TRUE -subj"
        );
        openssl(sandbox, &words, &[&subject]).await;
        Self { certificate: sandbox.path(&format!("{name}.crt")), key: sandbox.path(&format!("{name}.key")) }
    }

    /// The path of the authority's own certificate, which its peers must trust.
    pub fn path(&self) -> &Path {
        &self.certificate
    }

    /// Creates `NAME.key` and `NAME.crt` in the sandbox, for a server or a client. `alternative` is
    /// the alternative name, such as `DNS:a.b`. With 0 `days` the certificate has expired.
    pub async fn issue(&self, sandbox: &Sandbox, name: &str, alternative: &str, days: u32) {
        let words = format!(
            "req {KEY} -keyout {name}.key -out {name}.csr -addext basicConstraints=critical,CA:FALSE \
             -addext subjectAltName={alternative} -subj"
        );
        openssl(sandbox, &words, &["/CN=A server of the tests"]).await;
        let words = format!("x509 -req -copy_extensions copy -days {days} -in {name}.csr -out {name}.crt");
        let [certificate, key] = [&self.certificate, &self.key].map(|path| path.to_string_lossy());
        openssl(sandbox, &words, &["-CA", &certificate, "-CAkey", &key]).await;
    }
}

/// Runs `openssl` in the sandbox's directory. `words` are separated by spaces. Arguments that
/// contain spaces are in `more`.
async fn openssl(sandbox: &Sandbox, words: &str, more: &[&str]) {
    let ended = sandbox.run("openssl", words.split_whitespace().chain(more.iter().copied()), b"").await;
    assert!(ended.status.success(), "openssl: {}", String::from_utf8_lossy(&ended.stderr));
}
