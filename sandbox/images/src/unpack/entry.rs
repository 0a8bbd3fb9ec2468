//! What an entry of a layer becomes in the layer's folder, judged by its header alone. No I/O.
//!
//! Names come from the image, so they are untrusted. A name with `..` is refused. A leading slash
//! is dropped, like in tar and in containerd.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use tar::EntryType;

use super::Refusal;

/// Prefix of the names that hide a file of a lower layer.
/// <https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>
const WHITEOUT: &[u8] = b".wh.";
/// Hides all that lower layers have in the entry's folder.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Names that AUFS itself uses. Old versions of Docker left them in layers.
const AUFS: &[u8] = b".wh..wh.";

/// Longest path, as in Linux's `PATH_MAX`, in bytes.
const MAX_PATH: usize = 4095;
/// Longest name in a folder, as in Linux's `NAME_MAX`, in bytes.
const MAX_NAME: usize = 255;
/// Deepest path. A path of single letters would have two thousand folders.
const MAX_DEPTH: usize = 512;

/// What to do for an entry. All paths are relative to the layer's folder and have only plain names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the folder, or give an existing one this mode. The empty path is the layer's folder.
    Folder { path: PathBuf, mode: u32 },
    /// Create the file with the entry's data.
    File { place: Place, mode: u32 },
    /// Create a symbolic link. Its target is only text: nothing here follows it.
    Symlink { place: Place, target: OsString },
    /// Create another name for a file of this layer.
    HardLink { place: Place, target: PathBuf },
    /// Hide this name of the lower layers.
    Whiteout(Place),
    /// Hide all that lower layers have in this folder.
    Opaque(PathBuf),
    /// Leave the entry out: a device, a pipe, or a header that applies to no file.
    Skip,
}

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) parent: PathBuf,
    pub(super) name: OsString,
}

/// Decides by type, name, link target and mode.
pub(super) fn step(kind: EntryType, name: &[u8], target: Option<&[u8]>, mode: u32) -> Result<Step, Refusal> {
    if matches!(
        kind,
        EntryType::Char
            | EntryType::Block
            | EntryType::Fifo
            | EntryType::XGlobalHeader
            | EntryType::XHeader
            | EntryType::GNULongName
            | EntryType::GNULongLink
    ) {
        return Ok(Step::Skip);
    }
    let path = relative(name)?;
    let Some(file) = path.file_name() else {
        // `./`, the root of the image.
        return if kind.is_dir() {
            Ok(Step::Folder { path, mode: bits(mode) })
        } else {
            Err(Refusal::NoName)
        };
    };
    let parent = path.parent().map(Path::to_owned).unwrap_or_default();
    let place = |name: &OsStr| Place { parent: parent.clone(), name: name.to_owned() };
    if let Some(hidden) = file.as_bytes().strip_prefix(WHITEOUT) {
        return match file.as_bytes() {
            OPAQUE => Ok(Step::Opaque(parent)),
            aufs if aufs.starts_with(AUFS) => Ok(Step::Skip),
            _ if matches!(hidden, b"" | b"." | b"..") => Err(Refusal::Whiteout),
            _ => Ok(Step::Whiteout(place(OsStr::from_bytes(hidden)))),
        };
    }
    let place = place(file);
    match kind {
        EntryType::Directory => Ok(Step::Folder { path, mode: bits(mode) }),
        EntryType::Symlink => match target {
            Some(target) if !target.is_empty() && target.len() <= MAX_PATH && !target.contains(&0) => {
                Ok(Step::Symlink { place, target: OsStr::from_bytes(target).to_owned() })
            }
            _ => Err(Refusal::LinkTarget),
        },
        EntryType::Link => {
            let target = relative(target.ok_or(Refusal::LinkTarget)?)?;
            if target.as_os_str().is_empty() {
                Err(Refusal::LinkTarget)
            } else {
                Ok(Step::HardLink { place, target })
            }
        }
        // A name with a trailing slash is a folder in archives older than POSIX.
        EntryType::Regular if name.ends_with(b"/") => Ok(Step::Folder { path, mode: bits(mode) }),
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            Ok(Step::File { place, mode: bits(mode) })
        }
        _ => Err(Refusal::Type),
    }
}

/// The permissions. Set-id bits are dropped. Only the sticky bit of a folder is kept, as in `/tmp`.
fn bits(mode: u32) -> u32 {
    mode & 0o1777
}

/// The path's plain names, without `.`, empty ones, and the leading slash.
fn relative(name: &[u8]) -> Result<PathBuf, Refusal> {
    if name.contains(&0) {
        return Err(Refusal::NulInName);
    }
    let mut path = PathBuf::new();
    let mut depth = 0;
    for part in name.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")) {
        if part == b".." {
            return Err(Refusal::ParentFolder);
        }
        depth += 1;
        if part.len() > MAX_NAME || path.as_os_str().len() + 1 + part.len() > MAX_PATH || depth > MAX_DEPTH {
            return Err(Refusal::TooLong);
        }
        path.push(OsStr::from_bytes(part));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(parent: &str, name: &str) -> Place {
        Place { parent: parent.into(), name: name.into() }
    }

    #[test]
    fn names_become_paths_in_the_layer() {
        let file = |name: &str| step(EntryType::Regular, name.as_bytes(), None, 0o4755);
        for name in ["usr/bin/x", "/usr/bin/x", "./usr//bin/./x"] {
            assert_eq!(file(name), Ok(Step::File { place: place("usr/bin", "x"), mode: 0o755 }), "{name}");
        }
        assert_eq!(file("a/.wh.b"), Ok(Step::Whiteout(place("a", "b"))));
        assert_eq!(file("a/.wh..wh..opq"), Ok(Step::Opaque("a".into())));
        assert_eq!(file(".wh..wh.plnk"), Ok(Step::Skip));
        assert_eq!(file("old/"), Ok(Step::Folder { path: "old".into(), mode: 0o755 }));
        let long = "n".repeat(256);
        let deep = "d/".repeat(600);
        for (name, refusal) in [
            ("../x", Refusal::ParentFolder),
            ("a/../../x", Refusal::ParentFolder),
            ("a/..", Refusal::ParentFolder),
            ("a\0b", Refusal::NulInName),
            ("./", Refusal::NoName),
            ("a/.wh..", Refusal::Whiteout),
            ("a/.wh...", Refusal::Whiteout),
            ("a/.wh.", Refusal::Whiteout),
            (&*long, Refusal::TooLong),
            (&*deep, Refusal::TooLong),
        ] {
            assert_eq!(file(name), Err(refusal), "{name}");
        }
    }

    #[test]
    fn links_keep_their_text_and_hard_links_stay_in_the_layer() {
        let link = |kind, target: &str| step(kind, b"a/l", Some(target.as_bytes()), 0o777);
        let symlink = |target: &str| Step::Symlink { place: place("a", "l"), target: target.into() };
        for target in ["/etc/passwd", "../../../x"] {
            assert_eq!(link(EntryType::Symlink, target), Ok(symlink(target)));
        }
        assert_eq!(link(EntryType::Symlink, ""), Err(Refusal::LinkTarget));
        let hard = Step::HardLink { place: place("a", "l"), target: "etc/passwd".into() };
        assert_eq!(link(EntryType::Link, "/etc/passwd"), Ok(hard));
        assert_eq!(link(EntryType::Link, "../etc/passwd"), Err(Refusal::ParentFolder));
        assert_eq!(link(EntryType::Link, "/"), Err(Refusal::LinkTarget));
        assert_eq!(step(EntryType::Link, b"a", None, 0), Err(Refusal::LinkTarget));
    }

    #[test]
    fn devices_and_pipes_are_left_out_and_unknown_types_refused() {
        for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo] {
            assert_eq!(step(kind, b"dev/x", None, 0o666), Ok(Step::Skip));
        }
        assert_eq!(step(EntryType::new(b'Z'), b"x", None, 0), Err(Refusal::Type));
        let folder = step(EntryType::Directory, b"tmp", None, 0o7777);
        assert_eq!(folder, Ok(Step::Folder { path: "tmp".into(), mode: 0o1777 }));
    }
}
