//! The files of an image as its processes see them, and those of other programs' folders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

/// What a folder has, by path.
pub type Tree = BTreeMap<String, Item>;

/// A file, folder or link.
#[derive(Debug, Clone)]
pub struct Item {
    /// `f`, `d` or `l`.
    pub kind: char,
    pub mode: u32,
    inode: u64,
    /// Only of files.
    pub modified: String,
    /// The link's target, or the digest of the file.
    pub content: String,
}

/// Prints each path, an empty line, and the digest of each file. An overlay needs two folders.
const SCRIPT: &str = r#"
set -e
if [ "$1" = mount ]; then
    mount -t overlay overlay -o "ro,userxattr,lowerdir=$2" /mnt
    cd /mnt
else
    cd "$2"
fi
find . -mindepth 0 -printf '%y\t%m\t%i\t%T@\t%P\t%l\n'
echo
find . -type f -exec sha256sum {} +
"#;

/// Stacks folders, the lowest first, like a sandbox does.
///
/// # Panics
/// The folders cannot be read.
pub fn of_stack(folders: &[PathBuf]) -> Tree {
    try_of_stack(folders).unwrap_or_else(|error| panic!("{error}"))
}

/// Stacks folders, if they can be read.
///
/// # Errors
/// What mount or find reports.
pub fn try_of_stack(folders: &[PathBuf]) -> Result<Tree, String> {
    if let [folder] = folders {
        return Ok(of_folder(folder));
    }
    let folders: Vec<_> = folders.iter().rev().map(|folder| folder.display().to_string()).collect();
    listed(if geteuid().is_root() { "-m" } else { "-rm" }, "mount", &folders.join(":"))
}

/// Reads one folder.
pub fn of_folder(folder: &Path) -> Tree {
    listed("--fork", "here", &folder.display().to_string()).unwrap_or_else(|error| panic!("{error}"))
}

fn listed(namespaces: &str, how: &str, place: &str) -> Result<Tree, String> {
    let ended = Command::new("unshare")
        .args([namespaces, "sh", "-c", SCRIPT, "sh", how, place])
        .env("LC_ALL", "C")
        .output()
        .expect("Debian's package util-linux");
    if !ended.status.success() {
        return Err(format!("{place}: {}", String::from_utf8_lossy(&ended.stderr)));
    }
    let text = String::from_utf8_lossy(&ended.stdout);
    let (paths, digests) = text.split_once("\n\n").expect("two parts");
    let digests: BTreeMap<_, _> = digests
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(digest, path)| (path.trim_start_matches("./"), digest))
        .collect();
    let item = |line: &str| {
        let fields: Vec<_> = line.split('\t').collect();
        let [kind, mode, inode, modified, path, target] = fields[..] else { panic!("{line:?}") };
        let kind = kind.chars().next().expect("a letter");
        let content = if kind == 'f' { digests.get(path).copied().unwrap_or_default() } else { target };
        let item = Item {
            kind,
            mode: u32::from_str_radix(mode, 8).expect("digits") & 0o777,
            inode: inode.parse().expect("digits"),
            modified: if kind == 'f' { modified.to_owned() } else { String::new() },
            content: content.to_owned(),
        };
        (path.to_owned(), item)
    };
    Ok(paths.lines().map(item).collect())
}

/// The paths that differ, with all but the groups of hard links.
pub fn differences(a: &Tree, b: &Tree) -> Vec<String> {
    let visible = |tree: &Tree, path: &String| {
        tree.get(path).map(|it| (it.kind, it.mode, it.modified.clone(), it.content.clone()))
    };
    let paths: BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let different = paths.into_iter().filter(|path| visible(a, path) != visible(b, path));
    different.map(|path| format!("{path}: {:?}, not {:?}", visible(a, path), visible(b, path))).collect()
}

/// The files that have several names.
pub fn groups(tree: &Tree) -> BTreeSet<BTreeSet<&str>> {
    let mut groups: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for (path, item) in tree.iter().filter(|(_, item)| item.kind == 'f') {
        groups.entry(item.inode).or_default().insert(path);
    }
    groups.into_values().filter(|names| names.len() > 1).collect()
}
