//! When certificates expire, and whether the current files are in use: connections outlive both, so
//! nothing else shows it before the next rollout.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::{Decode, SliceReader};

/// Metrics of the files that TLS flags name. Without such flags there are none.
#[derive(Debug, Clone, Default)]
pub struct Gauges {
    expiry: Family<Label, Gauge>,
    valid: Family<Label, Gauge>,
}

/// `flags`: what the flags begin with, `tls` or `listen-tls`.
type Label = [(&'static str, &'static str); 1];

impl Gauges {
    /// Registers them in `registry`, whose prefix says whose they are.
    pub fn new(registry: &mut Registry) -> Self {
        let gauges = Self::default();
        registry.register_with_unit(
            "tls_certificate_expiry_timestamp",
            "When the certificate in use expires, since 1970",
            Unit::Seconds,
            gauges.expiry.clone(),
        );
        registry.register(
            "tls_files_valid",
            "1 when the files of these flags are those in use, 0 when they cannot be used and earlier ones are",
            gauges.valid.clone(),
        );
        gauges
    }

    /// Sets the expiry of the certificate in use.
    pub(super) fn uses(&self, flags: &'static str, certificate: Option<&CertificateDer<'_>>) {
        // For a certificate that rustls accepts and that cannot be read here, no time is better.
        if let Some(expiry) = certificate.and_then(expiry) {
            self.expiry.get_or_create(&label(flags)).set(expiry);
        } else {
            self.expiry.remove(&label(flags));
        }
    }

    /// Sets whether the files can be used.
    pub(super) fn valid(&self, flags: &'static str, valid: bool) {
        self.valid.get_or_create(&label(flags)).set(i64::from(valid));
    }
}

fn label(flags: &'static str) -> Label {
    [("flags", flags.trim_start_matches('-'))]
}

/// In seconds since 1970.
fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let mut reader = SliceReader::new(certificate).ok()?;
    let certificate = Certificate::decode(&mut reader).ok()?;
    let not_after = certificate.tbs_certificate().validity().not_after;
    i64::try_from(not_after.to_unix_duration().as_secs()).ok()
}
