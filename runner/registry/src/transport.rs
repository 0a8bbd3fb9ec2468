//! HTTP below the client: proxies, TLS, redirects, bounded bodies, and what its errors mean.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Response, Url};

use crate::RegistryError;
use crate::budget::Budget;
use crate::roots::{Roots, Trusted};
use crate::verifier::tls;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const MAX_REDIRECTS: usize = 5;
/// Longest chain of causes that is looked at.
const MAX_CAUSES: usize = 16;

/// The registries that speak plain HTTP: `--insecure-registries`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Insecure(Arc<Vec<(String, Option<u16>)>>);

/// Clients of one set of roots. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    /// Follows redirects, without `Authorization` when the host changes.
    pub(crate) following: reqwest::Client,
    /// Follows none: a redirect would take a refresh token along, in the request's body.
    pub(crate) direct: reqwest::Client,
}

/// Makes clients, and new ones when the roots change.
#[derive(Debug)]
pub(crate) struct Transport {
    roots: Roots,
    insecure: Insecure,
    user_agent: String,
    built: Mutex<Option<(Arc<Trusted>, Http)>>,
}

#[derive(Debug, thiserror::Error)]
enum RedirectError {
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooMany,
    #[error("a redirect from HTTPS to plain HTTP")]
    Downgrade,
}

// === impl Insecure ===

impl Insecure {
    /// Each is `host` or `host:port`; a host alone means all of its ports.
    pub(crate) fn new(registries: &[String]) -> Self {
        Self(Arc::new(registries.iter().map(|registry| split_port(registry)).collect()))
    }

    pub(crate) fn holds(&self, registry: &str) -> bool {
        let (host, port) = split_port(registry);
        self.contains(&host, port.unwrap_or(80))
    }

    pub(crate) fn holds_url(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
        self.contains(&host, url.port_or_known_default().unwrap_or(80))
    }

    fn contains(&self, host: &str, port: u16) -> bool {
        self.0.iter().any(|(known, at)| known == host && at.is_none_or(|at| at == port))
    }
}

fn split_port(registry: &str) -> (String, Option<u16>) {
    let registry = registry.trim().trim_end_matches('/').to_ascii_lowercase();
    match registry.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?))) {
        Some((host, port)) => (host.to_owned(), Some(port)),
        None => (registry, None),
    }
}

// === impl Transport ===

impl Transport {
    pub(crate) fn new(roots: Roots, insecure: Insecure, user_agent: String) -> Self {
        Self { roots, insecure, user_agent, built: Mutex::new(None) }
    }

    /// The client for what is trusted now.
    pub(crate) async fn http(&self) -> Result<Http, RegistryError> {
        let trusted = self.roots.trusted().await;
        let mut built = self.built.lock();
        if let Some((of, http)) = &*built
            && Arc::ptr_eq(of, &trusted)
        {
            return Ok(http.clone());
        }
        match self.build(&trusted) {
            Ok(http) => {
                *built = Some((trusted, http.clone()));
                Ok(http)
            }
            Err(error) => {
                tracing::warn!(error = %chain(&*error), "no HTTP client could be made");
                let last = built.as_ref().map(|(_, http)| http.clone());
                last.ok_or(RegistryError::Unreachable)
            }
        }
    }

    fn build(&self, trusted: &Trusted) -> Result<Http, Box<dyn Error>> {
        let tls = tls(trusted)?;
        let client = |redirects: Policy| {
            reqwest::Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .redirect(redirects)
                .referer(false)
                .connect_timeout(CONNECT_WITHIN)
                .user_agent(&self.user_agent)
                .build()
        };
        let insecure = self.insecure.clone();
        Ok(Http {
            following: client(Policy::custom(move |attempt| redirect(attempt, &insecure)))?,
            direct: client(Policy::none())?,
        })
    }
}

fn redirect(attempt: Attempt<'_>, insecure: &Insecure) -> Action {
    // The first of the previous is the request itself.
    if attempt.previous().len() > MAX_REDIRECTS {
        return attempt.error(RedirectError::TooMany);
    }
    let was_https = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
    if was_https && attempt.url().scheme() == "http" && !insecure.holds_url(attempt.url()) {
        return attempt.error(RedirectError::Downgrade);
    }
    attempt.follow()
}

/// A body of at most `limit` bytes. A longer one ends the connection, by the response being dropped. Without a
/// budget the limit has to be small.
pub(crate) async fn read_body(
    mut response: Response,
    what: &'static str,
    limit: usize,
    mut budget: Option<&mut Budget>,
) -> Result<Vec<u8>, BodyError> {
    let too_large = || BodyError::Refused(RegistryError::TooLarge { what, limit });
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(BodyError::Broken)? {
        if body.len() + chunk.len() > limit {
            return Err(too_large());
        }
        if let Some(budget) = &mut budget {
            budget.hold(body.len() + chunk.len()).await.map_err(BodyError::Refused)?;
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Why a body was not read.
pub(crate) enum BodyError {
    Refused(RegistryError),
    Broken(reqwest::Error),
}

/// What a failed request means, and its cause for the log: without the URL, which may hold a signature.
pub(crate) fn meaning(error: reqwest::Error) -> (RegistryError, String) {
    let error = error.without_url();
    let of_rustls = causes(&error).find_map(|cause| cause.downcast_ref::<rustls::Error>());
    if let Some(cause) = of_rustls {
        return (of_tls(cause), cause.to_string());
    }
    if error.is_redirect() {
        // Its causes quote the place.
        let cause = causes(&error).find_map(|cause| cause.downcast_ref::<RedirectError>());
        let cause = cause.map_or_else(|| "a redirect to nowhere".to_owned(), ToString::to_string);
        return (RegistryError::Unreachable, cause);
    }
    (RegistryError::Unreachable, chain(&error))
}

fn of_tls(error: &rustls::Error) -> RegistryError {
    use rustls::CertificateError as Wrong;
    match error {
        rustls::Error::InvalidCertificate(
            Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. },
        ) => RegistryError::CertificateTime,
        rustls::Error::InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }) => {
            RegistryError::CertificateName
        }
        _ => RegistryError::Untrusted,
    }
}

/// Whether a connection that was kept had been closed: the registry saw nothing of the request, or it was in vain.
pub(crate) fn was_closed(error: &reqwest::Error) -> bool {
    error.is_request() && !error.is_connect() && !error.is_timeout() && !error.is_redirect()
}

fn chain(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The error and its causes. An [`std::io::Error`] hides the error that it wraps.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let next = |error: &&'a (dyn Error + 'static)| -> Option<&'a (dyn Error + 'static)> {
        let error = *error;
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    };
    std::iter::successors(Some(error), next).take(MAX_CAUSES)
}

#[cfg(test)]
mod tests {
    use rustls::CertificateError as Wrong;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    #[test]
    fn what_is_wrong_with_a_certificate_is_told_apart() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expected = ServerName::try_from("a.b").unwrap();
        for (wrong, meant) in [
            (Wrong::Expired, RegistryError::CertificateTime),
            (Wrong::ExpiredContext { time: at(2), not_after: at(1) }, RegistryError::CertificateTime),
            (Wrong::NotValidYet, RegistryError::CertificateTime),
            (Wrong::NotValidYetContext { time: at(1), not_before: at(2) }, RegistryError::CertificateTime),
            (Wrong::NotValidForName, RegistryError::CertificateName),
            (
                Wrong::NotValidForNameContext { expected, presented: vec!["c.d".to_owned()] },
                RegistryError::CertificateName,
            ),
            (Wrong::UnknownIssuer, RegistryError::Untrusted),
            (Wrong::BadSignature, RegistryError::Untrusted),
        ] {
            assert_eq!(of_tls(&rustls::Error::InvalidCertificate(wrong)), meant);
        }
        assert_eq!(of_tls(&rustls::Error::DecryptError), RegistryError::Untrusted);
        // Nothing of the certificate or of the time comes to callers.
        assert!(!RegistryError::CertificateName.to_string().contains("c.d"));
    }
}
