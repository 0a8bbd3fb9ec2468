//! The process that unpacks layers. It has one thread, so that it can enter a user and a mount
//! namespace, where it mounts an overlay of the layers below. If it was root, it becomes the owner
//! of the images' files before it reads anything of the image.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use porch_fn_registry::{Hashed, Layer};
use porch_fn_sandbox::{UNPRIVILEGED, become_unprivileged, enter, is_root, path_of};
use rustix::fs::{Mode, XattrFlags, fremovexattr, fsetxattr};
use rustix::process::{Signal, set_parent_process_death_signal, umask};
use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::unpack::{Size, decompressed, unpack};

/// The first argument of the process.
const NAME: &str = "__unpack";

/// What to unpack: JSON on standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// A folder for the process.
    pub(crate) folder: PathBuf,
    /// The folder of the result, which the process creates.
    pub(crate) tree: PathBuf,
    /// The files of the layers below, lowest first. Empty: no overlay is needed.
    pub(crate) parents: Vec<PathBuf>,
    /// The layers and their blobs.
    pub(crate) layers: Vec<(PathBuf, Layer)>,
    pub(crate) limits: Size,
}

/// JSON on standard output: what the layers take of the limits. `None`: the machine refuses an
/// overlay.
type Answer = Result<Option<Size>, String>;

/// Runs the process, and waits for its end.
pub(crate) fn run_child(order: &Order) -> Result<Option<Size>, StoreError> {
    let run = || -> io::Result<Answer> {
        // The program may be replaced while it runs. This is still the same.
        let mut child = Command::new("/proc/self/exe");
        let mut child = child.arg(NAME).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&serde_json::to_vec(order)?))?;
        let ended = child.wait_with_output()?;
        serde_json::from_slice(&ended.stdout).map_err(|_| io::Error::other(ended.status.to_string()))
    };
    let answer = run().map_err(|error| format!("the process that unpacks a layer failed: {error}"));
    answer.flatten().map_err(|error| StoreError::Other(io::Error::other(error)))
}

/// Runs the process that unpacks layers, if `args`, program name included, are its command line.
pub fn unpack_child(args: &[OsString]) -> Option<ExitCode> {
    (args.get(1)? == NAME).then(|| {
        let order: Result<Order, _> = serde_json::from_reader(io::stdin().lock());
        let answer = order.map_err(|error| error.to_string()).and_then(|order| order.run());
        serde_json::to_writer(io::stdout(), &answer).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
    })
}

// === impl Order ===

impl Order {
    fn run(&self) -> Answer {
        let opened = self.open().map_err(|error| format!("a layer cannot be unpacked: {error}"))?;
        let Some((root, blobs)) = opened else { return Ok(None) };
        let mut left = self.limits;
        for (blob, (path, layer)) in blobs.iter().zip(&self.layers) {
            left = left.minus(apply(blob, path, layer, &root, left)?);
        }
        Ok(Some(self.limits.minus(left)))
    }

    /// Opens the folder for the layers' files, and the layers. Then becomes the owner of the images'
    /// files for good, and ends with the parent process.
    fn open(&self) -> io::Result<Option<(File, Vec<File>)>> {
        let blobs = self.layers.iter().map(|(path, _)| File::open(path)).collect::<io::Result<_>>()?;
        // An ordinary user becomes root in the namespace of the overlay.
        let is_root = is_root();
        umask(Mode::from(0o022));
        fs::create_dir_all(&self.tree)?;
        if !self.parents.is_empty()
            && let Err(error) = self.mount_overlay()
        {
            tracing::debug!(error = error.to_string(), "no overlay");
            return Ok(None);
        }
        let root = File::open(&self.tree)?;
        if is_root {
            // Overlayfs shows the mode and owner of the highest layer's folder as those of `/`.
            fchown(&root, Some(UNPRIVILEGED), Some(UNPRIVILEGED))?;
            become_unprivileged()?;
        }
        // A change of the user clears it.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        Ok(Some((root, blobs)))
    }

    /// Mounts an overlay over the tree, which gets its changes. Only this process sees it.
    fn mount_overlay(&self) -> io::Result<()> {
        // The kernel stacks only what was opened in this namespace.
        enter(CloneFlags::empty()).map_err(io::Error::other)?;
        let work = self.folder.join("work");
        fs::create_dir(&work)?;
        let upper = File::open(&self.tree)?;
        let work = File::open(&work)?;
        let lower = self.parents.iter().rev().map(File::open).collect::<io::Result<Vec<_>>>()?;
        // The kernel marks a folder that replaces a lower one with such an attribute.
        fsetxattr(&upper, c"user.overlay.probe", b"y", XattrFlags::empty())?;
        fremovexattr(&upper, c"user.overlay.probe")?;
        // It reads the options in a page of 4 KiB, so the folders have short names.
        let names = lower.iter().map(path_of).collect::<Vec<_>>().join(":");
        let [upper, work] = [&upper, &work].map(path_of);
        let options =
            format!("lowerdir={names},upperdir={upper},workdir={work},userxattr,volatile,index=off");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        Ok(mount(Some("overlay"), &self.tree, Some("overlay"), flags, Some(&*options))?)
    }
}

/// Applies a layer, and verifies both of its digests.
fn apply(blob: &File, path: &Path, layer: &Layer, root: &File, limits: Size) -> Result<Size, String> {
    let text = |error: io::Error| format!("a layer cannot be read: {error}");
    let mut blob = Hashed::new(blob, &layer.digest);
    let unpacked = decompressed(&mut blob).map_err(text).and_then(|tar| {
        let mut tar = Hashed::new(tar, &layer.diff_id);
        let size = unpack(&mut tar, root.as_fd(), limits).map_err(|error| error.to_string())?;
        Ok((size, tar.finish().map_err(text)?))
    });
    // A damaged blob is the cause of whatever else is wrong.
    if blob.finish().map_err(text)? != layer.digest {
        return Err(StoreError::Damaged(path.to_owned()).to_string());
    }
    match unpacked? {
        (size, diff_id) if diff_id == layer.diff_id => Ok(size),
        _ => Err("a layer's files do not have the digest that the image's configuration names".to_owned()),
    }
}
