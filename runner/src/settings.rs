//! Everything that configures functions, as of now: flags, files and FunctionConfigs, laid over each other whenever one
//! of them changes.

use std::sync::Arc;

use porch_fn_pool::Time;
use porch_fn_settings::{CacheConfig, ExecConfig, Flags, FunctionConfigs, Settings};
use tokio::sync::watch;

use crate::pods::kubernetes::from_timestamp;
use crate::watched_file::Content;

/// The settings of a moment.
#[derive(Debug, Clone)]
pub(crate) struct Current {
    pub(crate) settings: Arc<Settings>,
    /// When one of the sources was changed last, as far as they tell. Flags are as old as the process.
    pub(crate) time: Option<Time>,
}

/// Where settings come from. Receivers without a sender are as they are for good.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) flags: Flags,
    /// `--pod-cache-config`.
    pub(crate) cache: watch::Receiver<Content<CacheConfig>>,
    /// `--config`.
    pub(crate) exec: watch::Receiver<Content<ExecConfig>>,
    pub(crate) functions: watch::Receiver<Arc<FunctionConfigs>>,
}

impl Sources {
    /// The settings of this moment, and the task that keeps them up to date until no receiver is left.
    pub(crate) fn follow(mut self) -> (impl Future<Output = ()> + Send, watch::Receiver<Current>) {
        let (sender, receiver) = watch::channel(self.current());
        let task = async move {
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    () = changed(&mut self.cache) => {}
                    () = changed(&mut self.exec) => {}
                    () = changed(&mut self.functions) => {}
                }
                sender.send_replace(self.current());
            }
        };
        (task, receiver)
    }

    /// The settings of this moment.
    pub(crate) fn current(&mut self) -> Current {
        let cache = self.cache.borrow_and_update().clone();
        let exec = self.exec.borrow_and_update().clone();
        let functions = self.functions.borrow_and_update().clone();
        // What an executable stands for is not part of any pod.
        let time = cache.modified.max(functions.changed().and_then(from_timestamp));
        let settings = Settings::new(self.flags.clone(), cache.value, exec.value, functions);
        Current { settings: Arc::new(settings), time }
    }
}

async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use porch_fn_image::Image;
    use porch_fn_settings::Flag;

    use super::*;

    fn flags() -> Flags {
        let flag = |value| Flag { value, set: false };
        Flags {
            ttl: Flag { value: Duration::from_mins(30), set: false },
            max_pods: flag(1),
            waitlist: flag(2),
            per_pod: flag(16),
            queue: flag(1000),
            functions: PathBuf::from("/functions"),
            default_prefix: "example.com".to_owned(),
        }
    }

    /// Flags alone.
    pub(crate) fn nothing() -> (impl Future<Output = ()> + Send, watch::Receiver<Current>) {
        let (_, cache) = watch::channel(Content::default());
        let (_, exec) = watch::channel(Content::default());
        let (_, functions) = watch::channel(Arc::default());
        Sources { flags: flags(), cache, exec, functions }.follow()
    }

    #[tokio::test]
    async fn a_change_of_any_source_is_new_settings() {
        let (cache, cache_receiver) = watch::channel(Content::default());
        let (_, exec) = watch::channel(Content::default());
        let (_, functions) = watch::channel(Arc::default());
        let (task, mut current) = Sources { flags: flags(), cache: cache_receiver, exec, functions }.follow();
        let task = tokio::spawn(task);
        let image = Image::parse("f:v1", "example.com").unwrap();
        assert_eq!(current.borrow_and_update().settings.of(&image).max_pods.value, 1);
        assert_eq!(current.borrow().time, None);
        let text = "- {name: f:v1, maxParallelPodsPerFunction: 7}";
        let changed = Content {
            value: Arc::new(CacheConfig::parse(text, "example.com").unwrap()),
            modified: Some(Time::from_millis(5)),
        };
        cache.send_replace(changed);
        current.changed().await.unwrap();
        assert_eq!(current.borrow_and_update().settings.of(&image).max_pods.value, 7);
        assert_eq!(current.borrow().time, Some(Time::from_millis(5)));
        drop(current);
        task.await.unwrap();
    }
}
