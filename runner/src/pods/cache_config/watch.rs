//! Reads the file again when it changes. The text is compared, not the time: a ConfigMap's mount changes by a
//! symbolic link, and a broken file must be told of once.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch as channel;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{CacheConfig, CacheConfigError, Content};

/// A shorter wait would read the file over and over.
const SHORTEST: Duration = Duration::from_millis(100);

/// Looks at the file at `path` from time to time, beginning after `every`. `first` is what it said at the start, or
/// the default where there was none.
///
/// Returns the task that does it, for the caller to spawn, and what the file says. The receiver is woken when that
/// changes. Of a file that vanished or cannot be used the last good one stays. The task ends when no receiver is left.
pub(crate) fn watch(
    path: PathBuf,
    prefix: String,
    every: Duration,
    first: CacheConfig,
) -> (impl Future<Output = ()> + Send, channel::Receiver<Arc<CacheConfig>>) {
    let first = Arc::new(first);
    let (sender, receiver) = channel::channel(Arc::clone(&first));
    let task = async move {
        tokio::select! {
            () = sender.closed() => {}
            () = follow(Watched::new(path, prefix, first), every.max(SHORTEST), &sender) => {}
        }
    };
    (task, receiver)
}

async fn follow(mut watched: Watched, every: Duration, sender: &channel::Sender<Arc<CacheConfig>>) {
    loop {
        sleep(every).await;
        // The file may be on a file system that hangs.
        let looked = spawn_blocking(move || {
            let news = watched.look();
            (watched, news)
        });
        let news;
        match looked.await {
            Ok(looked) => (watched, news) = looked,
            Err(error) => {
                tracing::error!(%error, "--pod-cache-config is not watched any longer");
                return;
            }
        }
        match news {
            None => {}
            Some(Ok(config)) => {
                tracing::info!(entries = config.entries.len(), "--pod-cache-config changed");
                sender.send_replace(config);
            }
            Some(Err(error)) => tracing::warn!(%error, "keeping what --pod-cache-config said before"),
        }
    }
}

/// The file as it was last seen.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    prefix: String,
    good: Arc<CacheConfig>,
    seen: Seen,
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// Not looked at yet.
    Nothing,
    Text(String),
    /// It could not be read for this reason.
    Unreadable(String),
}

// === impl Watched ===

impl Watched {
    fn new(path: PathBuf, prefix: String, first: Arc<CacheConfig>) -> Self {
        Self { path, prefix, good: first, seen: Seen::Nothing }
    }

    /// Reads the file. Says what is new: another configuration, or why there is none.
    fn look(&mut self) -> Option<Result<Arc<CacheConfig>, CacheConfigError>> {
        self.take(Content::read(&self.path))
    }

    fn take(
        &mut self,
        read: Result<Content, CacheConfigError>,
    ) -> Option<Result<Arc<CacheConfig>, CacheConfigError>> {
        let content = match read {
            Ok(content) => content,
            Err(error) => {
                let seen = Seen::Unreadable(error.to_string());
                let known = std::mem::replace(&mut self.seen, seen);
                // A file that never was is none that vanished.
                let never_was = known == Seen::Nothing && self.good.entries.is_empty() && is_missing(&error);
                return (known != self.seen && !never_was).then_some(Err(error));
            }
        };
        if matches!(&self.seen, Seen::Text(text) if *text == content.text) {
            return None;
        }
        let parsed = content.parse(&self.path, &self.prefix);
        self.seen = Seen::Text(content.text);
        match parsed {
            Ok(config) if config.entries == self.good.entries => None,
            Ok(config) => {
                self.good = Arc::new(config);
                Some(Ok(Arc::clone(&self.good)))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

fn is_missing(error: &CacheConfigError) -> bool {
    matches!(error, CacheConfigError::Read { source, .. } if source.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests;
