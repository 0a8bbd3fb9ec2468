//! Folders below `tmp/` that one process uses, and the removal of folders.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use porch_fn_sandbox::path_of;
use tempfile::Builder;

use crate::StoreError;
use crate::error::OnDisk as _;
use crate::store::Store;

/// A folder that only this process uses. Dropping it removes it. If the process is killed, the next
/// one that opens the store removes it.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Locked, so that other processes leave the folder alone.
    file: File,
}

// === impl RunFolder ===

impl RunFolder {
    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A short path of a file in the folder, for this process alone: the path of a socket has at
    /// most 107 bytes.
    pub fn short_path(&self, name: &str) -> PathBuf {
        Path::new(&path_of(&self.file)).join(name)
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        remove_or_warn(&self.path);
    }
}

// === impl Store ===

impl Store {
    /// A folder for a process's sockets, or for unfinished content.
    ///
    /// # Errors
    /// The disk.
    pub fn run_folder(&self) -> Result<RunFolder, StoreError> {
        let tmp = self.path("tmp");
        loop {
            let folder = Builder::new().prefix("").tempdir_in(&tmp).on_disk("cannot write", &tmp)?;
            let path = folder.keep();
            let locked = File::open(&path).and_then(|file| file.lock().map(|()| file));
            // Another process may have swept it before it was locked.
            if path.exists() {
                return Ok(RunFolder { file: locked.on_disk("cannot open", &path)?, path });
            }
        }
    }

    /// Removes what killed processes left: nobody has locked it. Faults are no reason not to use the
    /// store.
    pub(crate) fn sweep(&self) {
        // Older versions had sockets in `run/`, and merged layers in `merged/`.
        let folders = ["tmp", "run", "merged"].map(|folder| self.files(folder).unwrap_or_default());
        for path in folders.concat() {
            if let Ok(file) = File::open(&path)
                && file.try_lock().is_ok()
            {
                remove_or_warn(&path);
            }
        }
    }
}

fn remove_or_warn(path: &Path) {
    if let Err(error) = remove(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove what is not needed any more");
    }
}

/// Moves a record, a blob or a tree away, unless a sandbox uses it. The caller holds the store's
/// lock alone.
pub(crate) fn move_free(path: &Path, doomed: &RunFolder) -> Result<bool, StoreError> {
    let is_free = File::open(path).on_disk("cannot open", path)?.try_lock().is_ok();
    if is_free {
        let to = doomed.path().join(path.file_name().unwrap_or_default());
        fs::rename(path, to).on_disk("cannot remove", path)?;
    }
    Ok(is_free)
}

/// Removes a file, or a folder with all that it contains. No layer has more than 256 folders in each
/// other, so the standard library's descriptor for each level is no matter.
fn remove(path: &Path) -> io::Result<()> {
    // The kernel makes these without permissions for an overlay.
    for folder in ["work/work", "work/work/incompat", "work/work/incompat/volatile"] {
        let _ = fs::set_permissions(path.join(folder), Permissions::from_mode(0o700));
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
