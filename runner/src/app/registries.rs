//! Wires what asks registries: credentials, trust, the client, and what is remembered.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use porch_fn_image::Image;
use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_registry::{
    Client, CredentialFile, CredentialSource, Images, Metadata, Options, Platform, Registry, RegistryError,
    roots,
};
use tokio::time::Instant;

use super::AppError;
use super::settings::reread_every;
use crate::config::Flags;
use crate::metrics::Metrics;
use crate::pods::kubernetes::metadata::{ImageSource, MetadataFile};

/// The least `--image-metadata-ttl` that is kept: below it registries would be asked all the time.
const LEAST_TTL: Duration = Duration::from_secs(1);
/// The most of a wrong item that is quoted.
const MAX_QUOTED: usize = 100;

/// What is known of images, and with whose credentials.
pub(super) struct Registries {
    pub(super) images: Arc<ImageSource>,
    pub(super) credentials: CredentialFile,
}

/// As the flags say; what has to be followed is in `tasks`.
pub(super) fn registries(
    flags: &Flags,
    metrics: &Arc<Metrics>,
    tasks: &mut Tasks,
) -> Result<Registries, AppError> {
    let wrong = |text: String| AppError::Flags(text);
    let platform = match flags.platform.as_str() {
        "" => Platform::default(),
        text => Platform::parse(text).map_err(wrong)?,
    };
    check_insecure(&flags.insecure_registries).map_err(wrong)?;
    let file = match &flags.image_metadata {
        Some(path) => MetadataFile::at(path, &flags.default_image_prefix).load()?.into(),
        None => Arc::default(),
    };
    let source = if flags.enable_private_registries {
        CredentialSource::Private(flags.registry_auth_secret_path.clone())
    } else {
        CredentialSource::default_place()
    };
    let credentials = source.watch();
    let roots = roots(flags.enable_private_registries_tls.then(|| flags.tls_secret_path.clone()));
    let report = |flag, is_set| {
        let metrics = Arc::clone(metrics);
        move |usable| {
            // By default it is no fault if there are none.
            if is_set {
                metrics.config_valid(flag, usable);
            }
        }
    };
    let every = reread_every(flags);
    let span = tracing::info_span!("registry files");
    let report_credentials = report("registry-auth-secret-path", flags.enable_private_registries);
    tasks.keep(span.clone(), credentials.clone().follow(every, report_credentials));
    let report_roots = report("tls-secret-path", flags.enable_private_registries_tls);
    tasks.keep(span, roots.clone().follow(every, report_roots));
    let client = Client::new(Options {
        platform,
        insecure: flags.insecure_registries.iter().cloned().collect(),
        credentials: credentials.clone(),
        roots,
    });
    let client = CountedLookups { registry: client, metrics: Arc::clone(metrics) };
    let ttl = Duration::from(flags.image_metadata_ttl).max(LEAST_TTL);
    let images = Images::new(Arc::new(client), ttl);
    Ok(Registries { images: Arc::new(ImageSource::new(file, images)), credentials })
}

/// A registry client whose lookups are in the metrics. What is remembered asks nobody, and is not.
#[derive(Debug)]
struct CountedLookups {
    registry: Client,
    metrics: Arc<Metrics>,
}

impl CountedLookups {
    async fn count<T>(
        &self,
        what: &'static str,
        lookup: BoxFuture<'_, Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        let began = Instant::now();
        let answer = lookup.await;
        self.metrics.lookup(what, answer.as_ref().err().is_none_or(is_answer), began.elapsed());
        answer
    }
}

/// Whether the registry did its part and the image is at fault: a mistyped name is no registry that fails.
fn is_answer(error: &RegistryError) -> bool {
    matches!(error, RegistryError::NotFound | RegistryError::Platform { .. } | RegistryError::NoCommand)
}

impl Registry for CountedLookups {
    fn metadata<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>> {
        self.count("metadata", self.registry.metadata(image)).boxed()
    }

    fn digest<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        self.count("digest", self.registry.digest(image)).boxed()
    }

    fn tags<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        self.count("tags", self.registry.tags(image)).boxed()
    }
}

/// Whether each item could be the registry of an image.
fn check_insecure(items: &[String]) -> Result<(), String> {
    match items.iter().find(|item| !is_registry(item)) {
        None => Ok(()),
        Some(item) => {
            let item: String = item.chars().take(MAX_QUOTED).collect();
            Err(format!(
                "--insecure-registries: {item:?} is no registry: write host, host:port or [IPv6 address]:port, \
                 without a scheme or a path, several of them separated by commas"
            ))
        }
    }
}

/// As image references have it. There a host alone is known by a dot or a port, here it always is one.
fn is_registry(item: &str) -> bool {
    let has_port = item.rsplit(']').next().is_some_and(|behind| behind.contains(':'));
    let registry = if has_port { item.to_owned() } else { format!("{item}:80") };
    Image::parse(&format!("{registry}/image:tag"), "")
        .is_ok_and(|image| image.registry() == registry.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use porch_fn_grpc::{Hop, Inflight};
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[tokio::test]
    async fn a_lookup_fails_with_the_registry_and_not_with_the_image() {
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry, &Inflight::new(0, Hop::Runner)));
        let client = Client::new(Options {
            platform: Platform::default(),
            insecure: Vec::new(),
            credentials: CredentialSource::Default(None).watch(),
            roots: roots(None),
        });
        let lookups = CountedLookups { registry: client, metrics };
        let text = || "x".to_owned();
        let (what, reason) = ("manifest", text());
        for (answer, answered, failed) in [
            (Ok(()), 1, 0),
            (Err(RegistryError::NotFound), 2, 0),
            (Err(RegistryError::Platform { platform: text() }), 3, 0),
            (Err(RegistryError::NoCommand), 4, 0),
            (Err(RegistryError::Unauthorized), 4, 1),
            (Err(RegistryError::Credentials(text())), 4, 2),
            (Err(RegistryError::Unreachable), 4, 3),
            (Err(RegistryError::Untrusted), 4, 4),
            (Err(RegistryError::CertificateTime), 4, 5),
            (Err(RegistryError::CertificateName), 4, 6),
            (Err(RegistryError::Busy { status: 503 }), 4, 7),
            (Err(RegistryError::Malformed { what, reason }), 4, 8),
            (Err(RegistryError::TooLarge { what, limit: 1 }), 4, 9),
        ] {
            assert_eq!(lookups.count("digest", ready(answer.clone()).boxed()).await, answer);
            let mut page = String::new();
            encode(&mut page, &registry).unwrap();
            for (result, count) in [("answered", answered), ("failed", failed)] {
                let line = format!("_lookup_seconds_count{{what=\"digest\",result=\"{result}\"}} {count}\n");
                assert!(page.contains(&line), "{answer:?}: {page}");
            }
        }
    }

    #[test]
    fn insecure_registries_are_hosts() {
        for good in [
            "localhost",
            "registry",
            "registry:5000",
            "a.b",
            "A.b:80",
            "127.0.0.1",
            "127.0.0.1:65535",
            "[::1]",
            "[::1]:5000",
            "index.docker.io",
            "docker.io",
            "my-registry.svc.cluster.local:5000",
        ] {
            assert_eq!(check_insecure(&["x.y".to_owned(), good.to_owned()]), Ok(()), "{good}");
        }
        for wrong in [
            "http://a.b",
            "https://a.b:80",
            "a.b/",
            "a.b/team",
            "a.b:80/team",
            "a.b:",
            "a.b:0",
            "a.b:65536",
            "a.b:x",
            "a.b:+1",
            ":5000",
            "::1",
            "[::1",
            "[::1]5000",
            "[::1]:",
            "[a.b]:80",
            "a b",
            "a_b",
            "-a.b",
            "a..b",
            "*.b",
            "me@a.b",
            "a.b?c",
            "a.b#c",
            "a.b:80@sha256",
            "ä.b",
        ] {
            let told = check_insecure(&["x.y".to_owned(), wrong.to_owned()]).expect_err(wrong);
            assert!(told.starts_with("--insecure-registries: ") && !told.contains('\n'), "{told}");
            assert!(told.contains(&format!("{wrong:?} is no registry: write host, host:port")), "{told}");
        }
        let told = check_insecure(&["/".repeat(5000)]).unwrap_err();
        assert!(told.len() < 400, "{told}");
    }
}
