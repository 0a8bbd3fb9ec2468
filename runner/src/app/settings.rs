//! Wires the sources of settings: flags and files. FunctionConfigs come with Kubernetes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_files::WatchedFiles;
use porch_fn_flags::SetFlags;
use porch_fn_image::AllowedImages;
use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_settings::{self as settings, CacheConfig, ExecConfig, Flag};
use tokio::sync::watch;

use super::{AppError, present};
use crate::config::Flags;
use crate::metrics::Metrics;
use crate::settings::Sources;
use crate::settings_file::{Content, SettingsFile};

/// The longest wait until a changed file is read.
const REREAD_EVERY: Duration = Duration::from_secs(10);
/// A shorter wait would look for executables over and over.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// How often files are read again.
pub(super) fn reread_every(flags: &Flags) -> Duration {
    REREAD_EVERY.min(flags.scan_interval.into())
}

/// Reads the files that the flags name, and follows them in `tasks`.
pub(super) fn sources(
    flags: &Flags,
    set: &SetFlags,
    metrics: &Arc<Metrics>,
    tasks: &mut Tasks,
) -> Result<Sources, AppError> {
    let prefix = flags.default_image_prefix.clone();
    let cache = SettingsFile {
        flag: "pod-cache-config",
        path: flags.pod_cache_config.clone(),
        parse: Box::new(move |text| CacheConfig::parse(text, &prefix)),
        expected: CacheConfig::EXPECTED,
    };
    let (prefix, functions) = (flags.default_image_prefix.clone(), flags.functions.clone());
    let exec = SettingsFile {
        flag: "config",
        path: flags.config.clone(),
        parse: Box::new(move |text| executables(text, &functions, &prefix)),
        expected: ExecConfig::EXPECTED,
    };
    // There are none, unless Kubernetes has some.
    let (_, functions) = watch::channel(Some(Arc::default()));
    Ok(Sources {
        flags: flag_settings(flags, set)?,
        cache: follow(cache, flags, set, metrics, tasks)?,
        exec: follow(exec, flags, set, metrics, tasks)?,
        functions,
        look_every: reread_every(flags).max(SHORTEST_LOOK),
    })
}

fn follow<T: Default + PartialEq + Send + Sync + 'static>(
    file: SettingsFile<T>,
    flags: &Flags,
    set: &SetFlags,
    metrics: &Arc<Metrics>,
    tasks: &mut Tasks,
) -> Result<watch::Receiver<Content<T>>, AppError> {
    let flag = file.flag;
    let file = if present(flag, &file.path, set)? {
        WatchedFiles::read(file)?
    } else {
        WatchedFiles::unread(file, Content::default())
    };
    metrics.config_valid(flag, true);
    let (metrics, receiver) = (Arc::clone(metrics), file.subscribe());
    let report = move |valid| metrics.config_valid(flag, valid);
    tasks.keep(tracing::info_span!("file", flag), file.follow(reread_every(flags), report));
    Ok(receiver)
}

/// What `--config` says, with what is wrong but not fatal in the log.
fn executables(text: &str, functions: &Path, prefix: &str) -> Result<ExecConfig, String> {
    let config = ExecConfig::parse(text, functions, prefix)?;
    for (image, function) in &config.duplicates {
        tracing::warn!(image, function, "duplicate image in --config is ignored");
    }
    for (image, executable) in config.iter() {
        let path = executable.path.display();
        if executable.path.exists() {
            tracing::info!(image, %path, "exec function");
        } else {
            tracing::warn!(image, %path, "exec function is missing; see --functions");
        }
    }
    Ok(config)
}

fn flag_settings(flags: &Flags, set: &SetFlags) -> Result<settings::Flags, AppError> {
    fn flag<T>(value: T, name: &str, set: &SetFlags) -> Flag<T> {
        Flag { value, set: set.contains(name) }
    }
    let at_least_one = |value: u32| value.max(1);
    let allowed_images = AllowedImages::parse(&flags.allowed_images, &flags.default_image_prefix);
    let allowed_images =
        allowed_images.map_err(|error| AppError::Flags(format!("--allowed-images: {error}")))?;
    Ok(settings::Flags {
        ttl: flag(flags.pod_ttl.into(), "pod-ttl", set),
        max_pods: flag(
            at_least_one(flags.max_parallel_pods_per_function),
            "max-parallel-pods-per-function",
            set,
        ),
        waitlist: flag(at_least_one(flags.max_waitlist_length), "max-waitlist-length", set),
        per_pod: flag(at_least_one(flags.max_concurrent_per_pod), "max-concurrent-per-pod", set),
        queue: flag(flags.max_queue_per_function, "max-queue-per-function", set),
        functions: flags.functions.clone(),
        default_prefix: flags.default_image_prefix.clone(),
        allowed_images: Arc::new(allowed_images),
    })
}
