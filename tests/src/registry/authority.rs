//! A private certificate authority, made by `openssl`.

use std::path::{Path, PathBuf};

use crate::process::Sandbox;

/// The kind of key, without encryption.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// Its certificates are good only for a peer that has its own one.
#[derive(Debug, Clone)]
pub struct Authority {
    certificate: PathBuf,
    key: PathBuf,
}

impl Authority {
    /// Makes one with files of that name in the sandbox.
    pub async fn create(sandbox: &Sandbox, name: &str) -> Self {
        // Names differ: then the issuer of another one is unknown. With equal names, its signature
        // would be wrong.
        let subject = format!("/CN=The authority {name} of the tests");
        let words = format!(
            "req -x509 {KEY} -days 2 -keyout {name}.key -out {name}.crt -addext basicConstraints=critical,CA:TRUE -subj"
        );
        openssl(sandbox, &words, &[&subject]).await;
        Self { certificate: sandbox.path(&format!("{name}.crt")), key: sandbox.path(&format!("{name}.key")) }
    }

    /// Its own certificate, which others have to trust.
    pub fn path(&self) -> &Path {
        &self.certificate
    }

    /// Makes `NAME.key` and `NAME.crt` in the sandbox, for either end of a connection.
    /// `alternative` is its name, such as `DNS:a.b`. It expires after `days`, which may be 0.
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

/// Runs it in the sandbox's directory. `words` have no blanks in them, `more` may.
async fn openssl(sandbox: &Sandbox, words: &str, more: &[&str]) {
    let ended = sandbox.run("openssl", words.split_whitespace().chain(more.iter().copied()), b"").await;
    assert!(ended.status.success(), "openssl: {}", String::from_utf8_lossy(&ended.stderr));
}
