//! The flags of sandboxes and of the image store.

use std::env;
use std::path::PathBuf;

use porch_fn_flags::{CommaList, Size};
use porch_fn_images::Store;
use porch_fn_runner_config::MirrorFlags;
use porch_fn_sandbox::Limits;

use crate::failure::Failure;

/// Where images are kept, and how registries are reached.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sandboxes")]
pub(crate) struct RegistryArgs {
    /// Folder for function images: pulled, unpacked, and shared by all processes of this user.
    ///
    /// Default: porch-fn/images in the user's folder for caches, ~/.cache
    #[arg(long, value_name = "DIR", env = "PORCH_FN_IMAGE_DIR")]
    image_dir: Option<String>,
    /// Largest size of all function images in that folder. A pull removes the images that were
    /// unused for longest
    #[arg(long, value_name = "SIZE", default_value = "20Gi")]
    image_max_size: Size,
    /// Mirrors of registries.
    #[command(flatten)]
    pub(super) mirrors: MirrorFlags,
    /// Registries that speak plain HTTP: host or host:port, separated by commas
    #[arg(long, value_name = "HOSTS", env = "PORCH_FN_INSECURE_REGISTRIES")]
    pub(super) insecure_registries: Option<CommaList>,
}

/// The limits of each sandbox of `up`. The defaults are enough for the functions of the catalog, and
/// little enough that one cannot stop the machine.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sandboxes")]
#[allow(clippy::struct_field_names, reason = "they are the names of the flags")]
pub(crate) struct SandboxFlags {
    /// Memory of a sandbox's processes and of its /tmp; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "2Gi", value_parser = memory)]
    pub(crate) sandbox_memory: Size,
    // A sandbox has a process of its own, and needs another to start.
    /// Number of a sandbox's processes and threads
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(4..))]
    pub(crate) sandbox_pids: u64,
    /// Processors for a sandbox, such as 1.5; 0: no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0.0, value_parser = cpus)]
    pub(crate) sandbox_cpus: f64,
    /// Size of a sandbox's /tmp
    #[arg(long, value_name = "SIZE", default_value = "512Mi", value_parser = tmp_size)]
    pub(crate) sandbox_tmp_size: Size,
}

/// Parses a limit of memory. With less, no program starts.
///
/// # Errors
/// It is not a size, or too small.
fn memory(text: &str) -> Result<Size, String> {
    let size = text.parse()?;
    let is_accepted = size == Size(0) || size >= Size(16 << 20);
    let problem = || "no function starts with less than 16Mi; 0 means no limit".to_owned();
    is_accepted.then_some(size).ok_or_else(problem)
}

/// Parses the size of `/tmp`. For the kernel, 0 means no limit.
///
/// # Errors
/// It is not a size, or too small.
fn tmp_size(text: &str) -> Result<Size, String> {
    let size = text.parse()?;
    if size < Size(64 << 10) { Err("at least 64Ki is needed".to_owned()) } else { Ok(size) }
}

/// Parses a number of processors.
///
/// # Errors
/// No machine has as many or as little.
fn cpus(text: &str) -> Result<f64, String> {
    let is_accepted = |cpus: &f64| *cpus == 0.0 || (0.01..=8192.0).contains(cpus);
    text.parse().ok().filter(is_accepted).ok_or_else(|| "use 0.01 to 8192, or 0 for no limit".to_owned())
}

// === impl RegistryArgs ===

impl RegistryArgs {
    /// Opens the image store.
    pub(crate) fn open(&self) -> Result<Store, Failure> {
        let folder = match self.image_dir.as_deref() {
            None | Some("") => {
                user_folder("XDG_CACHE_HOME", ".cache", "--image-dir")?.join("porch-fn/images")
            }
            Some(folder) => folder.into(),
        };
        Ok(Store::open(&folder, self.image_max_size.0)?)
    }
}

// === impl SandboxFlags ===

impl SandboxFlags {
    pub(crate) fn limits(&self) -> Limits {
        let (memory, tmp) = (self.sandbox_memory.0, self.sandbox_tmp_size.0);
        Limits::of_flags(memory, self.sandbox_pids, self.sandbox_cpus, tmp)
    }
}

/// A folder of the user by the XDG base directory specification: the one that the variable names,
/// or this one in the home directory.
///
/// # Errors
/// Neither variable has an absolute path. `flag` then names a folder.
pub(crate) fn user_folder(variable: &str, in_home: &str, flag: &str) -> Result<PathBuf, Failure> {
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let found = folder(variable).or_else(|| Some(folder("HOME")?.join(in_home)));
    let text = format!("neither {variable} nor HOME is set: name a folder with {flag}");
    found.ok_or_else(|| Failure::usage(text))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: SandboxFlags,
    }

    #[test]
    fn limits_that_no_function_can_live_with_are_refused() {
        assert_eq!(["0", "16Mi", "1g"].map(memory), [Ok(Size(0)), Ok(Size(16 << 20)), Ok(Size(1 << 30))]);
        for text in ["1", "1024k", "16777215"] {
            assert!(memory(text).unwrap_err().contains("16Mi"), "{text}");
        }
        assert_eq!(["64Ki", "512m"].map(tmp_size), [Ok(Size(64 << 10)), Ok(Size(512 << 20))]);
        for text in ["0", "65535"] {
            assert!(tmp_size(text).unwrap_err().contains("64Ki"), "{text}");
        }
        assert_eq!(["0", "0.01", "1.5", "8192"].map(cpus), [Ok(0.0), Ok(0.01), Ok(1.5), Ok(8192.0)]);
        for text in ["nan", "inf", "-inf", "-1", "1e300", "0.00001", "-0.5", "8193", "x", ""] {
            assert!(cpus(text).unwrap_err().contains("0.01 to 8192"), "{text}");
        }
        let pids = |text: &str| Line::try_parse_from(["", &format!("--sandbox-pids={text}")]);
        assert_eq!(["4", "1024"].map(|text| pids(text).unwrap().flags.sandbox_pids), [4, 1024]);
        for text in ["0", "3", "-1", "x"] {
            assert!(pids(text).unwrap_err().to_string().contains("'--sandbox-pids <COUNT>'"), "{text}");
        }
        for error in [memory("x"), tmp_size("1.5g")] {
            assert!(error.unwrap_err().contains("64Mi, 1g"));
        }
    }
}
