//! What an entry of a layer becomes in the layer's folder, judged by its header alone. No I/O.
//!
//! Names come from the image, so they are untrusted. They are cleaned like in Go's tools: `..` ends
//! at the root, and a leading slash is dropped.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use tar::EntryType;

use super::UnpackError;
use super::resolve::MAX_PATH;

/// Prefix of the names that hide a file of a lower layer.
/// <https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>
const WHITEOUT: &[u8] = b".wh.";
/// Follows the prefix, and hides all that lower layers have in the entry's folder.
const OPAQUE: &[u8] = b".wh..opq";

/// Longest name in a folder, as in Linux's `NAME_MAX`, in bytes.
const MAX_NAME: usize = 255;

/// What to do for an entry. All paths are relative to the root and have only plain names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the folder, or give an existing one this mode. `None`: the root.
    Folder { place: Option<Place>, mode: u32 },
    /// Create the file with the entry's data.
    File { place: Place, mode: u32 },
    /// Create a symbolic link. Its target is only text: nothing here follows it.
    Symlink { place: Place, target: OsString },
    /// Create another name for a file.
    HardLink { place: Place, target: Place },
    /// Hide this name of the lower layers.
    Whiteout(Place),
    /// Hide all that lower layers have in this folder.
    Opaque(PathBuf),
    /// Leave the entry out: a device or a pipe. It still hides what lower layers have.
    Nothing(Place),
    /// A header that applies to no file.
    Skip,
}

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) parent: PathBuf,
    pub(super) name: OsString,
}

/// Decides by type, name, link target and mode.
pub(super) fn step(
    kind: EntryType,
    name: &[u8],
    target: Option<&[u8]>,
    mode: u32,
) -> Result<Step, UnpackError> {
    if kind == EntryType::XGlobalHeader {
        return Ok(Step::Skip);
    }
    let Some(place) = place(name)? else {
        // `./`, the root of the image.
        let root = Step::Folder { place: None, mode: bits(mode) };
        return if kind.is_dir() { Ok(root) } else { Err(UnpackError::NoName) };
    };
    if let Some(hidden) = place.name.as_bytes().strip_prefix(WHITEOUT) {
        return match hidden {
            OPAQUE => Ok(Step::Opaque(place.parent)),
            b"" | b"." | b".." => Err(UnpackError::Whiteout),
            _ => Ok(Step::Whiteout(Place { name: OsStr::from_bytes(hidden).to_owned(), ..place })),
        };
    }
    match kind {
        EntryType::Directory => Ok(Step::Folder { place: Some(place), mode: bits(mode) }),
        EntryType::Symlink => match target {
            Some(target) if !target.is_empty() && target.len() <= MAX_PATH && !target.contains(&0) => {
                Ok(Step::Symlink { place, target: OsStr::from_bytes(target).to_owned() })
            }
            _ => Err(UnpackError::LinkTarget),
        },
        EntryType::Link => {
            let target =
                self::place(target.ok_or(UnpackError::LinkTarget)?)?.ok_or(UnpackError::LinkTarget)?;
            Ok(Step::HardLink { place, target })
        }
        EntryType::Regular | EntryType::Continuous => Ok(Step::File { place, mode: bits(mode) }),
        EntryType::GNUSparse => Err(UnpackError::Sparse),
        EntryType::Char | EntryType::Block | EntryType::Fifo => Ok(Step::Nothing(place)),
        _ => Err(UnpackError::Type),
    }
}

/// The permissions. Set-id bits are dropped. Only the sticky bit of a folder is kept, as in `/tmp`.
fn bits(mode: u32) -> u32 {
    mode & 0o1777
}

/// The plain names of a path, without `.`, `..`, empty ones, and the leading slash. `None`: it is
/// the root.
fn place(name: &[u8]) -> Result<Option<Place>, UnpackError> {
    if name.contains(&0) {
        return Err(UnpackError::NulInName);
    }
    let mut parent = PathBuf::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parent.pop();
            }
            part if part.len() > MAX_NAME || parent.as_os_str().len() + 1 + part.len() > MAX_PATH => {
                return Err(UnpackError::TooLong);
            }
            part => parent.push(OsStr::from_bytes(part)),
        }
    }
    let name = parent.file_name().map(OsStr::to_owned);
    parent.pop();
    Ok(name.map(|name| Place { parent, name }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors have no equality.
    fn tried(kind: EntryType, name: &[u8], target: Option<&[u8]>, mode: u32) -> Result<Step, String> {
        step(kind, name, target, mode).map_err(|error| format!("{error:?}"))
    }

    fn place(parent: &str, name: &str) -> Place {
        Place { parent: parent.into(), name: name.into() }
    }

    #[test]
    fn names_become_paths_in_the_layer() {
        let file = |name: &str| tried(EntryType::Regular, name.as_bytes(), None, 0o4755);
        for name in ["usr/bin/x", "/usr/bin/x", "./usr//bin/./x"] {
            assert_eq!(file(name), Ok(Step::File { place: place("usr/bin", "x"), mode: 0o755 }), "{name}");
        }
        assert_eq!(file("a/.wh.b"), Ok(Step::Whiteout(place("a", "b"))));
        assert_eq!(file("a/.wh..wh..opq"), Ok(Step::Opaque("a".into())));
        // AUFS's own names: no layer can have such a file, so nothing is hidden.
        assert_eq!(file(".wh..wh.plnk"), Ok(Step::Whiteout(place("", ".wh.plnk"))));
        for name in ["../x", "a/../../x", "/../x", "x/"] {
            assert_eq!(file(name), Ok(Step::File { place: place("", "x"), mode: 0o755 }), "{name}");
        }
        let long = "n".repeat(256);
        for (name, refusal) in [
            ("a/..", "NoName".to_owned()),
            ("a\0b", "NulInName".to_owned()),
            ("./", "NoName".to_owned()),
            ("a/.wh..", "Whiteout".to_owned()),
            ("a/.wh...", "Whiteout".to_owned()),
            ("a/.wh.", "Whiteout".to_owned()),
            (&*long, "TooLong".to_owned()),
        ] {
            assert_eq!(file(name), Err(refusal), "{name}");
        }
    }

    #[test]
    fn links_keep_their_text_and_hard_links_stay_in_the_root() {
        let link = |kind, target: &str| tried(kind, b"a/l", Some(target.as_bytes()), 0o777);
        let symlink = |target: &str| Step::Symlink { place: place("a", "l"), target: target.into() };
        for target in ["/etc/passwd", "../../../x"] {
            assert_eq!(link(EntryType::Symlink, target), Ok(symlink(target)));
        }
        assert_eq!(link(EntryType::Symlink, ""), Err("LinkTarget".to_owned()));
        let hard = Step::HardLink { place: place("a", "l"), target: place("etc", "passwd") };
        assert_eq!(link(EntryType::Link, "/etc/passwd"), Ok(hard.clone()));
        assert_eq!(link(EntryType::Link, "../etc/passwd"), Ok(hard));
        assert_eq!(link(EntryType::Link, "/"), Err("LinkTarget".to_owned()));
        assert_eq!(tried(EntryType::Link, b"a", None, 0), Err("LinkTarget".to_owned()));
    }

    #[test]
    fn devices_and_pipes_are_left_out_and_unknown_types_refused() {
        for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo] {
            assert_eq!(tried(kind, b"dev/x", None, 0o666), Ok(Step::Nothing(place("dev", "x"))));
        }
        assert_eq!(tried(EntryType::new(b'Z'), b"x", None, 0), Err("Type".to_owned()));
        let folder = tried(EntryType::Directory, b"tmp/", None, 0o7777);
        assert_eq!(folder, Ok(Step::Folder { place: Some(place("", "tmp")), mode: 0o1777 }));
    }
}
