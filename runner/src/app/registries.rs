//! Sets up access to registries: credentials, trusted CAs, the client, and the cache of answers.

use std::sync::Arc;
use std::time::Duration;

use porch_fn_image::Image;
use porch_fn_registry::{
    Client, CredentialFile, CredentialSource, Images, Mirrors, Options, Platform, roots,
};

use super::{AppError, Wiring};
use crate::pods::ImageCommands;
use crate::pods::kubernetes::metadata::ImageSource;

/// The smallest effective `--image-metadata-ttl`. A smaller value would make the runner query
/// registries all the time.
const LEAST_TTL: Duration = Duration::from_secs(1);
/// How many characters of an invalid item an error quotes.
const MAX_QUOTED: usize = 100;

impl Wiring<'_> {
    /// Creates the source of image metadata, and the credentials for registries.
    pub(super) fn registries(&mut self) -> Result<(Arc<ImageSource>, CredentialFile), AppError> {
        let flags = self.flags;
        let file = match &flags.image_metadata {
            Some(path) => ImageCommands::metadata(path, &flags.server.default_image_prefix)?,
            None => ImageCommands::default(),
        };
        let (client, credentials) = self.registry_client()?;
        let ttl = Duration::from(flags.image_metadata_ttl).max(LEAST_TTL);
        let images = Images::new(Arc::new(client), ttl);
        Ok((Arc::new(ImageSource { file, registries: images }), credentials))
    }

    /// Creates the client of registries, and the credentials that it sends.
    pub(super) fn registry_client(&mut self) -> Result<(Client, CredentialFile), AppError> {
        let flags = self.flags;
        let (private, private_tls) = (flags.enable_private_registries, flags.enable_private_registries_tls);
        let platform = match flags.platform.as_str() {
            "" => Platform::default(),
            text => Platform::parse(text)?,
        };
        check_insecure(&flags.insecure_registries)?;
        let mirrors = Mirrors::parse(flags.sandbox.store.registry_mirror.iter().map(String::as_str))?;
        let source = if private {
            CredentialSource::Private(flags.registry_auth_secret_path.clone())
        } else {
            CredentialSource::default_place()
        };
        let credentials = source.watch();
        let insecure = flags.insecure_registries.iter().map(String::as_str).chain(mirrors.plain());
        let insecure = insecure.map(str::to_owned).collect();
        let roots = roots(private_tls.then(|| flags.tls_secret_path.clone()), insecure)?;
        let report = |flag, is_set| {
            let metrics = Arc::clone(&self.metrics);
            move |usable| {
                // A file at a default path may be missing, so the metric covers only files that a
                // flag names.
                if is_set {
                    metrics.config_valid(flag, usable);
                }
            }
        };
        let (every, span) = (self.reread_every(), tracing::info_span!("registry files"));
        let follow = credentials.clone().follow(every, report("registry-auth-secret-path", private));
        let follow_roots = roots.clone().follow(every, report("tls-secret-path", private_tls));
        self.tasks.keep(span.clone(), follow);
        self.tasks.keep(span, follow_roots);
        let metrics = Arc::clone(&self.metrics);
        let client = Client::new(Options {
            platform,
            credentials: credentials.clone(),
            roots,
            mirrors,
            report: Arc::new(move |what, has_answered, took| metrics.lookup(what, has_answered, took)),
        });
        Ok((client, credentials))
    }
}

/// Checks that each item could be the registry of an image.
fn check_insecure(items: &[String]) -> Result<(), String> {
    let Some(item) = items.iter().find(|item| !is_registry(item)) else { return Ok(()) };
    let item: String = item.chars().take(MAX_QUOTED).collect();
    Err(format!(
        "--insecure-registries: {item:?} is no registry: write host, host:port or [IPv6 address]:port, without a scheme or \
         a path, several of them separated by commas"
    ))
}

/// Whether an image reference could have `item` as its registry. Image references recognise a
/// registry by a dot or a port. An item may have neither, so this adds a port.
fn is_registry(item: &str) -> bool {
    let has_port = item.rsplit(']').next().is_some_and(|behind| behind.contains(':'));
    let registry = if has_port { item.to_owned() } else { format!("{item}:80") };
    Image::parse(&format!("{registry}/image:tag"), "")
        .is_ok_and(|image| image.registry() == registry.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::metrics;

    #[test]
    fn lookups_are_counted_by_their_result() {
        let (metrics, page) = metrics();
        for has_answered in [true, true, false] {
            metrics.lookup("digest", has_answered, Duration::ZERO);
        }
        for (result, count) in [("answered", 2), ("failed", 1)] {
            let line = format!("_lookup_seconds_count{{what=\"digest\",result=\"{result}\"}} {count}\n");
            assert!(page().contains(&line), "{}", page());
        }
    }

    #[test]
    fn insecure_registries_are_hosts() {
        let good = "localhost registry registry:5000 a.b A.b:80 127.0.0.1 127.0.0.1:65535 [::1] [::1]:5000 \
                    index.docker.io docker.io my-registry.svc.cluster.local:5000";
        for good in good.split(' ') {
            assert_eq!(check_insecure(&["x.y".to_owned(), good.to_owned()]), Ok(()), "{good}");
        }
        let wrong = "http://a.b https://a.b:80 a.b/ a.b/team a.b:80/team a.b: a.b:0 a.b:65536 a.b:x a.b:+1 :5000 ::1 [::1 \
                     [::1]5000 [::1]: [a.b]:80 a_b -a.b a..b *.b me@a.b a.b?c a.b#c a.b:80@sha256 ä.b";
        for wrong in wrong.split(' ').chain(["a b"]) {
            let error = check_insecure(&["x.y".to_owned(), wrong.to_owned()]).expect_err(wrong);
            assert!(error.starts_with("--insecure-registries: ") && !error.contains('\n'), "{error}");
            assert!(error.contains(&format!("{wrong:?} is no registry: write host, host:port")), "{error}");
        }
        let error = check_insecure(&["/".repeat(5000)]).unwrap_err();
        assert!(error.len() < 400, "{error}");
    }
}
