//! Reads the settings files that flags name. Errors contain the flag and the file.

#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use porch_fn_files::{FileSource, read};

/// Largest file that is read, in bytes.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Parses a text. The error describes the problem.
pub(crate) type Parse<T> = Box<dyn Fn(&str) -> Result<T, String> + Send>;

/// A file and how it is read.
pub(crate) struct SettingsFile<T> {
    /// The flag that names the file.
    pub(crate) flag: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) parse: Parse<T>,
    /// The end of the error for an invalid file: what the file should contain.
    pub(crate) expected: &'static str,
}

// === impl SettingsFile ===

impl<T> SettingsFile<T> {
    /// Reads the file once.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid. The error names the flag and the file. It contains
    /// the I/O error, or the invalid entry or its line and column.
    pub(crate) fn load(&self) -> Result<T, String> {
        self.value(&read(&self.path, MAX_BYTES).map_err(|error| self.error(error))?)
    }

    fn value(&self, content: &[u8]) -> Result<T, String> {
        let text = str::from_utf8(content).map_err(|_| self.error("stream did not contain valid UTF-8"))?;
        (self.parse)(text).map_err(|reason| self.error(format!("{reason}; {}", self.expected)))
    }

    fn error(&self, reason: impl Display) -> String {
        format!("--{} {}: {reason}", self.flag, self.path.display())
    }
}

/// The content is `None` if the file has never existed. If an existing file vanishes, that is an
/// error.
impl<T: Default + PartialEq + Send + Sync + 'static> FileSource for SettingsFile<T> {
    type Content = Option<Bytes>;
    type Value = Arc<T>;
    type Error = String;

    fn name(&self) -> String {
        format!("settings of --{}", self.flag)
    }

    fn read(&self, last: Option<&Option<Bytes>>) -> Result<Option<Bytes>, String> {
        let existed = last.is_some_and(Option::is_some);
        match read(&self.path, MAX_BYTES) {
            Err(error) if error.kind() == ErrorKind::NotFound && !existed => Ok(None),
            content => content.map(Some).map_err(|error| self.error(error)),
        }
    }

    fn parse(&self, content: &Option<Bytes>) -> Result<Arc<T>, String> {
        content.as_ref().map_or_else(|| Ok(Arc::default()), |content| self.value(content).map(Arc::new))
    }

    fn is_same(&self, last: &Arc<T>, new: &Arc<T>) -> bool {
        last == new
    }
}
