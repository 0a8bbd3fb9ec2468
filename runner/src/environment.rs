//! What a local function, exec or pod, sees of the runner's environment: what programs need to run, and no secrets.

use std::ffi::OsString;

/// Passed on when set.
const PASSED: [&str; 14] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "TZ",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
];

/// Those variables of `all` that functions get: the usual ones, and `extra` (`--exec-env`).
pub(crate) fn environment(
    all: impl Iterator<Item = (OsString, OsString)>,
    extra: &[String],
) -> Vec<(OsString, OsString)> {
    all.filter(|(name, _)| {
        name.to_str().is_some_and(|name| PASSED.contains(&name) || extra.iter().any(|extra| extra == name))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_passed_on() {
        let all = [("PATH", "/bin"), ("AWS_SECRET_ACCESS_KEY", "x"), ("MODE", "fast"), ("TZ", "UTC")];
        let all = all.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let names: Vec<_> =
            environment(all, &["MODE".to_owned()]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["PATH", "MODE", "TZ"]);
    }
}
