//! Function pods on Kubernetes. Several runners share one set of pods, and the API server resolves
//! their conflicts.
//!
//! ```text
//!   settings ───────┐
//!   template_source ┴► blueprint ─┐                        ┌─► client ─► API server
//!   images ◄─ moved_tags ─────────┤► backend: one task per │
//!   actions of the pool ──────────┘   action or probe      ┤─► probe ──► wrapper-server
//!                                        ▲                 └─► services
//!   watch ─► observe, crash ─► store ────┘
//!         └─► events to the pool
//! ```
//!
//! `template`, `spec`, `observe`, `crash` and `answers` have no I/O: they turn objects and errors
//! into values. `function_configs` follows one source of the settings. `pull_secret` writes a
//! Secret for the kubelet.

pub(crate) mod announce;
mod answers;
pub(crate) mod backend;
pub(crate) mod blueprint;
pub(crate) mod client;
pub(crate) mod clock;
mod crash;
#[cfg(test)]
mod fake;
pub(crate) mod function_configs;
mod observe;
mod probing;
pub(crate) mod pull_secret;
mod services;
mod spec;
pub(crate) mod store;
pub(crate) mod template_source;
pub(crate) mod watch;

use porch_fn_runner_config::{names, template, times};
