//! What local pods run: a command of this machine, or an image in a sandbox.
//!
//! The runner knows nothing of sandboxes but [`Sandboxes`]. `porch-fn up` brings them. The runner of a
//! cluster may create pods there, so it runs no image itself.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use porch_fn_flags::LogFormat;
use porch_fn_pool::{ImageKey, PodRecipe, Reason};
use porch_fn_registry::Images;
use tonic::async_trait;

use super::pod::{GRACE, Pod};
use super::wrapper;
use crate::pods::commands::ImageCommands;
use crate::pods::configure::{OriginOf, Origins};
use crate::settings::CurrentSettings;

/// Options of all local pods.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// The wrapper-server's command line, without its flags.
    pub wrapper: Vec<OsString>,
    /// `--max-request-body-size` for the wrapper.
    pub max_message: usize,
    /// `--log-level` for the wrapper.
    pub log_level: u8,
    /// `--log-format` for the wrapper.
    pub log_format: LogFormat,
    /// The command of each image that runs as a process of this machine.
    pub functions: ImageCommands,
    /// Sandboxes for all other images.
    pub sandboxes: Option<Arc<dyn Sandboxes>>,
}

/// Starts pods of images that have no command on this machine.
#[async_trait]
pub trait Sandboxes: fmt::Debug + Send + Sync {
    /// What the registries of the images report.
    fn registries(&self) -> Arc<Images>;

    /// Starts a pod. Gets its image before, unless it is here and its registry has reported no other
    /// content since. `wrapper` are the wrapper-server's arguments.
    ///
    /// # Errors
    /// Why the pod cannot start.
    async fn start(&self, image: &ImageKey, wrapper: Vec<String>) -> Result<Pod, Reason>;
}

/// The configuration of all local pods. Their flags change only with the process.
pub(crate) struct LocalOrigins;

// === impl LocalOptions ===

impl LocalOptions {
    /// Starts a pod.
    pub(super) async fn start(&self, image: &ImageKey) -> Result<Pod, Reason> {
        match (self.functions.command(image), &self.sandboxes) {
            (Some(command), _) => wrapper::start(self, command).await,
            (None, Some(sandboxes)) => sandboxes.start(image, self.wrapper_args()).await,
            (None, None) => {
                Err(Reason::new("other", "the image has no command: add it to --local-functions"))
            }
        }
    }

    /// The wrapper's flags, without its address.
    pub(super) fn wrapper_args(&self) -> Vec<String> {
        let mut args = vec![
            format!("--max-request-body-size={}", self.max_message),
            format!("--verbosity={}", self.log_level),
            format!("--drain-timeout={}s", GRACE.as_secs()),
            "--exit-with-stdin".to_owned(),
        ];
        // Other wrappers, such as Porch's, do not have this flag and refuse it.
        args.extend((self.log_format == LogFormat::Json).then(|| "--log-format=json".to_owned()));
        args
    }
}

// === impl LocalOrigins ===

impl Origins for LocalOrigins {
    fn origins(&mut self, _: &CurrentSettings) -> OriginOf {
        Box::new(|_, content| PodRecipe { content, ..PodRecipe::of("local", None) })
    }
}
