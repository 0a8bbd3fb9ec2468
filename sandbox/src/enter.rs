//! What this process does before libcontainer: it enters a mount namespace of its own, and as an
//! ordinary user a user namespace. There it stacks the image's layers.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_dumpable;
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

use crate::advice::advice;
use crate::namespaces;
use crate::spec::{FOLDERS, Mount, Sandbox, Source};
use crate::{SandboxError, UNPRIVILEGED};

/// A folder that every Linux machine has, and that has no images and nothing to mount. In the
/// namespace of this process, a small tmpfs covers it. It has the places that libcontainer needs,
/// and ends with the namespace.
const PLACE: &str = "/sys/kernel";
/// The image's files.
pub(crate) const ROOT: &str = "/sys/kernel/root";
/// The specification, for libcontainer.
pub(crate) const BUNDLE: &str = "/sys/kernel/bundle";
/// State of libcontainer.
pub(crate) const STATE: &str = "/sys/kernel/state";

/// Folders at the bottom of each root, for mounts. The image's own ones hide them.
const BOTTOM: &str = "/sys/kernel/bottom";

const NONE: Option<&str> = None;

/// Gives the image's files in one folder, if the kernel cannot stack the layers.
pub type Merge<'a> = dyn FnMut() -> Result<PathBuf, SandboxError> + 'a;

/// Enters the namespaces. Returns where the sources of the mounts are.
pub(crate) fn enter(sandbox: &Sandbox, merge: &mut Merge<'_>) -> Result<Vec<String>, SandboxError> {
    let is_root = geteuid().is_root();
    namespaces::enter(CloneFlags::CLONE_NEWCGROUP)?;
    // libcontainer looks here for a cgroup to create, and cannot create it.
    let cgroup = mount(Some("cgroup2"), "/sys/fs/cgroup", Some("cgroup2"), MsFlags::MS_RDONLY, NONE);
    cgroup.map_err(refused("mount its cgroup"))?;
    let tmpfs = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), PLACE, Some("tmpfs"), tmpfs, Some("mode=755,size=1m"))
        .map_err(refused("mount a tmpfs"))?;
    // Opened once, with the rights of the caller, so that no path is resolved twice.
    let source = |mount: &Mount| match &mount.source {
        Source::Path(path) => open(path).map(Some),
        Source::Tmpfs => Ok(None),
    };
    let sources = sandbox.mounts.iter().map(source).collect::<Result<Vec<_>, _>>()?;
    let places = places(sandbox, &sources)?;
    match stack(&sandbox.layers) {
        Err(SandboxError::NoOverlay(error)) => {
            tracing::debug!(%error, "the layers are merged");
            bind(&open(&merge()?)?, ROOT, MsFlags::MS_RDONLY)?;
        }
        stacked => stacked?,
    }
    for (source, place) in sources.iter().zip(&places) {
        if let Some(source) = source {
            bind(source, place, MsFlags::empty())?;
        }
    }
    if is_root {
        drop_root()?;
    }
    Ok(places)
}

fn bind(source: &File, to: &str, more: MsFlags) -> Result<(), SandboxError> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(&*path_of(source)), to, NONE, flags, NONE).map_err(refused("mount a folder"))?;
    if more.is_empty() {
        return Ok(());
    }
    mount(NONE, to, NONE, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | more, NONE)
        .map_err(refused("mount a folder"))
}

/// Changes from root to an unprivileged user, who is root in a user namespace.
fn drop_root() -> Result<(), SandboxError> {
    let give = |path: &str| chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED));
    for path in [PLACE, BUNDLE, STATE] {
        give(path).map_err(|source| SandboxError::Open { path: path.into(), source })?;
    }
    let (uid, gid) = (Uid::from_raw(UNPRIVILEGED), Gid::from_raw(UNPRIVILEGED));
    setgroups(&[]).map_err(refused("drop root's groups"))?;
    setresgid(gid, gid, gid).map_err(refused("drop root"))?;
    setresuid(uid, uid, uid).map_err(refused("drop root"))?;
    // A change of the user makes /proc/self root's, and a user maps itself in it.
    set_dumpable(true).map_err(refused("map its user"))?;
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP)
        .map_err(refused("create its namespaces"))?;
    namespaces::map_root(uid, gid)
}

/// Creates the places for libcontainer and for the mounts.
fn places(sandbox: &Sandbox, sources: &[Option<File>]) -> Result<Vec<String>, SandboxError> {
    let create = |path: &str| {
        fs::create_dir_all(path).map_err(|source| SandboxError::Open { path: path.into(), source })
    };
    for path in [ROOT, BUNDLE, STATE] {
        create(path)?;
    }
    for folder in FOLDERS {
        create(&format!("{BOTTOM}/{folder}"))?;
    }
    let mut places = Vec::new();
    for (number, (mount, source)) in sandbox.mounts.iter().zip(sources).enumerate() {
        let at = |path: &Path, is_folder: bool| -> io::Result<()> {
            if is_folder {
                return fs::create_dir_all(path);
            }
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            OpenOptions::new().create(true).append(true).open(path).map(|_| ())
        };
        let is_folder = |file: &File| file.metadata().is_ok_and(|metadata| metadata.is_dir());
        let is_folder = source.as_ref().is_none_or(is_folder);
        let place = format!("{PLACE}/mounts/{number}");
        let target = mount.target.strip_prefix("/").unwrap_or(&mount.target);
        let bottom = PathBuf::from(BOTTOM).join(target);
        at(Path::new(&place), is_folder)
            .and_then(|()| at(&bottom, is_folder))
            .map_err(|source| SandboxError::Open { path: mount.target.clone(), source })?;
        if source.is_none() {
            fs::set_permissions(&place, Permissions::from_mode(0o1777))
                .map_err(|source| SandboxError::Open { path: mount.target.clone(), source })?;
        }
        places.push(place);
    }
    Ok(places)
}

/// Stacks the layers. Nothing can be written to the stack, so it needs no further folder.
fn stack(layers: &[PathBuf]) -> Result<(), SandboxError> {
    if layers.is_empty() {
        return Err(SandboxError::NoOverlay(io::ErrorKind::Unsupported.into()));
    }
    let layers = layers.iter().map(|layer| open(layer)).collect::<Result<Vec<_>, _>>()?;
    // The kernel reads the options in a page of 4 KiB, so the layers have short names. They say
    // nothing about the machine, and need no escapes.
    let mut names: Vec<_> = layers.iter().rev().map(path_of).collect();
    names.push(BOTTOM.to_owned());
    let options = format!("lowerdir={},userxattr", names.join(":"));
    mount(Some("overlay"), ROOT, Some("overlay"), MsFlags::MS_RDONLY | MsFlags::MS_NODEV, Some(&*options))
        .map_err(|error| SandboxError::NoOverlay(error.into()))
}

fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Opens a path only to refer to it.
fn open(path: &Path) -> Result<File, SandboxError> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path);
    opened.map_err(|source| SandboxError::Open { path: path.to_owned(), source })
}

pub(crate) fn refused(step: &'static str) -> impl Fn(nix::Error) -> SandboxError {
    move |error| SandboxError::Refused { step, source: error.into(), advice: advice() }
}
