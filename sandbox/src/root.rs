//! Builds the root of a sandbox: the image's layers, read-only, and above them a folder with what
//! the sandbox needs and the image lacks. All of it is mounted in a mount namespace of this process.
//!
//! Paths of the image are resolved below its root. What is mounted goes to a descriptor that was so
//! found, and not to a path.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::CloneFlags;
use nix::unistd::geteuid;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::error::step;
use crate::inside::{self, canonical};
use crate::mounts::path_of;
use crate::spec::{FOLDERS, Sandbox, Source};
use crate::user::{User, resolve};
use crate::{SandboxError, UNPRIVILEGED, mounts, namespaces};

/// A folder that every Linux machine has, and that has no images and nothing to mount. In the
/// namespace of this process, a tmpfs covers it. It has the places below, and ends with the
/// namespace.
const PLACE: &str = "/sys/kernel";
/// The image's files.
pub(crate) const ROOT: &str = "/sys/kernel/root";
/// This program. It cannot be written here.
pub(crate) const PROGRAM: &str = "/sys/kernel/program";
/// What the image lacks.
const TOP: &str = "/sys/kernel/top";
/// The sources of the mounts.
const SOURCES: &str = "/sys/kernel/sources";

/// The devices of a sandbox, with their numbers.
/// <https://docs.kernel.org/admin-guide/devices.html>
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// Links in `/dev`. Shared memory of the C library is where the only writable folder is.
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("shm", "/tmp"),
];

const NONE: Option<&str> = None;
const PROTECTED: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);

/// What the image's own words mean in its root.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resolved {
    /// The image's user.
    pub(crate) user: User,
    /// The working directory, without links.
    pub(crate) folder: PathBuf,
}

/// Builds everything but `/proc`, which only a process of the sandbox can mount.
pub(crate) fn build(sandbox: &Sandbox) -> Result<Resolved, SandboxError> {
    let is_root = geteuid().is_root();
    namespaces::enter(CloneFlags::CLONE_NEWCGROUP)?;
    mount(Some("tmpfs"), PLACE, Some("tmpfs"), PROTECTED, Some("mode=755")).map_err(step("mount a tmpfs"))?;
    for folder in [ROOT, TOP, SOURCES] {
        fs::create_dir(folder).map_err(step("create its folders"))?;
    }
    bind_program().map_err(step("mount its program"))?;
    // Opened with the rights of the caller.
    for (number, mount) in sandbox.mounts.iter().enumerate() {
        if let Source::Path(source) = &mount.source {
            let problem = |error: SandboxError| SandboxError::Mount {
                path: mount.target.clone(),
                source: io::Error::other(error),
            };
            let opened = open(source).map_err(problem)?;
            let place = format!("{SOURCES}/{number}");
            let is_folder = opened.metadata().is_ok_and(|metadata| metadata.is_dir());
            let bind = || -> io::Result<()> {
                if is_folder {
                    fs::create_dir(&place)?;
                } else {
                    drop(File::create(&place)?);
                }
                mounts::bind(&opened, &place)?;
                mounts::restrict(Path::new(&place), PROTECTED | read_only(mount.is_writable))
            };
            bind().map_err(|source| SandboxError::Mount { path: mount.target.clone(), source })?;
        }
    }
    mount_image(sandbox, is_root)?;
    if is_root {
        namespaces::drop_root()?;
    }
    // A mount of this namespace, so that it can become the root of its processes.
    mounts::bind(&open(Path::new(ROOT))?, ROOT).map_err(step("mount the image"))?;
    let root = open(Path::new(ROOT))?;
    let user = resolve(
        &sandbox.user,
        &inside::read_small(&root, "etc/passwd"),
        &inside::read_small(&root, "etc/group"),
    )?;
    let tmp = folder_of(&root, "tmp")?;
    mount_tmpfs(&tmp, &sandbox.limits.tmpfs_options()).map_err(step("mount its /tmp"))?;
    mount_devices(&root).map_err(step("mount its /dev"))?;
    for (number, mount) in sandbox.mounts.iter().enumerate() {
        let problem = |source| SandboxError::Mount { path: mount.target.clone(), source };
        let place = format!("{SOURCES}/{number}");
        let is_folder = !Path::new(&place).is_file();
        let target = target_of(&root, &mount.target, is_folder).map_err(problem)?;
        let done = match &mount.source {
            Source::Path(_) => open(Path::new(&place)).map(|source| mounts::bind(&source, &path_of(&target))),
            Source::Tmpfs => Ok(mount_tmpfs(&target, &sandbox.limits.tmpfs_options()).and_then(|()| {
                let mounted = target_of(&root, &mount.target, true)?;
                mounts::restrict(Path::new(&path_of(&mounted)), PROTECTED | read_only(mount.is_writable))
            })),
        };
        done?.map_err(problem)?;
    }
    let problem =
        |source| SandboxError::Image { what: "working directory", path: sandbox.folder.clone(), source };
    let folder = canonical(&root, &sandbox.folder).map_err(problem)?;
    if folder.starts_with("tmp") {
        target_of(&root, &folder, true).map_err(problem)?;
    }
    Ok(Resolved { user, folder: Path::new("/").join(folder) })
}

fn read_only(is_writable: bool) -> MsFlags {
    if is_writable { MsFlags::empty() } else { MsFlags::MS_RDONLY }
}

/// Mounts this program where nobody can write it, also not through `/proc/PID/exe`. It is a copy
/// only if its file was replaced, or if an ordinary user may not execute it.
fn bind_program() -> io::Result<()> {
    let own = fs::metadata("/proc/self/exe")?;
    let path = fs::read_link("/proc/self/exe")?;
    let is_same = fs::metadata(&path).is_ok_and(|it| (it.dev(), it.ino()) == (own.dev(), own.ino()));
    let source = if is_same && own.mode() & 0o001 != 0 {
        File::create(PROGRAM)?;
        &*path
    } else {
        fs::copy("/proc/self/exe", PROGRAM)?;
        fs::set_permissions(PROGRAM, Permissions::from_mode(0o755))?;
        Path::new(PROGRAM)
    };
    mounts::bind(&open(source).map_err(io::Error::other)?, PROGRAM)?;
    mounts::restrict(Path::new(PROGRAM), MsFlags::MS_RDONLY | PROTECTED)
}

/// Mounts the image's layers, and above them what the image lacks.
fn mount_image(sandbox: &Sandbox, is_root: bool) -> Result<(), SandboxError> {
    let is_stacked = stack(&sandbox.layers)?;
    let own = FOLDERS.iter().map(|folder| ("folder", Path::new(folder), true));
    let targets = sandbox.mounts.iter().enumerate().map(|(number, mount)| {
        ("path", &*mount.target, !Path::new(&format!("{SOURCES}/{number}")).is_file())
    });
    let wanted = own.chain(targets).chain([("working directory", &*sandbox.folder, true)]);
    let root = open(Path::new(ROOT))?;
    let mut is_complete = true;
    for (what, path, is_folder) in wanted {
        let mut add = || -> io::Result<()> {
            let folders = inside::folders(&root, &canonical(&root, path)?, is_folder)?;
            if folders.iter().all(|(_, mode)| mode.is_some()) {
                return Ok(());
            }
            is_complete = false;
            if !is_stacked {
                return Err(io::Error::other(
                    "the image does not have it, and the kernel cannot stack folders in --image-dir",
                ));
            }
            inside::create(&File::open(TOP)?, &folders, is_folder)?;
            // All files of images belong to this user.
            let give =
                |path: &PathBuf| chown(Path::new(TOP).join(path), Some(UNPRIVILEGED), Some(UNPRIVILEGED));
            if is_root { folders.iter().try_for_each(|(path, _)| give(path)) } else { Ok(()) }
        };
        add().map_err(|source| SandboxError::Image { what, path: Path::new("/").join(path), source })?;
    }
    if is_complete {
        return Ok(());
    }
    // A folder of a mounted stack must not change.
    drop(root);
    umount2(ROOT, MntFlags::MNT_DETACH).map_err(step("mount the image"))?;
    stack(&sandbox.layers).map(drop)
}

/// Stacks the layers and, above them, [`TOP`]. Nothing can be written to the stack. Returns whether
/// the kernel could: a single layer is mounted alone otherwise.
fn stack(layers: &[PathBuf]) -> Result<bool, SandboxError> {
    let opened = layers.iter().map(|layer| open(layer)).collect::<Result<Vec<_>, _>>()?;
    // The root has the mode of the highest folder of the stack.
    let mode = opened.last().and_then(|layer| layer.metadata().ok()).map(|it| it.permissions());
    mode.map_or(Ok(()), |mode| fs::set_permissions(TOP, mode)).map_err(step("create its folders"))?;
    // The kernel reads the options in a page of 4 KiB, so the layers have short names. They say
    // nothing about the machine, and need no escapes.
    let names = [TOP.to_owned()].into_iter().chain(opened.iter().rev().map(path_of));
    let options = format!("lowerdir={},userxattr", names.collect::<Vec<_>>().join(":"));
    let flags = MsFlags::MS_RDONLY | PROTECTED;
    match (mount(Some("overlay"), ROOT, Some("overlay"), flags, Some(&*options)), &*opened) {
        (Ok(()), _) => Ok(true),
        (Err(_), [only]) => {
            let bound = mounts::bind(only, ROOT).and_then(|()| mounts::restrict(Path::new(ROOT), flags));
            bound.map_err(step("mount the image")).map(|()| false)
        }
        (Err(error), _) => Err(SandboxError::NoOverlay(error.into())),
    }
}

/// Opens one of the sandbox's own folders in the image.
pub(crate) fn folder_of(root: &File, name: &str) -> Result<OwnedFd, SandboxError> {
    let open = || {
        let path = canonical(root, Path::new(name))?;
        if path.as_os_str().is_empty() {
            return Err(io::Error::other("it is a link to the root"));
        }
        inside::open(root, &path, OFlags::PATH | OFlags::DIRECTORY)
    };
    open().map_err(|source| SandboxError::Image { what: "folder", path: Path::new("/").join(name), source })
}

/// Opens the target of a mount. Below a writable mount, such as /tmp, it may have to be created.
fn target_of(root: &File, path: &Path, is_folder: bool) -> io::Result<OwnedFd> {
    let path = canonical(root, path)?;
    if path.as_os_str().is_empty() {
        return Err(io::Error::other("it is the sandbox's root"));
    }
    let folders = inside::folders(root, &path, is_folder)?;
    if folders.iter().any(|(_, mode)| mode.is_none()) {
        inside::create(root, &folders, is_folder)?;
    }
    inside::open(root, &path, OFlags::PATH)
}

fn mount_tmpfs(at: &OwnedFd, options: &str) -> io::Result<()> {
    Ok(mount(Some("tmpfs"), &*path_of(at), Some("tmpfs"), PROTECTED, Some(options))?)
}

/// Mounts a `/dev` with few devices, which are the machine's. Nothing can be written in it.
fn mount_devices(root: &File) -> io::Result<()> {
    let devices = DEVICES.map(|(name, major, minor)| open_device(name, major, minor));
    let options = Some("mode=755,size=64k,nr_inodes=64");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let at = || folder_of(root, "dev").map_err(io::Error::other);
    mount(Some("tmpfs"), &*path_of(&at()?), Some("tmpfs"), flags, options)?;
    let mounted = at()?;
    let dev = path_of(&mounted);
    for (device, (name, ..)) in devices.into_iter().zip(DEVICES) {
        let place = format!("{dev}/{name}");
        File::create(&place)?;
        mounts::bind(&device?, &place)?;
    }
    for (name, target) in LINKS {
        symlink(target, format!("{dev}/{name}"))?;
    }
    Ok(mount(NONE, &*dev, NONE, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | flags, NONE)?)
}

/// Opens a device of the machine to refer to it, if it is that device.
pub(crate) fn open_device(name: &str, major: u32, minor: u32) -> io::Result<File> {
    let path = format!("/dev/{name}");
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
    let stat = rustix::fs::fstat(&file)?;
    let is_device =
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice;
    if is_device && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (major, minor) {
        Ok(file)
    } else {
        Err(io::Error::other(format!("{path} of this machine is not the device {major}:{minor}")))
    }
}

/// Opens a path only to refer to it.
pub(crate) fn open(path: &Path) -> Result<File, SandboxError> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
    opened.map_err(|source| SandboxError::Open { path: path.to_owned(), source })
}
