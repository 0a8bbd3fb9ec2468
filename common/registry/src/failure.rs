//! Maps a failed request to the error for callers, and logs its cause.

use std::error::Error;
use std::fmt::Display;
use std::io;

use rustls::{CertificateError as Wrong, Error as Tls, InvalidMessage};

use crate::RegistryError;

/// A redirect or realm leads to an internal address, so it is not requested.
#[derive(Debug, thiserror::Error)]
#[error(
    "the registry leads to {0}, a loopback, link-local or cluster address, but has no such address itself"
)]
pub(crate) struct InternalAddress(pub(crate) String);

/// Logs the cause, which callers do not get.
pub(crate) fn log(cause: impl Display, error: RegistryError) -> RegistryError {
    tracing::warn!(error = cause.to_string(), "a registry was not reached");
    error
}

/// Maps a failed request to the error for callers. Removes the URL from the log, because it may
/// contain a signature.
pub(crate) fn why(error: reqwest::Error) -> RegistryError {
    let error = error.without_url();
    for cause in causes(&error) {
        if let Some(tls) = cause.downcast_ref::<Tls>() {
            return log(tls, of_tls(tls));
        }
        if let Some(refused) = cause.downcast_ref::<InternalAddress>() {
            return log(refused, RegistryError::InternalAddress);
        }
    }
    log(chain(&error), RegistryError::Unreachable)
}

fn of_tls(error: &Tls) -> RegistryError {
    match error {
        // The first byte is no TLS record type. A plain HTTP server answers "HTTP/1.1 400".
        Tls::InvalidMessage(InvalidMessage::InvalidContentType) => RegistryError::PlainHttp,
        Tls::InvalidCertificate(
            Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. },
        ) => RegistryError::CertificateTime,
        Tls::InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }) => {
            RegistryError::CertificateName
        }
        _ => RegistryError::Untrusted,
    }
}

pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The error and its causes. An [`io::Error`] hides the error that it wraps.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let next = |error: &&'a (dyn Error + 'static)| -> Option<&'a (dyn Error + 'static)> {
        let error = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    };
    std::iter::successors(Some(error), next)
}
