//! Watches files that change while a server runs: settings, credentials, certificates.
//!
//! Files are read whole, up to a limit. Reads run on threads that may block, because a file system
//! may hang. A change is detected by content and not by modification time, because Kubernetes
//! changes a mounted ConfigMap by replacing a symbolic link. If a file cannot be read or parsed,
//! the last good value stays. Repeated equal errors are logged once.

#[cfg(test)]
mod tests;

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Minimum interval between two reads.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// A set of files and how they are parsed into a value. The functions may block.
pub trait FileSource: Send + 'static {
    /// The contents of the files.
    type Content: PartialEq + Send;
    /// The parsed value.
    type Value: Clone + Send + Sync;
    /// Why the files cannot be used. Two errors with the same text count as the same error.
    type Error: Display;

    /// Number of consecutive failed reads that are ignored. Several files, such as a certificate
    /// and its key, are not replaced at the same moment. A read between the replacements may fail.
    const TOLERATED_FAILURES: u32 = 0;

    /// The name of the files in the log, in the plural.
    fn name(&self) -> String;

    /// Reads the files. `last` is the last content that could be used.
    fn read(&self, last: Option<&Self::Content>) -> Result<Self::Content, Self::Error>;

    /// Parses the files into a value.
    fn parse(&self, content: &Self::Content) -> Result<Self::Value, Self::Error>;

    /// Whether the new value is equivalent to the last one. If so, the last value stays.
    fn is_same(&self, _last: &Self::Value, _new: &Self::Value) -> bool {
        false
    }
}

/// Reads a file of at most `limit` bytes. Blocks.
///
/// # Errors
/// The system's errors, and [`ErrorKind::FileTooLarge`].
pub fn read(path: &Path, limit: usize) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(bytes.into())
}

/// Files that are read repeatedly, and their last good value. Clones share the value.
pub struct WatchedFiles<S: FileSource> {
    shared: Arc<Shared<S>>,
}

struct Shared<S: FileSource> {
    /// Locked while the files are read, so that only one task reads at a time.
    reader: Arc<AsyncMutex<Reader<S>>>,
    value: watch::Sender<S::Value>,
    error: Mutex<Option<String>>,
}

struct Reader<S: FileSource> {
    source: S,
    /// The content of the current value.
    content: Option<S::Content>,
    failures: u32,
}

// === impl WatchedFiles ===

impl<S: FileSource> WatchedFiles<S> {
    /// Reads the files immediately. Blocks.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn read(source: S) -> Result<Self, S::Error> {
        let content = source.read(None)?;
        let value = source.parse(&content)?;
        Ok(Self::new(source, Some(content), value))
    }

    /// Does not read the files yet: `value` is used until a read succeeds.
    pub fn unread(source: S, value: S::Value) -> Self {
        Self::new(source, None, value)
    }

    fn new(source: S, content: Option<S::Content>, value: S::Value) -> Self {
        let reader = Arc::new(AsyncMutex::new(Reader { source, content, failures: 0 }));
        let shared = Shared { reader, value: watch::Sender::new(value), error: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The last good value.
    pub fn value(&self) -> S::Value {
        self.shared.value.borrow().clone()
    }

    /// A receiver of the last good value, notified when it changes.
    pub fn subscribe(&self) -> watch::Receiver<S::Value> {
        self.shared.value.subscribe()
    }

    /// The last error that was not ignored; `None` after a read that succeeded.
    pub fn last_error(&self) -> Option<String> {
        self.shared.error.lock().clone()
    }

    /// Reads the files now.
    pub async fn reload(&self) {
        self.load(Arc::clone(&self.shared.reader).lock_owned().await).await;
    }

    /// Returns the last good value. If `enough` rejects it, reads the files first. If a read is in
    /// progress, waits for that read, and reads again only if `enough` still rejects the value.
    pub async fn value_or_reload(&self, enough: impl Fn(&S::Value) -> bool) -> S::Value {
        if !enough(&self.value()) {
            let reader = Arc::clone(&self.shared.reader).lock_owned().await;
            if !enough(&self.value()) {
                self.load(reader).await;
            }
        }
        self.value()
    }

    /// Reads the files immediately, then again after each `interval`, until the future is dropped.
    /// After each read, calls `report` with true if the files can be used.
    pub async fn follow(self, interval: Duration, report: impl Fn(bool)) {
        loop {
            self.reload().await;
            report(self.last_error().is_none());
            sleep(interval.max(SHORTEST_INTERVAL)).await;
        }
    }

    async fn load(&self, reader: OwnedMutexGuard<Reader<S>>) {
        let (shared, span) = (Arc::clone(&self.shared), tracing::Span::current());
        // An error means that the runtime shuts down or the source panicked. The panic hook has
        // logged the panic.
        let _ = spawn_blocking(move || span.in_scope(|| shared.load(reader))).await;
    }
}

impl<S: FileSource> Clone for WatchedFiles<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: FileSource> fmt::Debug for WatchedFiles<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedFiles").finish_non_exhaustive()
    }
}

// === impl Shared ===

impl<S: FileSource> Shared<S> {
    fn load(&self, mut reader: OwnedMutexGuard<Reader<S>>) {
        let Reader { source, content, failures } = &mut *reader;
        let is_first = content.is_none();
        let read = source.read(content.as_ref()).and_then(|new| {
            let is_new = content.as_ref() != Some(&new);
            let value = is_new.then(|| source.parse(&new)).transpose()?;
            Ok((new, value))
        });
        match read {
            Ok((new, value)) => {
                (*content, *failures) = (Some(new), 0);
                let news = value.filter(|new| is_first || !source.is_same(&self.value.borrow(), new));
                let recovered = self.error.lock().take().is_some();
                if recovered || (news.is_some() && !is_first) {
                    tracing::info!("{} were read again", source.name());
                }
                if let Some(value) = news {
                    self.value.send_replace(value);
                }
            }
            Err(_) if *failures < S::TOLERATED_FAILURES => *failures += 1,
            Err(error) => {
                let mut known = self.error.lock();
                let error = error.to_string();
                if known.as_ref() != Some(&error) {
                    tracing::warn!(error, kept = !is_first, "{} were not read", source.name());
                }
                *known = Some(error);
            }
        }
    }
}
