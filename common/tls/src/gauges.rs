//! Metrics of TLS files: when a certificate expires, and whether the current files are in use. Open
//! connections outlive an expired certificate, so without these metrics the expiry would go
//! unnoticed until the next rollout.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::{Decode, SliceReader};

/// Metrics of the files that TLS flags name. Without TLS flags there are no values.
#[derive(Debug, Clone, Default)]
pub struct Gauges {
    expiry: Family<Label, Gauge>,
    valid: Family<Label, Gauge>,
}

/// The label `flags`: the beginning of the flags' names, `tls` or `listen-tls`.
type Label = [(&'static str, &'static str); 1];

impl Gauges {
    /// Registers the metrics in `registry`. The prefix of `registry` names the program.
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
            "1 if the current files of these flags are in use, 0 if they cannot be used and earlier ones are in use",
            gauges.valid.clone(),
        );
        gauges
    }

    /// Sets the expiry of the certificate in use.
    pub(super) fn set_expiry(&self, flags: &'static str, certificate: Option<&CertificateDer<'_>>) {
        // If this code cannot read a certificate that rustls accepts, it reports no expiry.
        if let Some(expiry) = certificate.and_then(expiry) {
            self.expiry.get_or_create(&label(flags)).set(expiry);
        } else {
            self.expiry.remove(&label(flags));
        }
    }

    /// Sets whether the files can be used.
    pub(super) fn set_valid(&self, flags: &'static str, valid: bool) {
        self.valid.get_or_create(&label(flags)).set(i64::from(valid));
    }
}

fn label(flags: &'static str) -> Label {
    [("flags", flags.trim_start_matches('-'))]
}

/// The time at which the certificate expires, in seconds since 1970.
fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let mut reader = SliceReader::new(certificate).ok()?;
    let certificate = Certificate::decode(&mut reader).ok()?;
    let not_after = certificate.tbs_certificate().validity().not_after;
    i64::try_from(not_after.to_unix_duration().as_secs()).ok()
}
