//! Errors of registry lookups. The texts reach callers and package commits. So the same cause has
//! the same text, without addresses, times or text of a server. Only a document that a store cannot
//! use is quoted: that text is for the person whose machine runs the image.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::platform::Platform;

pub(crate) const MANIFEST: &str = "manifest";
pub(crate) const CONFIG: &str = "image configuration";
/// An image configuration, for the person whose machine runs the image.
pub(crate) const RUN_CONFIG: &str = "configuration";

/// Why a lookup failed, or a document or blob of an image cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The registry has no such repository or tag, or hides it from us.
    #[error("the image was not found in its registry: check the image's name and tag")]
    NotFound,
    /// The registry requires credentials, or refuses the ones that were sent.
    #[error(
        "the image's registry refuses access to the image: give credentials with --enable-private-registries \
         and --registry-auth-secret-path"
    )]
    Unauthorized,
    /// No connection, no answer in time, or the connection was lost during an answer.
    #[error(
        "the image's registry cannot be reached: check the registry and the runner's network path to it (proxy, \
         DNS, firewall), and retry; the runner's log has the cause"
    )]
    Unreachable,
    /// A redirect or a token realm leads to an internal address. This registry must not send the
    /// runner there: see `address_class`.
    #[error(
        "the image's registry sends the runner to a loopback, link-local or cluster address, but has no \
         such address itself: check the registry's redirects and token realm (the runner's log names the \
         host), use a registry with such an address, or give the image's command in --image-metadata"
    )]
    InternalAddress,
    /// The TLS handshake with the registry fails.
    #[error(
        "the certificate of the image's registry is not trusted: add its CA with --enable-private-registries-tls and \
         --tls-secret-path"
    )]
    Untrusted,
    /// The registry answers the TLS handshake with something that is not TLS.
    #[error(
        "the image's registry does not speak TLS: name it in --insecure-registries if it speaks plain HTTP"
    )]
    PlainHttp,
    /// The certificate has expired, or is not valid yet.
    #[error(
        "the certificate of the image's registry has expired, or is not valid yet: renew it at the registry, or set \
         the clock of the runner's node"
    )]
    CertificateTime,
    /// The certificate is for another host.
    #[error(
        "the certificate of the image's registry is for another host: give the registry a certificate for the host in \
         the image's name, or use a host of the certificate in the image's name"
    )]
    CertificateName,
    /// The registry is overloaded, or limits our rate.
    /// 429 or 5xx.
    #[error("the image's registry answers with status {0}: retry later; credentials may raise limits")]
    Busy(u16),
    /// The registry sends a blob, or all that an image needs, too slowly.
    #[error("the image's registry sends too slowly, {0}: retry, or use a mirror with --registry-mirror")]
    Slow(&'static str),
    /// The response exceeds a limit, or violates the distribution or image specification.
    #[error("the image's registry sent a malformed {what}: {reason}")]
    Malformed {
        /// `manifest`, `image configuration`, `layer`, `tag list`, `token`.
        what: &'static str,
        /// What is wrong with the response, without text of the registry.
        reason: String,
    },
    /// This machine cannot run an image with this document. No lookup fails with this.
    #[error("the image's {what} cannot be used: {reason}")]
    Unusable {
        /// `manifest`, `configuration`, or what the caller of [`read_json`] names.
        what: &'static str,
        /// What is wrong with the document. It may have text of the document, escaped.
        reason: String,
    },
    /// The index has no entry for this platform.
    #[error("the image is not built for {0}: build it, or choose another platform with --platform")]
    Platform(Platform),
    /// The repository exists, but none of its tags matches the constraint.
    #[error("no tag of the image's repository is a version that matches the constraint")]
    NoMatch,
    /// Neither ENTRYPOINT nor CMD.
    #[error("the image has neither ENTRYPOINT nor CMD, so there is nothing to run: add one to it")]
    NoCommand,
    /// The registry wants credentials, and the file with them cannot be used.
    #[error("{0}")]
    Credentials(String),
}

// === impl RegistryError ===

impl RegistryError {
    pub(crate) fn malformed(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Malformed { what, reason: reason.into() }
    }

    pub(crate) fn unusable(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Unusable { what, reason: reason.into() }
    }

    pub(crate) fn too_large(what: &'static str, limit: usize, unit: &str) -> Self {
        Self::malformed(what, format!("it has more than {limit} {unit}"))
    }

    /// The text for a person whose own machine asked the registry. The other texts name flags of
    /// runners.
    pub fn on_own_machine(&self) -> String {
        match self {
            Self::Unreachable => "the image's registry cannot be reached: check the registry and the network path to \
                                  it (proxy, DNS, firewall), and retry; without internet, use `porch-fn images import`"
                .to_owned(),
            Self::Platform(platform) => {
                format!("the image is not built for {platform}, this machine's platform: build it for that")
            }
            Self::Untrusted => "the certificate of the image's registry is not trusted: add its CA to this machine's \
                                certificates, or name a file with it in SSL_CERT_FILE"
                .to_owned(),
            other => other.to_string(),
        }
    }

    /// Whether this error is a valid answer: the registry does not know the image, or the image
    /// cannot be used. All other errors mean that the lookup itself failed.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Self::NotFound | Self::Platform(_) | Self::NoCommand)
    }
}

/// Parses a registry's JSON.
pub(crate) fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &'static str) -> Result<T, RegistryError> {
    serde_json::from_slice(bytes).map_err(|error| RegistryError::malformed(what, json_problem(&error)))
}

/// Parses a document of an image that this machine runs, or of an archive with it.
///
/// # Errors
/// [`RegistryError::Unusable`], which names the field.
pub fn read_json<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> Result<T, RegistryError> {
    serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(bytes))
        .map_err(|error| RegistryError::unusable(what, error.to_string().escape_debug().to_string()))
}

/// The error without serde's own text, which quotes the JSON.
pub(crate) fn json_problem(error: &serde_json::Error) -> String {
    let problem = match error.classify() {
        Category::Data => "a field is missing or of the wrong type",
        Category::Eof => "the JSON ends too early",
        _ => "it is not JSON",
    };
    format!("{problem} (line {}, column {})", error.line(), error.column())
}
