//! Finds and reads the files with credentials and certificates. The same problem always has the
//! same error text, without content of the file.

use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

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

/// `$DOCKER_CONFIG/config.json`, or else `~/.docker/config.json`.
pub(crate) fn of_docker() -> Option<PathBuf> {
    let folder = variable("DOCKER_CONFIG").or_else(|| variable("HOME").map(|home| home.join(".docker")));
    folder.map(|folder| folder.join("config.json"))
}

/// The path in an environment variable.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
