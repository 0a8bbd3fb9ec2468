//! Checks a registry's certificate with webpki, with one exception.
//!
//! `openssl req -x509` makes certificates that are their own CA. Users configure such a certificate
//! in a registry, and give the same file to the runner as the CA. Go and curl accept such a
//! certificate, but webpki rejects a CA as a server's certificate. So this verifier accepts a
//! certificate from the user's CA file, if that certificate is valid and has the server's name.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// The TLS configuration of all requests. It trusts `roots`. These include `given`, the
/// certificates of the user's CA file. The configuration names its crypto provider, because the
/// process may have another default provider, or none.
pub(crate) fn tls(roots: RootCertStore, given: Vec<CertificateDer<'static>>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let mut config = if roots.is_empty() {
        // webpki cannot create a verifier without roots. This configuration trusts no registry.
        builder.with_root_certificates(roots).with_no_client_auth()
    } else {
        let webpki = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build();
        let webpki = webpki.map_err(|error| Error::General(error.to_string()))?;
        let verifier = Verifier { webpki, given };
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[derive(Debug)]
struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // webpki checks the dates before it returns this error.
            Err(Error::InvalidCertificate(CertificateError::Other(other)))
                if other.to_string() == "CaUsedAsEndEntity"
                    && self.given.iter().any(|it| it == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
