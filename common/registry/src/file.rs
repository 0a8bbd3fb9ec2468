//! Reads a mounted file. The same problem always has the same error text, without content of the
//! file.

use std::io::ErrorKind;
use std::path::Path;

use bytes::Bytes;

/// Largest file that is read, in bytes: the size limit of a Kubernetes Secret.
const MAX_BYTES: usize = 1 << 20;

/// The content of a file, or `None` if there is no such file. Blocks.
pub(crate) fn read(path: &Path) -> Result<Option<Bytes>, String> {
    match porch_fn_files::read(path, MAX_BYTES).map_err(|error| error.kind()) {
        Ok(content) => Ok(Some(content)),
        Err(ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(ErrorKind::IsADirectory) => Err("it is not a file".to_owned()),
        Err(ErrorKind::FileTooLarge) => Err(format!("it has more than {MAX_BYTES} bytes")),
        Err(kind) => Err(format!("it cannot be read: {kind}")),
    }
}
