//! Sets up access to registries: credentials, trusted CAs, the client, and the cache of answers.

use std::sync::Arc;
use std::time::Duration;

use porch_fn_registry::{
    Client, CredentialFile, CredentialSource, Credentials, Images, Mirror, Options, Platform,
    plain_registries, roots,
};

use super::{AppError, Wiring};
use crate::pods::ImageCommands;
use crate::pods::images::ImageSource;

/// The smallest effective `--image-metadata-ttl`. A smaller value would make the runner query
/// registries all the time.
const LEAST_TTL: Duration = Duration::from_secs(1);

impl Wiring<'_> {
    /// Creates the source of image metadata, and the credentials for registries.
    pub(super) fn registries(&mut self) -> Result<(Arc<ImageSource>, CredentialFile), AppError> {
        let flags = self.flags;
        let file = match &flags.image_metadata {
            Some(path) => ImageCommands::metadata(path, &flags.server.default_image_prefix)?,
            None => ImageCommands::default(),
        };
        let (private, private_tls) = (flags.enable_private_registries, flags.enable_private_registries_tls);
        let platform = match flags.platform.as_str() {
            "" => Platform::default(),
            text => Platform::parse(text)?,
        };
        let mirrors = flags.mirrors.registry_mirror.iter().map(|text| Mirror::parse(text));
        let mirrors = mirrors.collect::<Result<Vec<_>, _>>()?;
        let plain = plain_registries(&flags.insecure_registries, &mirrors)?;
        let source = if private {
            CredentialSource::Private(flags.registry_auth_secret_path.clone())
        } else {
            CredentialSource::default_place()
        };
        let credentials = source.watch();
        let roots = roots(private_tls.then(|| flags.tls_secret_path.clone()), plain)?;
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
            credentials: Credentials::File(credentials.clone()),
            roots,
            mirrors,
            report: Arc::new(move |what, has_answered, took| metrics.lookup(what, has_answered, took)),
        });
        let ttl = Duration::from(flags.image_metadata_ttl).max(LEAST_TTL);
        let registries = Some(Arc::new(Images::new(Arc::new(client), ttl)));
        Ok((Arc::new(ImageSource { file, registries }), credentials))
    }
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
}
