//! Configuration files that are read again when they change. A broken one never takes the place of a good one.
//!
//! The text is compared, not the time: a ConfigMap's mount changes by a symbolic link, and a broken file must be
//! told of once.

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use porch_fn_pool::Time;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// A shorter wait would read the file over and over.
const SHORTEST: Duration = Duration::from_millis(100);

/// Why a file cannot be used. The texts name flag and file, and line and column or the entry.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("--{flag} {path}: {source}")]
    Read {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It is not what was expected.
    #[error("--{flag} {path}: {reason}; {expected}")]
    Parse {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// The form.
        expected: &'static str,
    },
}

/// Reads a text; the error says what is wrong with it.
pub(crate) type Parse<T> = Box<dyn Fn(&str) -> Result<T, String> + Send>;

/// A file and how it is read.
pub(crate) struct WatchedFile<T> {
    /// The flag that names it.
    pub(crate) flag: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) parse: Parse<T>,
    /// What the error says the file should hold.
    pub(crate) expected: &'static str,
}

/// What a file says. Cheap to clone.
#[derive(Debug, PartialEq)]
pub(crate) struct Content<T> {
    pub(crate) value: Arc<T>,
    /// When the file was changed, as far as its file system knows. A change that was seen to come after another state of
    /// the file is later than that one, whatever the file system says.
    pub(crate) modified: Option<Time>,
}

/// What a file says at the start; the default is for one that is not there.
#[derive(Debug)]
pub(crate) struct First<T> {
    pub(crate) content: Content<T>,
    seen: Seen,
}

/// Hears of what a look at the file came to: whether it can be used.
pub(crate) type Told = Box<dyn Fn(bool) + Send>;

/// The file, not yet parsed.
struct Text {
    text: String,
    modified: Option<Time>,
}

/// The file as it was last seen.
struct Seeing<T> {
    file: WatchedFile<T>,
    good: Content<T>,
    /// Since when that is known to hold: what takes its place does so later.
    since: Time,
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

// === impl Content ===

impl<T: Default> Default for Content<T> {
    fn default() -> Self {
        Self { value: Arc::default(), modified: None }
    }
}

impl<T> Clone for Content<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), modified: self.modified }
    }
}

// === impl First ===

impl<T: Default> Default for First<T> {
    fn default() -> Self {
        Self { content: Content::default(), seen: Seen::Nothing }
    }
}

// === impl WatchedFile ===

impl<T: PartialEq + Send + Sync + 'static> WatchedFile<T> {
    /// Reads the file.
    pub(crate) fn read(&self) -> Result<First<T>, FileError> {
        let text = self.text()?;
        Ok(First { content: self.parsed(&text)?, seen: Seen::Text(text.text) })
    }

    fn text(&self) -> Result<Text, FileError> {
        read(&self.path).map_err(|source| FileError::Read {
            flag: self.flag,
            path: self.path.clone(),
            source,
        })
    }

    fn parsed(&self, text: &Text) -> Result<Content<T>, FileError> {
        let value = (self.parse)(&text.text).map_err(|reason| FileError::Parse {
            flag: self.flag,
            path: self.path.clone(),
            reason,
            expected: self.expected,
        })?;
        Ok(Content { value: Arc::new(value), modified: text.modified })
    }

    /// Looks at the file from time to time, beginning after `every`. `first` is what it said at the
    /// start.
    ///
    /// Returns the task that does it, for the caller to spawn, and what the file says. The receiver is woken when that
    /// changes. Of a file that vanished or cannot be used the last good one stays. The task ends when no receiver is left.
    pub(crate) fn watch(
        self,
        every: Duration,
        first: First<T>,
        told: Told,
    ) -> (impl Future<Output = ()> + Send, watch::Receiver<Content<T>>)
    where
        T: Default,
    {
        let First { content: good, seen } = first;
        let (sender, receiver) = watch::channel(good.clone());
        let since = now();
        let task = async move {
            let seeing = Seeing { file: self, good, since, seen };
            tokio::select! {
                () = sender.closed() => {}
                () = follow(seeing, every.max(SHORTEST), &sender, told) => {}
            }
        };
        (task, receiver)
    }
}

impl<T> fmt::Debug for WatchedFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedFile")
            .field("flag", &self.flag)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn read(path: &Path) -> io::Result<Text> {
    let file = File::open(path)?;
    let modified = file.metadata()?.modified().ok();
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(Text { text, modified: modified.and_then(time) })
}

/// `None` before 1970.
fn time(at: SystemTime) -> Option<Time> {
    let since = at.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok().map(Time::from_millis)
}

fn now() -> Time {
    time(SystemTime::now()).unwrap_or_default()
}

async fn follow<T: Default + PartialEq + Send + Sync + 'static>(
    mut seeing: Seeing<T>,
    every: Duration,
    sender: &watch::Sender<Content<T>>,
    told: Told,
) {
    let flag = seeing.file.flag;
    loop {
        sleep(every).await;
        // The file may be on a file system that hangs.
        let looked = spawn_blocking(move || {
            let news = seeing.look();
            (seeing, news)
        });
        let news;
        match looked.await {
            Ok(looked) => (seeing, news) = looked,
            Err(error) => {
                tracing::error!(%error, "--{flag} is not watched any longer");
                return;
            }
        }
        match news {
            None => {}
            Some(Ok(None)) => told(true),
            Some(Ok(Some(content))) => {
                told(true);
                tracing::info!("--{flag} changed");
                sender.send_replace(content);
            }
            Some(Err(error)) => {
                told(false);
                tracing::warn!(%error, "keeping what --{flag} said before");
            }
        }
    }
}

// === impl Seeing ===

impl<T: Default + PartialEq + Send + Sync + 'static> Seeing<T> {
    /// Reads the file. Says what is new: a text that can be used and perhaps says something else, or why it cannot.
    fn look(&mut self) -> Option<Result<Option<Content<T>>, FileError>> {
        self.take(self.file.text(), now())
    }

    fn take(
        &mut self,
        read: Result<Text, FileError>,
        now: Time,
    ) -> Option<Result<Option<Content<T>>, FileError>> {
        let text = match read {
            Ok(text) => text,
            Err(error) => {
                let seen = Seen::Unreadable(error.to_string());
                let known = std::mem::replace(&mut self.seen, seen);
                // A file that never was is none that vanished.
                let never_was =
                    known == Seen::Nothing && *self.good.value == T::default() && is_missing(&error);
                return (known != self.seen && !never_was).then_some(Err(error));
            }
        };
        if matches!(&self.seen, Seen::Text(seen) if *seen == text.text) {
            return None;
        }
        let parsed = self.file.parsed(&text);
        self.seen = Seen::Text(text.text);
        Some(parsed.map(|mut content| {
            if content.value == self.good.value {
                return None;
            }
            // A copy may bring the time of its original along, and so does the way back to an older file.
            let last = self.since.max(self.good.modified.unwrap_or_default());
            if content.modified.is_none_or(|modified| modified <= last) {
                content.modified = Some(now.max(last));
            }
            self.since = now;
            self.good = content.clone();
            Some(content)
        }))
    }
}

fn is_missing(error: &FileError) -> bool {
    matches!(error, FileError::Read { source, .. } if source.kind() == ErrorKind::NotFound)
}
