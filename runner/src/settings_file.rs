//! Files of settings that flags name. Their errors name flag and file.

#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use porch_fn_files::{FileContent, FileSource, read};
use porch_fn_pool::Time;

use crate::clock::{now, time};

/// Largest file that is read, in bytes.
const MAX_BYTES: usize = 4 * 1024 * 1024;

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
pub(crate) struct SettingsFile<T> {
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
    /// When the file was changed, as far as its file system knows. A change that was seen to follow
    /// another content is later than that one, whatever the file system says.
    pub(crate) modified: Option<Time>,
    /// When the value was first seen.
    pub(crate) seen: Time,
}

// === impl Content ===

impl<T: Default> Default for Content<T> {
    fn default() -> Self {
        Self { value: Arc::default(), modified: None, seen: Time::default() }
    }
}

impl<T> Clone for Content<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), ..*self }
    }
}

// === impl SettingsFile ===

impl<T> SettingsFile<T> {
    /// Reads the file this once.
    pub(crate) fn load(&self) -> Result<T, FileError> {
        self.value(&self.bytes()?)
    }

    fn bytes(&self) -> Result<FileContent, FileError> {
        read(&self.path, MAX_BYTES).map_err(|source| self.unreadable(source))
    }

    fn value(&self, content: &FileContent) -> Result<T, FileError> {
        let text = content.text().map_err(|source| self.unreadable(source))?;
        (self.parse)(text).map_err(|reason| FileError::Parse {
            flag: self.flag,
            path: self.path.clone(),
            reason,
            expected: self.expected,
        })
    }

    fn unreadable(&self, source: io::Error) -> FileError {
        FileError::Read { flag: self.flag, path: self.path.clone(), source }
    }
}

/// `None` is the content of a file that never was there. One that vanishes is an error.
impl<T: Default + PartialEq + Send + Sync + 'static> FileSource for SettingsFile<T> {
    type Content = Option<FileContent>;
    type Value = Content<T>;
    type Error = FileError;

    fn name(&self) -> String {
        format!("settings of --{}", self.flag)
    }

    fn read(&self, last: Option<&Option<FileContent>>) -> Result<Option<FileContent>, FileError> {
        let existed = last.is_some_and(Option::is_some);
        match self.bytes() {
            Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound && !existed => {
                Ok(None)
            }
            content => content.map(Some),
        }
    }

    fn parse(
        &self,
        content: &Option<FileContent>,
        last: Option<&Content<T>>,
    ) -> Result<Content<T>, FileError> {
        let now = now();
        let Some(content) = content else { return Ok(Content { seen: now, ..Content::default() }) };
        let value = Arc::new(self.value(content)?);
        let modified = content.modified.and_then(time);
        let modified = last.map_or(modified, |last| Some(changed_at(modified, last, now)));
        Ok(Content { value, modified, seen: now })
    }

    fn is_same(&self, last: &Content<T>, new: &Content<T>) -> bool {
        last.value == new.value
    }
}

/// When a content was written that follows `last` and is seen `now`. A copy may bring the time of
/// its original along, and so does the way back to an older file.
fn changed_at<T>(modified: Option<Time>, last: &Content<T>, now: Time) -> Time {
    let earliest = last.seen.max(last.modified.unwrap_or_default());
    modified.filter(|&modified| modified > earliest).unwrap_or(now.max(earliest))
}
