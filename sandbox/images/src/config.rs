//! How an image wants to be run: its configuration, by the rules of Docker. No I/O.

use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// What an image says about its process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunConfig {
    /// ENTRYPOINT.
    pub entrypoint: Vec<String>,
    /// CMD: arguments of ENTRYPOINT, or the command.
    pub cmd: Vec<String>,
    /// ENV, each `NAME=VALUE`.
    pub env: Vec<String>,
    /// WORKDIR. Empty: `/`.
    pub folder: String,
    /// USER: `user`, `uid`, `user:group`, `uid:gid`. Empty if the image names none.
    pub user: String,
}

/// The run configuration, and the digests of the layers' tar streams, lowest first.
pub(crate) fn parse(bytes: &[u8]) -> Result<(RunConfig, Vec<String>), StoreError> {
    let image = ImageConfiguration::from_reader(bytes)
        .map_err(|error| StoreError::document("image configuration", error))?;
    let config = image.config().clone().unwrap_or_default();
    let run = RunConfig {
        entrypoint: config.entrypoint().clone().unwrap_or_default(),
        cmd: config.cmd().clone().unwrap_or_default(),
        env: config.env().clone().unwrap_or_default(),
        folder: config.working_dir().clone().unwrap_or_default(),
        user: config.user().clone().unwrap_or_default(),
    };
    Ok((run, image.rootfs().diff_ids().clone()))
}

// === impl RunConfig ===

impl RunConfig {
    /// The command: ENTRYPOINT and these arguments, or else CMD.
    pub fn command(&self, args: &[String]) -> Vec<String> {
        let args = if args.is_empty() { &self.cmd } else { args };
        self.entrypoint.iter().chain(args).cloned().collect()
    }
}
