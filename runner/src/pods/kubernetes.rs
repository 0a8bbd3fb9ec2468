//! Function pods on Kubernetes. Several runners share one set of pods, and the API server resolves
//! their conflicts.
//!
//! ```text
//!   settings ───────┐
//!   template_source ┴► blueprint ─┐                        ┌─► client ─► API server
//!   metadata ◄─ moved_tags ───────┤► backend: one task per │
//!   actions of the pool ──────────┘   action or probe      ┤─► probe ──► wrapper-server
//!                                        ▲                 └─► services
//!   watch ─► observe, crash ─► store ────┘
//!         └─► events to the pool
//! ```
//!
//! `template`, `spec`, `observe`, `crash` and `answers` have no I/O: they turn objects and errors
//! into values. `function_configs` follows one source of the settings. `pull_secret` writes a
//! Secret for the kubelet.

mod answers;
pub(crate) mod backend;
pub(crate) mod blueprint;
pub(crate) mod client;
pub(crate) mod clock;
mod crash;
#[cfg(test)]
mod fake;
pub(crate) mod function_configs;
pub(crate) mod metadata;
pub(crate) mod moved_tags;
pub mod names;
mod observe;
mod probing;
pub(crate) mod pull_secret;
mod services;
mod spec;
pub(crate) mod store;
mod template;
pub(crate) mod template_source;
mod times;
pub(crate) mod watch;

use std::collections::BTreeMap;

use template::Template;

pub use crate::config::BASE_POD_TEMPLATE;

/// Checks whether a runner can make pods from the data of the ConfigMap of
/// `--function-pod-template`.
///
/// # Errors
/// One line that names the rule which the template violates (module `template`). `Ok` holds
/// warnings that the user should still fix.
pub fn check_template(data: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
    Template::from_config_map(data).map(|template| template.warnings)
}
