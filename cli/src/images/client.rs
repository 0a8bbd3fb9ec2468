//! Pulls images with the user's own credentials.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;
use porch_fn_flags::LogFormat;
use porch_fn_image::Image;
use porch_fn_images::{Progress, Store, StoreError};
use porch_fn_registry::{
    Client, Credentials, Mirror, Options, Platform, UserCredentials, plain_registries, roots,
};

use super::flags::RegistryArgs;
use crate::failure::Failure;

const WARNINGS: u8 = 1;

pub(crate) fn client(args: &RegistryArgs) -> Result<Client, Failure> {
    let mirrors = args.mirrors.registry_mirror.iter().map(|text| Mirror::parse(text));
    let mirrors = mirrors.collect::<Result<Vec<_>, _>>().map_err(Failure::usage)?;
    let plain = args.insecure_registries.as_deref().unwrap_or_default();
    let plain = plain_registries(plain, &mirrors).map_err(Failure::usage)?;
    let roots = roots(None, plain).map_err(Failure::new)?;
    Ok(Client::new(Options {
        platform: Platform::default(),
        credentials: Credentials::User(UserCredentials::default_places()),
        roots,
        mirrors,
        report: Arc::new(|_, _, _| {}),
    }))
}

/// Pulls an image. If standard error is a terminal, one line there shows how far that is.
///
/// # Errors
/// The flags are wrong. In the result: the image cannot be had.
pub(crate) async fn pull(
    store: &Store,
    args: &RegistryArgs,
    image: &Image,
) -> Result<Result<(), StoreError>, Failure> {
    let (client, shown) = (client(args)?, Mutex::new(String::new()));
    let show = |Progress { layers, unpacked, bytes, received }| {
        let (received, bytes) = (received >> 20, bytes >> 20);
        let line =
            format!("Pulling {image}: {received} of {bytes} MiB, {unpacked} of {layers} layers unpacked");
        let mut shown = shown.lock();
        if *shown != line && io::stderr().is_terminal() {
            // It only informs.
            let _ = write!(io::stderr(), "\r\x1b[K{line}");
            *shown = line;
        }
    };
    let pulled = store.pull(&client, image, &show).await;
    if !shown.lock().is_empty() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    Ok(pulled)
}

/// From now on, logs why a registry was not reached. The errors themselves have no such detail,
/// because those of runners reach package commits.
pub(crate) fn log_causes() {
    porch_fn_telemetry::init("porch-fn", WARNINGS, LogFormat::Text);
}
