//! Reads a mounted file. Errors are the same words each time, with nothing of what is in the file.

use std::io;
use std::path::Path;

use porch_fn_files::FileContent;

/// The most that is read of a file, in bytes. A Kubernetes Secret holds no more.
const MAX_BYTES: usize = 1 << 20;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("there is no such file")]
    NotFound,
    #[error("it is not a file")]
    NotAFile,
    #[error("it has more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("it cannot be read: {0}")]
    Unreadable(io::ErrorKind),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NotFound,
            io::ErrorKind::FileTooLarge => Self::TooLarge,
            kind => Self::Unreadable(kind),
        }
    }
}

/// Reads a file. Blocks.
pub(crate) fn read(path: &Path) -> Result<FileContent, FileError> {
    // To open a pipe waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(FileError::NotAFile);
    }
    Ok(porch_fn_files::read(path, MAX_BYTES)?)
}
