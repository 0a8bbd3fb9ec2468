//! The settings of functions, combined from flags, files and FunctionConfigs. They are combined
//! again whenever a source changes.

mod exec_hash;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_pool::Time;
use porch_fn_runner_config::times::from_timestamp;
use porch_fn_settings::{CacheConfig, ExecConfig, Flags, FunctionConfigs, Settings};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use self::exec_hash::exec_hash;
use crate::clock::now;

/// How many missing executables one log line names.
const MAX_NAMED: usize = 5;

/// The settings at one moment.
#[derive(Debug, Clone)]
pub(crate) struct CurrentSettings {
    pub(crate) settings: Arc<Settings>,
    /// Identifies the executables of the exec runtime; see [`exec_hash`].
    pub(crate) exec_hash: u64,
    /// When `--pod-cache-config` or a FunctionConfig last changed, if known.
    pub(crate) time: Option<Time>,
    /// Whether every source has answered. Until then the settings apply to calls, but the runner
    /// creates, replaces and deletes no pods.
    pub(crate) complete: bool,
}

/// Where settings come from. A receiver without a sender keeps its value.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) flags: Flags,
    /// `--pod-cache-config`.
    pub(crate) cache: watch::Receiver<Arc<CacheConfig>>,
    /// When the runner noticed a change of the file. The file's own timestamp is not used: a copy
    /// may keep the timestamp of its original.
    pub(crate) cache_changed: Option<Time>,
    /// `--config`.
    pub(crate) exec: watch::Receiver<Arc<ExecConfig>>,
    /// `None` until the API server's first answer.
    pub(crate) functions: watch::Receiver<Option<Arc<FunctionConfigs>>>,
    /// How often the runner checks whether the executables of FunctionConfigs exist.
    pub(crate) check_every: Duration,
    /// The metric of [`CurrentSettings::exec_hash`].
    pub(crate) exec_hash: Gauge,
}

// === impl Sources ===

impl Sources {
    /// Returns the current settings, and a task that updates them until no receiver is left.
    pub(crate) fn follow(mut self) -> (impl Future<Output = ()> + Send, watch::Receiver<CurrentSettings>) {
        let first = self.current();
        log_missing(None, &first.settings);
        let (sender, receiver) = watch::channel(first);
        let task = async move {
            loop {
                let mut changed_source = true;
                tokio::select! {
                    () = sender.closed() => return,
                    () = changed(&mut self.cache) => self.cache_changed = Some(now()),
                    () = changed(&mut self.exec) => {}
                    () = changed(&mut self.functions) => {}
                    () = sleep(self.check_every) => changed_source = false,
                }
                let before = Arc::clone(&sender.borrow().settings);
                // The executables may be on a file system that hangs.
                let read = spawn_blocking(move || {
                    let is_new = changed_source || !before.has_same_executables(Path::is_file);
                    let current = is_new.then(|| self.current());
                    if let Some(current) = &current {
                        log_missing(Some(&before), &current.settings);
                    }
                    (self, current)
                });
                let Ok((sources, current)) = read.await else {
                    tracing::error!("settings are no longer updated");
                    return;
                };
                self = sources;
                if let Some(current) = current {
                    sender.send_replace(current);
                }
            }
        };
        (task, receiver)
    }

    /// The current settings.
    pub(crate) fn current(&mut self) -> CurrentSettings {
        // `follow` notices one changed source at a time: the file may have changed too.
        if self.cache.has_changed().unwrap_or(false) {
            self.cache_changed = Some(now());
        }
        let cache = self.cache.borrow_and_update().clone();
        let exec = self.exec.borrow_and_update().clone();
        let functions = self.functions.borrow_and_update().clone();
        let complete = functions.is_some();
        let functions = functions.unwrap_or_default();
        // Changes of `--config` do not count, because executables are not part of any pod.
        let time = self.cache_changed.max(functions.changed.and_then(from_timestamp));
        let settings = Settings::new(self.flags.clone(), cache, Arc::clone(&exec), functions, Path::is_file);
        let exec_hash = exec_hash(&exec, &settings);
        self.exec_hash.set(exec_hash.cast_signed());
        CurrentSettings { settings: Arc::new(settings), exec_hash, time, complete }
    }
}

/// Logs the missing executables if their list has changed.
fn log_missing(before: Option<&Settings>, now: &Settings) {
    let missing = |settings: &Settings| -> Vec<_> {
        let missing = settings.missing_executables();
        missing.map(|(config, path)| format!("{}: {}", config.name, path.display())).collect()
    };
    let (before, now) = (before.map(missing).unwrap_or_default(), missing(now));
    if before == now {
        return;
    }
    if now.is_empty() {
        tracing::info!("all executables of FunctionConfigs exist now");
        return;
    }
    // This is normal with Porch 1.6 and the next version: their FunctionConfigs name executables in
    // Porch's image.
    tracing::info!(
        missing = now.len(),
        executables = now[..now.len().min(MAX_NAMED)].join(", "),
        "executables of FunctionConfigs do not exist, so their images run in pods; see --functions"
    );
}

/// Waits for the next value. Never returns if the sender is gone.
pub(crate) async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::path::PathBuf;

    use porch_fn_image::Image;
    use porch_fn_settings::{FunctionConfig, Setting, Source, TagSemantics};
    use serde_json::json;
    use tempfile::tempdir;

    use super::*;

    fn flags() -> Flags {
        let flag = |value| Setting::new(value, Source::Default("x"));
        Flags {
            ttl: Setting::new(Duration::from_mins(30), Source::Default("x")),
            max_pods: flag(1),
            waitlist: flag(2),
            per_pod: flag(16),
            queue: flag(1000),
            functions: PathBuf::from("/functions"),
            allowed_images: Arc::default(),
        }
    }

    /// The settings of default flags and this file.
    pub(crate) fn settings(cache: CacheConfig) -> Settings {
        Settings::new(flags(), Arc::new(cache), Arc::default(), Arc::default(), |_| true)
    }

    /// The same as current settings, without executables.
    pub(crate) fn current(cache: CacheConfig, complete: bool) -> CurrentSettings {
        CurrentSettings { settings: Arc::new(settings(cache)), exec_hash: 0, time: None, complete }
    }

    fn sources() -> Sources {
        Sources {
            flags: flags(),
            cache: watch::channel(Arc::default()).1,
            cache_changed: None,
            exec: watch::channel(Arc::default()).1,
            functions: watch::channel(Some(Arc::default())).1,
            check_every: Duration::from_secs(10),
            exec_hash: Gauge::default(),
        }
    }

    #[tokio::test]
    async fn a_change_of_a_source_publishes_new_settings() {
        let (cache, cache_receiver) = watch::channel(Arc::default());
        let (task, mut current) = Sources { cache: cache_receiver, ..sources() }.follow();
        let task = tokio::spawn(task);
        let image = Image::parse("f:v1", "example.com").unwrap();
        let found = |current: &CurrentSettings| (current.settings.of(&image).max_pods.value, current.time);
        assert_eq!(found(&current.borrow_and_update()), (1, None));
        let text = "- {name: f:v1, maxParallelPodsPerFunction: 7}";
        let before = now();
        cache.send_replace(Arc::new(CacheConfig::parse(text, "example.com").unwrap()));
        current.changed().await.unwrap();
        let (max_pods, time) = found(&current.borrow_and_update());
        assert!(max_pods == 7 && time >= Some(before), "{max_pods} {time:?}");
        drop(current);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn settings_are_complete_once_function_configs_are_known() {
        let (functions, receiver) = watch::channel(None);
        let (task, mut current) = Sources { functions: receiver, ..sources() }.follow();
        let _task = tokio::spawn(task);
        assert!(!current.borrow_and_update().complete);
        functions.send_replace(Some(Arc::default()));
        current.changed().await.unwrap();
        assert!(current.borrow().complete, "also if the cluster has none");
    }

    #[tokio::test(start_paused = true)]
    async fn an_executable_that_is_created_later_is_used() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("f");
        let object = json!({
            "metadata": {"name": "fc"},
            "spec": {"image": "f", "binaryExecutor": {"tags": ["v1"], "path": path}},
        });
        let configs = vec![FunctionConfig::parse(&object, "example.com", TagSemantics::Exact).unwrap()];
        let semantics = Setting { value: TagSemantics::Exact, source: Source::Schema };
        let (_, functions) = watch::channel(Some(Arc::new(FunctionConfigs::new(configs, semantics, None))));
        let (task, mut current) = Sources { functions, ..sources() }.follow();
        let _task = tokio::spawn(task);
        let image = Image::parse("f:v1", "example.com").unwrap();
        assert_eq!(current.borrow().settings.of(&image).executable, None);
        // A directory is not an executable.
        fs::create_dir(&path).unwrap();
        sleep(Duration::from_secs(30)).await;
        assert!(!current.has_changed().unwrap());
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        current.changed().await.unwrap();
        let found =
            |current: &CurrentSettings| current.settings.of(&image).executable.map(|found| found.value);
        assert_eq!(found(&current.borrow_and_update()), Some(path.clone()));
        fs::remove_file(&path).unwrap();
        current.changed().await.unwrap();
        assert_eq!(found(&current.borrow_and_update()), None);
    }
}
