//! One read of one file.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;
use std::time::SystemTime;

use bytes::Bytes;

/// A file, whole. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct FileContent {
    /// What is in it.
    pub bytes: Bytes,
    /// When it was written, if the file system says so.
    pub modified: Option<SystemTime>,
}

/// Reads a file of at most `limit` bytes. Blocks.
///
/// # Errors
/// The system's, and [`ErrorKind::FileTooLarge`].
pub fn read(path: &Path, limit: usize) -> io::Result<FileContent> {
    let file = File::open(path)?;
    let modified = file.metadata()?.modified().ok();
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(FileContent { bytes: bytes.into(), modified })
}

// === impl FileContent ===

impl FileContent {
    /// The content as text.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if it is not UTF-8.
    pub fn text(&self) -> io::Result<&str> {
        str::from_utf8(&self.bytes)
            .map_err(|_| io::Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
    }
}

/// Without the content, which may be secret.
impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes.len();
        f.debug_struct("FileContent")
            .field("bytes", &format_args!("[{length} bytes]"))
            .field("modified", &self.modified)
            .finish()
    }
}
