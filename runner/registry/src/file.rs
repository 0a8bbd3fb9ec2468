//! Files that are mounted and change: read whole, and bounded.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::SystemTime;

use bytes::Bytes;

/// What a file holds.
pub(crate) struct Read {
    pub(crate) bytes: Bytes,
    pub(crate) modified: Option<SystemTime>,
}

/// Why a file was not read: the same words each time, and none of what is in it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("there is no such file")]
    NotFound,
    #[error("it is not a file")]
    NotAFile,
    #[error("it has more than {0} bytes")]
    TooLarge(usize),
    #[error("it cannot be read: {0}")]
    Unreadable(io::ErrorKind),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NotFound,
            kind => Self::Unreadable(kind),
        }
    }
}

/// Reads a file of at most `limit` bytes. Blocks.
pub(crate) fn read(path: &Path, limit: usize) -> Result<Read, FileError> {
    // Before it is opened: that of a pipe waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(FileError::NotAFile);
    }
    let file = File::open(path)?;
    let modified = file.metadata().ok().and_then(|metadata| metadata.modified().ok());
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        Err(FileError::TooLarge(limit))
    } else {
        Ok(Read { bytes: bytes.into(), modified })
    }
}
