//! The process that unpacks layers. It has one thread, so that it can enter a user and a mount
//! namespace, where it mounts an overlay of the layers below. If it was root, it becomes the owner
//! of the images' files before it reads anything of the image.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use nix::mount::{MsFlags, mount};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use porch_fn_registry::Hasher;
use porch_fn_sandbox::enter_own_mounts;
use rustix::fs::{Mode, XattrFlags, fremovexattr, fsetxattr};
use rustix::process::{Signal, set_parent_process_death_signal, umask};
use serde::{Deserialize, Serialize};

use crate::content::Hashed;
use crate::document::Layer;
use crate::unpack::{Size, decompressed, unpack};
use crate::{Owner, StoreError};

/// The first argument of the process.
const NAME: &str = "__unpack";

/// What to unpack: JSON on standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Has the folder `tree/fs` for the result.
    pub(crate) folder: PathBuf,
    /// The files of the layers below, lowest first. Empty: no overlay is needed.
    pub(crate) parents: Vec<PathBuf>,
    /// The layers and their blobs.
    pub(crate) layers: Vec<(PathBuf, Layer)>,
    pub(crate) owner: Option<Owner>,
    pub(crate) limits: Size,
}

/// The result: JSON on standard output.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// What the layers take of the limits.
    Unpacked(Size),
    Failed(String),
    /// A blob does not have its digest.
    Damaged(PathBuf),
    /// The machine refuses an overlay.
    NoOverlay(String),
}

/// Runs the process, and waits for its end.
pub(crate) fn run_child(order: &Order) -> Result<Answer, StoreError> {
    let run = || -> io::Result<_> {
        // The program may be replaced while it runs. This is still the same.
        let mut child =
            Command::new("/proc/self/exe").arg(NAME).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&serde_json::to_vec(order)?)?;
        }
        child.wait_with_output()
    };
    let failed = |error: &dyn ToString| {
        StoreError::Layer(format!("the process that unpacks a layer failed: {}", error.to_string()))
    };
    let ended = run().map_err(|error| failed(&error))?;
    serde_json::from_slice(&ended.stdout).map_err(|_| failed(&ended.status))
}

/// Runs the process that unpacks layers, if `args`, program name included, are its command line.
pub fn unpack_child(args: &[OsString]) -> Option<ExitCode> {
    (args.get(1)? == NAME).then(|| {
        let order: Result<Order, _> = serde_json::from_reader(io::stdin().lock());
        let answer = order.map_or_else(|error| Answer::Failed(error.to_string()), |order| order.run());
        match serde_json::to_writer(io::stdout(), &answer) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        }
    })
}

// === impl Order ===

impl Order {
    fn run(&self) -> Answer {
        let blobs: io::Result<Vec<_>> = self.layers.iter().map(|(path, _)| File::open(path)).collect();
        let blobs = match blobs {
            Ok(blobs) => blobs,
            Err(error) => return Answer::Failed(format!("a layer cannot be read: {error}")),
        };
        let fs = self.folder.join("tree/fs");
        let folder = if self.parents.is_empty() {
            File::open(&fs)
        } else {
            match self.mount_overlay(&fs) {
                Ok(place) => File::open(place),
                Err(reason) => return Answer::NoOverlay(reason),
            }
        };
        let prepared = folder.and_then(|folder| {
            self.drop_root()?;
            Ok(folder)
        });
        match prepared {
            Ok(folder) => self.unpack(&blobs, &folder),
            Err(error) => Answer::Failed(format!("a layer cannot be unpacked: {error}")),
        }
    }

    fn unpack(&self, blobs: &[File], folder: &File) -> Answer {
        let mut left = self.limits;
        for (blob, (path, layer)) in blobs.iter().zip(&self.layers) {
            match apply(blob, layer, folder, left) {
                Ok(Some(size)) => {
                    left.bytes = left.bytes.saturating_sub(size.bytes);
                    left.entries = left.entries.saturating_sub(size.entries);
                }
                Ok(None) => return Answer::Damaged(path.clone()),
                Err(text) => return Answer::Failed(text),
            }
        }
        Answer::Unpacked(Size {
            bytes: self.limits.bytes - left.bytes,
            entries: self.limits.entries - left.entries,
        })
    }

    /// Mounts an overlay whose changes go to `upper`. Only this process sees it.
    fn mount_overlay(&self, upper: &Path) -> Result<PathBuf, String> {
        let text = |error: &dyn ToString| error.to_string();
        let (work, place) = (self.folder.join("work"), self.folder.join("root"));
        fs::create_dir(&work).and_then(|()| fs::create_dir(&place)).map_err(|error| text(&error))?;
        // The kernel stacks only what was opened in this namespace.
        enter_own_mounts().map_err(|error| text(&error))?;
        let folders = [upper, &work].into_iter().chain(self.parents.iter().rev().map(PathBuf::as_path));
        let folders: Result<Vec<_>, _> = folders.map(File::open).collect();
        let folders = folders.map_err(|error| text(&error))?;
        // The kernel marks a folder that replaces a lower one with an attribute like this.
        let attribute = c"user.overlay.probe";
        fsetxattr(&folders[0], attribute, b"y", XattrFlags::empty())
            .and_then(|()| fremovexattr(&folders[0], attribute))
            .map_err(|error| text(&error))?;
        // The kernel reads the options in a page of 4 KiB, so the folders have short names.
        let names: Vec<_> =
            folders.iter().map(|folder| format!("/proc/self/fd/{}", folder.as_raw_fd())).collect();
        let options = format!(
            "lowerdir={},upperdir={},workdir={},userxattr,volatile",
            names[2..].join(":"),
            names[0],
            names[1]
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("overlay"), &place, Some("overlay"), flags, Some(&*options))
            .map_err(|error| text(&error))?;
        Ok(place)
    }

    /// Becomes the owner of the images' files for good. Ends with the parent process.
    fn drop_root(&self) -> io::Result<()> {
        if let Some(Owner { uid, gid }) = self.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            setgroups(&[])?;
            setresgid(gid, gid, gid)?;
            setresuid(uid, uid, uid)?;
        }
        umask(Mode::from(0o022));
        // A change of the user clears it.
        Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
    }
}

/// Applies a layer, and verifies both of its digests. `None`: the blob does not have its digest.
fn apply(blob: &File, layer: &Layer, folder: &File, limits: Size) -> Result<Option<Size>, String> {
    let hasher = |digest: &str| Hasher::of(digest).ok_or("a layer's digest is malformed");
    let text = |error: io::Error| format!("a layer cannot be read: {error}");
    let mut blob = Hashed::new(blob, hasher(&layer.digest)?);
    let unpacked = decompressed(&mut blob).map_err(text).and_then(|tar| {
        let mut tar = Hashed::new(tar, hasher(&layer.diff_id)?);
        let size = unpack(&mut tar, folder.as_fd(), limits).map_err(|error| error.to_string())?;
        Ok((size, tar.finish().map_err(text)?))
    });
    // A damaged blob is the cause of whatever else is wrong.
    if blob.finish().map_err(text)? != layer.digest {
        return Ok(None);
    }
    let (size, diff_id) = unpacked?;
    if diff_id == layer.diff_id {
        Ok(Some(size))
    } else {
        Err("a layer's files do not have the digest that the image's configuration names".to_owned())
    }
}
