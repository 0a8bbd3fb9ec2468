//! The flags of sandboxes and of the image store.

use std::env;
use std::path::{PathBuf, absolute};

use porch_fn_runner_config::MirrorFlags;
use porch_fn_sandbox::Limits;

/// Where images are kept, and where they come from.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ImageStoreFlags {
    /// Folder for function images: pulled, unpacked, and shared by all processes of this user.
    ///
    /// Default: porch-fn/images in the user's folder for caches, ~/.cache
    #[arg(
        long,
        value_name = "DIR",
        env = "PORCH_FN_IMAGE_DIR",
        default_value = "",
        hide_default_value = true,
        help_heading = "Sandboxes"
    )]
    pub(crate) image_dir: String,
    /// Largest size of all function images in that folder, in bytes. A pull removes the images that
    /// were unused for longest
    #[arg(long, value_name = "BYTES", default_value_t = 20 << 30, help_heading = "Sandboxes")]
    pub(crate) image_max_size: u64,
    /// Mirrors of registries.
    #[command(flatten)]
    pub(crate) mirrors: MirrorFlags,
}

/// Default limits of a sandbox: enough for the functions of the catalog, and little enough that one
/// cannot stop the machine.
pub(crate) mod defaults {
    /// Memory in bytes.
    pub(crate) const MEMORY: u64 = 2 << 30;
    /// Processes and threads.
    pub(crate) const PIDS: u64 = 1024;
    /// Size of `/tmp` in bytes.
    pub(crate) const TMP_SIZE: u64 = 512 << 20;
}

/// The limits of each sandbox of `up`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SandboxFlags {
    /// Memory of a sandbox's processes and of its /tmp, in bytes; 0: no limit
    #[arg(long, value_name = "BYTES", default_value_t = defaults::MEMORY, help_heading = "Sandboxes")]
    pub(crate) sandbox_memory: u64,
    /// Number of a sandbox's processes and threads
    #[arg(long, value_name = "COUNT", default_value_t = defaults::PIDS, help_heading = "Sandboxes")]
    pub(crate) sandbox_pids: u64,
    /// Processors for a sandbox, such as 1.5; 0: no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0.0, help_heading = "Sandboxes")]
    pub(crate) sandbox_cpus: f64,
    /// Size of a sandbox's /tmp, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = defaults::TMP_SIZE, help_heading = "Sandboxes")]
    pub(crate) sandbox_tmp_size: u64,
}

// === impl ImageStoreFlags ===

impl ImageStoreFlags {
    /// The folder of `--image-dir`, or its default.
    ///
    /// # Errors
    /// There is no default, because the environment has no home directory.
    pub(crate) fn folder(&self) -> Result<PathBuf, String> {
        if !self.image_dir.is_empty() {
            // Other processes open it, too, and not in this one's folder.
            return absolute(&self.image_dir).map_err(|error| format!("--image-dir: {error}"));
        }
        let cache = user_folder("XDG_CACHE_HOME", ".cache")
            .ok_or("neither XDG_CACHE_HOME nor HOME is set: name a folder for images with --image-dir")?;
        Ok(cache.join("porch-fn/images"))
    }
}

// === impl SandboxFlags ===

impl SandboxFlags {
    pub(crate) fn limits(&self) -> Limits {
        Limits::of_flags(
            self.sandbox_memory,
            self.sandbox_pids,
            self.sandbox_cpus,
            self.sandbox_tmp_size,
        )
    }
}

/// A folder of the user by the XDG base directory specification: the one that the variable names,
/// or this one in the home directory. `None`: neither variable has an absolute path.
pub(crate) fn user_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder(variable).or_else(|| Some(folder("HOME")?.join(in_home)))
}
