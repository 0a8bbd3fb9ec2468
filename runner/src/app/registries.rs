//! Wires what asks registries: credentials, trust, the client, and what is remembered.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_registry::{
    Client, CredentialFile, CredentialSource, Images, ImagesOptions, LOOKUP_WITHIN, Options, Platform, Roots,
};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::Instrument;

use super::AppError;
use super::settings::reread_every;
use crate::config::Flags;
use crate::metrics::Metrics;
use crate::pods::kubernetes::metadata::{ImageSource, MetadataFile};

/// How long a registry's refusal is remembered.
const NEGATIVE_TTL: Duration = Duration::from_secs(10);
/// Images, and repositories, that are remembered.
const MAX_IMAGES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// What is known of images, and with whose credentials.
pub(super) struct Registries {
    pub(super) images: Arc<ImageSource>,
    pub(super) credentials: CredentialFile,
}

/// As the flags say; what has to be followed is in `tasks`.
pub(super) fn registries(
    flags: &Flags,
    metrics: &Arc<Metrics>,
    tasks: &mut JoinSet<()>,
) -> Result<Registries, AppError> {
    let wrong = |text: String| AppError::Flags(text);
    let platform = match flags.platform.as_str() {
        "" => Platform::default(),
        text => Platform::parse(text).map_err(|error| wrong(error.to_string()))?,
    };
    let file = match &flags.image_metadata {
        Some(path) => MetadataFile::read(path, &flags.default_image_prefix)?,
        None => MetadataFile::default(),
    };
    let source = if flags.enable_private_registries {
        CredentialSource::Private(flags.registry_auth_secret_path.clone())
    } else {
        CredentialSource::default_places()
    };
    let credentials = CredentialFile::new(source);
    let roots = if flags.enable_private_registries_tls {
        Roots::with_private(flags.tls_secret_path.clone())
    } else {
        Roots::system()
    };
    let follow = follow(credentials.clone(), roots.clone(), Arc::clone(metrics), reread_every(flags));
    tasks.spawn(follow.instrument(tracing::info_span!("registry files")));
    let client = Client::new(Options {
        platform,
        insecure: flags.insecure_registries.iter().cloned().collect(),
        credentials: credentials.clone(),
        roots,
        user_agent: concat!("porch-fn-runner/", env!("CARGO_PKG_VERSION")).to_owned(),
        within: LOOKUP_WITHIN,
    });
    let options = ImagesOptions {
        ttl: flags.image_metadata_ttl.into(),
        negative_ttl: NEGATIVE_TTL,
        max_entries: MAX_IMAGES,
    };
    let images = Images::new(Arc::new(client), options);
    Ok(Registries { images: Arc::new(ImageSource::new(file, images)), credentials })
}

/// Reads both files again and again.
async fn follow(credentials: CredentialFile, roots: Roots, metrics: Arc<Metrics>, every: Duration) {
    let mut ticks = interval(every.max(Duration::from_millis(100)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        tokio::join!(credentials.reload(), roots.reload());
        metrics.config_valid("registry-auth-secret-path", credentials.last_error().is_none());
        metrics.config_valid("tls-secret-path", roots.last_error().is_none());
    }
}
