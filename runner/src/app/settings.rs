//! Sets up the sources of settings: flags and files. The Kubernetes backend adds FunctionConfigs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_files::WatchedFiles;
use porch_fn_image::AllowedImages;
use porch_fn_settings::{self as settings, CacheConfig, ExecConfig, Setting, Source};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use super::{AppError, Wiring};
use crate::settings::Sources;
use crate::settings_file::SettingsFile;

/// The longest wait until a changed file is read.
const REREAD_EVERY: Duration = Duration::from_secs(10);
/// The shortest pause between two checks for executables.
const SHORTEST_CHECK: Duration = Duration::from_millis(100);

impl Wiring<'_> {
    /// How often files are read again.
    pub(super) fn reread_every(&self) -> Duration {
        REREAD_EVERY.min(self.flags.scan_interval.into())
    }

    /// Whether the file or directory that `--flag` names exists. If the user set the flag, a
    /// missing file is an error.
    pub(super) fn exists(&self, flag: &str, path: &Path) -> Result<bool, String> {
        if path.exists() {
            return Ok(true);
        }
        if self.set.contains(flag) {
            return Err(format!("--{flag} {}: no such file or directory", path.display()));
        }
        tracing::info!(path = %path.display(), "the default path of --{flag} does not exist");
        Ok(false)
    }

    /// Reads the files that the flags name, and reads them again when they change.
    pub(super) fn sources(&mut self) -> Result<Sources, AppError> {
        let flags = self.flags;
        let prefix = flags.server.default_image_prefix.clone();
        let cache = SettingsFile {
            flag: "pod-cache-config",
            path: flags.pod_cache_config.clone(),
            parse: Box::new(move |text| CacheConfig::parse(text, &prefix)),
            expected: CacheConfig::EXPECTED,
        };
        let (prefix, functions) = (flags.server.default_image_prefix.clone(), flags.functions.clone());
        let exec = SettingsFile {
            flag: "config",
            path: flags.config.clone(),
            parse: Box::new(move |text| executables(text, &functions, &prefix)),
            expected: ExecConfig::EXPECTED,
        };
        Ok(Sources {
            flags: self.flag_settings()?,
            cache: self.follow_file(cache)?,
            cache_changed: None,
            exec: self.follow_file(exec)?,
            // Only the Kubernetes backend has FunctionConfigs.
            functions: watch::channel(Some(Arc::default())).1,
            check_every: self.reread_every().max(SHORTEST_CHECK),
            exec_hash: if flags.is_enabled("exec") {
                self.metrics.exec_hash.clone()
            } else {
                Gauge::default()
            },
        })
    }

    fn follow_file<T: Default + PartialEq + Send + Sync + 'static>(
        &mut self,
        file: SettingsFile<T>,
    ) -> Result<watch::Receiver<Arc<T>>, String> {
        let flag = file.flag;
        let file = if self.exists(flag, &file.path)? {
            WatchedFiles::read(file)?
        } else {
            WatchedFiles::unread(file, Arc::default())
        };
        let (metrics, receiver) = (Arc::clone(&self.metrics), file.subscribe());
        metrics.config_valid(flag, true);
        let follow = file.follow(self.reread_every(), move |valid| metrics.config_valid(flag, valid));
        self.tasks.keep(tracing::info_span!("file", flag), follow);
        Ok(receiver)
    }

    fn flag_settings(&self) -> Result<settings::Flags, AppError> {
        let flags = self.flags;
        let allowed_images =
            AllowedImages::parse(&flags.server.allowed_images, &flags.server.default_image_prefix);
        let allowed_images = allowed_images.map_err(|error| AppError::of_flag("allowed-images", error))?;
        let source = |name| if self.set.contains(name) { Source::Flag(name) } else { Source::Default(name) };
        let at_least_one = |value: u32, name| Setting::new(value.max(1), source(name));
        Ok(settings::Flags {
            ttl: Setting::new(flags.pod_ttl.into(), source("pod-ttl")),
            max_pods: at_least_one(flags.max_parallel_pods_per_function, "max-parallel-pods-per-function"),
            waitlist: at_least_one(flags.max_waitlist_length, "max-waitlist-length"),
            per_pod: at_least_one(flags.max_concurrent_per_pod, "max-concurrent-per-pod"),
            queue: at_least_one(flags.max_queue_per_function, "max-queue-per-function"),
            functions: flags.functions.clone(),
            allowed_images: Arc::new(allowed_images),
        })
    }
}

/// Parses the file of `--config`. Logs problems that are not fatal.
fn executables(text: &str, functions: &Path, prefix: &str) -> Result<ExecConfig, String> {
    let config = ExecConfig::parse(text, prefix)?;
    for (image, function) in &config.duplicates {
        tracing::warn!(image, path = function, "duplicate image in --config is ignored");
    }
    for (image, executable) in config.iter() {
        let file = functions.join(executable);
        let path = file.display();
        if file.exists() {
            tracing::info!(image, %path, "exec function");
        } else {
            tracing::warn!(image, %path, "exec function is missing; see --functions");
        }
    }
    Ok(config)
}
