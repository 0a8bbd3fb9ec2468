//! Access to registries with the user's own credentials.

use std::sync::Arc;

use porch_fn_flags::LogFormat;
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

/// From now on, logs why a registry was not reached. The errors themselves have no such detail,
/// because those of runners reach package commits.
pub(crate) fn log_causes() {
    porch_fn_telemetry::init("porch-fn", WARNINGS, LogFormat::Text);
}
