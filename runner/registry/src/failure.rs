//! What a failed request means for callers; the log has the cause.

use std::error::Error;

use crate::RegistryError;

/// Longest chain of causes that is looked at.
const MAX_CAUSES: usize = 16;

/// Why a URL is not requested.
#[derive(Debug, thiserror::Error)]
#[error(
    "it leads to {0}, a loopback, link-local or cluster address, and is at no address of that kind itself"
)]
pub(crate) struct InternalAddress(pub(crate) String);

impl InternalAddress {
    pub(crate) fn report(&self) -> RegistryError {
        log(&self.to_string());
        RegistryError::InternalAddress
    }
}

pub(crate) fn unreachable(cause: &str) -> RegistryError {
    log(cause);
    RegistryError::Unreachable
}

/// What a failed request means. The log gets no URL: it may hold a signature.
pub(crate) fn why(error: reqwest::Error) -> RegistryError {
    let error = error.without_url();
    if let Some(cause) = causes(&error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
        log(&cause.to_string());
        return of_tls(cause);
    }
    match causes(&error).find_map(|cause| cause.downcast_ref::<InternalAddress>()) {
        Some(refused) => refused.report(),
        None => unreachable(&chain(&error)),
    }
}

fn log(cause: &str) {
    tracing::warn!(cause, "a registry was not reached");
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

/// Whether a kept connection had been closed: the registry did not see the request, or did not
/// answer it.
pub(crate) fn was_closed(error: &reqwest::Error) -> bool {
    error.is_request() && !error.is_connect() && !error.is_timeout()
}

pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The error and its causes. An [`std::io::Error`] hides the error that it wraps.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let next = |error: &&'a (dyn Error + 'static)| -> Option<&'a (dyn Error + 'static)> {
        let error = *error;
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
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
