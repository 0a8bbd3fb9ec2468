//! The environment variables of functions that run on this machine, as executables or in local
//! pods. Functions get the variables that programs need, but none of the runner's secrets.

use std::ffi::OsString;

/// Functions get these variables if they are set.
const PASSED: &str = "PATH HOME TMPDIR TZ HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy \
                      SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE";

/// The variables of this process that functions get: the usual ones, and `extra` (`--exec-env`).
pub(crate) fn environment(extra: &[String]) -> Vec<(OsString, OsString)> {
    let is_passed =
        |name: &str| PASSED.split(' ').any(|one| one == name) || extra.iter().any(|one| one == name);
    std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_passed)).collect()
}
