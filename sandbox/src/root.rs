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
use rustix::fs::{CWD, FileType, OFlags, fstat, makedev};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::error::{TARGET, step, unusable};
use crate::inside::{self, canonical};
use crate::mounts::{open, path_of};
use crate::spec::{FOLDERS, Mount, Sandbox};
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

const PROTECTED: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);

/// A mount of the sandbox, with its source.
struct Opened<'a> {
    mount: &'a Mount,
    /// What it shows: the source, with all that is mounted in it. `None`: an empty folder in memory.
    tree: Option<OwnedFd>,
    is_folder: bool,
}

/// Builds everything but `/proc`, which only a process of the sandbox can mount. Resolves the working
/// directory, and returns the image's user. `wait` returns when the caller has done its part: see
/// [`namespaces::drop_root`].
pub(crate) fn build(
    sandbox: &mut Sandbox,
    wait: impl FnOnce() -> io::Result<()>,
) -> Result<User, SandboxError> {
    let is_root = namespaces::is_root();
    namespaces::enter(CloneFlags::CLONE_NEWCGROUP)?;
    // With the rights of the caller, and before there is anything of the sandbox to show.
    let mut mounts = sandbox.mounts.iter().map(Opened::new).collect::<Result<Vec<_>, _>>()?;
    // Like Docker: what lies in another mount comes after it.
    mounts.sort_by_key(|it| it.mount.target.components().count());
    mount(Some("tmpfs"), PLACE, Some("tmpfs"), PROTECTED, Some("mode=755")).map_err(step("mount a tmpfs"))?;
    for folder in [ROOT, TOP] {
        fs::create_dir(folder).map_err(step("create its folders"))?;
    }
    bind_program().map_err(step("mount its program"))?;
    mount_image(sandbox, &mounts, is_root)?;
    if is_root {
        namespaces::drop_root(wait)?;
    } else {
        wait().map_err(step("wait for its caller"))?;
    }
    // A mount of this namespace, so that it can become the root of its processes.
    mounts::bind(&open(Path::new(ROOT))?, ROOT).map_err(step("mount the image"))?;
    let root = open(Path::new(ROOT))?;
    let user = resolve(
        &sandbox.user,
        &inside::read_small(&root, "etc/passwd"),
        &inside::read_small(&root, "etc/group"),
    )?;
    let tmpfs = sandbox.limits.tmpfs_options();
    mount_tmpfs(&folder_of(&root, "tmp")?, MsFlags::empty(), &tmpfs).map_err(step("mount its /tmp"))?;
    mount_devices(&root).map_err(step("mount its /dev"))?;
    for opened in &mounts {
        opened.attach(&root, &tmpfs).map_err(unusable(TARGET, &opened.mount.target))?;
    }
    let problem = unusable("image's working directory", &sandbox.folder);
    let folder = canonical(&root, &sandbox.folder).map_err(&problem)?;
    if !is_reserved(&folder) {
        // It may be in a mount that lacks it.
        target_of(&root, &folder, true).map_err(problem)?;
    }
    sandbox.folder = Path::new("/").join(folder);
    Ok(user)
}

// === impl Opened ===

impl<'a> Opened<'a> {
    fn new(mount: &'a Mount) -> Result<Self, SandboxError> {
        let Some(source) = &mount.source else {
            return Ok(Self { mount, tree: None, is_folder: true });
        };
        let whole = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE;
        let open = || -> io::Result<Self> {
            let tree = open_tree(CWD, source, whole | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
            let is_folder = FileType::from_raw_mode(fstat(&tree)?.st_mode) == FileType::Directory;
            Ok(Self { mount, tree: Some(tree), is_folder })
        };
        open()
            .map_err(|error| SandboxError::Open { path: source.clone(), source: error })
            .map_err(io::Error::other)
            .map_err(unusable(TARGET, &mount.target))
    }

    fn attach(&self, root: &File, tmpfs: &str) -> io::Result<()> {
        let at = target_of(root, &self.mount.target, self.is_folder)?;
        let read_only = if self.mount.is_writable { MsFlags::empty() } else { MsFlags::MS_RDONLY };
        let Some(tree) = &self.tree else { return mount_tmpfs(&at, read_only, tmpfs) };
        let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(tree, "", at, "", empty)?;
        mounts::restrict(tree, PROTECTED | read_only)
    }
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
    let open = |path| open(path).map_err(io::Error::other);
    mounts::bind(&open(source)?, PROGRAM)?;
    mounts::restrict(&open(Path::new(PROGRAM))?, MsFlags::MS_RDONLY | PROTECTED)
}

/// Mounts the image's layers, and above them what the image lacks.
fn mount_image(sandbox: &Sandbox, mounts: &[Opened<'_>], is_root: bool) -> Result<(), SandboxError> {
    let is_stacked = stack(&sandbox.layers)?;
    let own = FOLDERS.iter().map(|folder| ("image's folder", Path::new(folder), true));
    let targets = mounts.iter().map(|it| (TARGET, &*it.mount.target, it.is_folder));
    let wanted = own.chain(targets).chain([("image's working directory", &*sandbox.folder, true)]);
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
        add().map_err(unusable(what, path))?;
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
            mounts::bind(only, ROOT).map_err(step("mount the image"))?;
            mounts::restrict(&open(Path::new(ROOT))?, flags).map_err(step("mount the image"))?;
            Ok(false)
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
    open().map_err(unusable("image's folder", Path::new(name)))
}

/// Whether a canonical path is the root, or in /proc, which only the first process can mount.
fn is_reserved(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.starts_with("proc")
}

/// Opens the target of a mount. Below a writable mount, such as /tmp, it may have to be created.
fn target_of(root: &File, path: &Path, is_folder: bool) -> io::Result<OwnedFd> {
    let path = canonical(root, path)?;
    if is_reserved(&path) {
        return Err(io::Error::other("the sandbox has its own root and its own /proc"));
    }
    let folders = inside::folders(root, &path, is_folder)?;
    if folders.iter().any(|(_, mode)| mode.is_none()) {
        inside::create(root, &folders, is_folder)?;
    }
    inside::open(root, &path, OFlags::PATH)
}

fn mount_tmpfs(at: &OwnedFd, more: MsFlags, options: &str) -> io::Result<()> {
    Ok(mount(Some("tmpfs"), &*path_of(at), Some("tmpfs"), PROTECTED | more, Some(options))?)
}

/// Mounts a `/dev` with few devices, which are the machine's. Nothing can be written in it.
fn mount_devices(root: &File) -> io::Result<()> {
    let options = Some("mode=755,size=64k,nr_inodes=64");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let at = || folder_of(root, "dev").map_err(io::Error::other);
    mount(Some("tmpfs"), &*path_of(&at()?), Some("tmpfs"), flags, options)?;
    let mounted = at()?;
    let dev = path_of(&mounted);
    for (name, major, minor) in DEVICES {
        let place = format!("{dev}/{name}");
        File::create(&place)?;
        mounts::bind(&open_device(name, major, minor)?, &place)?;
    }
    for (name, target) in LINKS {
        symlink(target, format!("{dev}/{name}"))?;
    }
    mounts::remount(&dev, MsFlags::MS_RDONLY | flags)
}

/// Opens a device of the machine to refer to it, if it is that device.
pub(crate) fn open_device(name: &str, major: u32, minor: u32) -> io::Result<File> {
    let path = format!("/dev/{name}");
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
    let stat = fstat(&file)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if is_device && stat.st_rdev == makedev(major, minor) {
        Ok(file)
    } else {
        Err(io::Error::other(format!("{path} of this machine is not the device {major}:{minor}")))
    }
}
