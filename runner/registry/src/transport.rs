//! HTTP below the client: plain or TLS, clients for the roots of now, bounded bodies, and what errors mean.

use std::error::Error;
use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::{Response, Url};

use crate::RegistryError;
use crate::budget::Budget;
use crate::requests::{Http, RefusedUrl};
use crate::roots::{Roots, Trusted};
use crate::verifier::tls;

/// Longest chain of causes that is looked at.
const MAX_CAUSES: usize = 16;

/// The registries that speak plain HTTP: `--insecure-registries`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Insecure(Arc<Vec<(String, Option<u16>)>>);

/// Makes clients, and new ones when the roots change.
#[derive(Debug)]
pub(crate) struct Transport {
    roots: Roots,
    insecure: Insecure,
    user_agent: String,
    built: Mutex<Option<(Arc<Trusted>, Http)>>,
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
        Http::new(&tls(trusted)?, &self.user_agent, self.insecure.clone())
    }
}

/// A body of at most `limit` bytes. A longer one ends the connection, by the response being dropped. Without a
/// budget the limit has to be small.
pub(crate) async fn read_body(
    mut response: Response,
    what: &'static str,
    limit: usize,
    mut budget: Option<&mut Budget>,
) -> Result<Vec<u8>, HttpError> {
    let too_large = || HttpError::Registry(RegistryError::TooLarge { what, limit });
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(HttpError::Reqwest)? {
        if body.len() + chunk.len() > limit {
            return Err(too_large());
        }
        if let Some(budget) = &mut budget {
            budget.hold(body.len() + chunk.len()).await.map_err(HttpError::Registry)?;
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Why there is no response, or no body.
#[derive(Debug)]
pub(crate) enum HttpError {
    /// With nothing to add for the log.
    Registry(RegistryError),
    Url(RefusedUrl),
    Reqwest(reqwest::Error),
}

/// What a failed request means, and its cause for the log: without the URL, which may hold a signature.
pub(crate) fn meaning(error: reqwest::Error) -> (RegistryError, String) {
    let error = error.without_url();
    if let Some(cause) = causes(&error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
        return (of_tls(cause), cause.to_string());
    }
    if let Some(refused) = causes(&error).find_map(|cause| cause.downcast_ref::<RefusedUrl>()) {
        return (refused.meaning(), refused.to_string());
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
    error.is_request() && !error.is_connect() && !error.is_timeout()
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
    use std::time::Duration;

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
