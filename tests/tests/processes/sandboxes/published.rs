//! One test for each class of faults that was published about other programs that unpack and run
//! images, named by it. Where the class has nothing here, the table says why.
//!
//! | CVE | program: fault | here |
//! |---|---|---|
//! | 2019-5736 | runc: the function overwrites the program by /proc/self/exe | a test |
//! | 2019-14271 | Docker: a helper loads libraries of the image | nothing: names of users are read from files by our own code, and nothing is loaded after the root is the image's |
//! | 2020-15257 | containerd: its abstract socket is reached from the machine's network | a test |
//! | 2021-29136 | umoci: a link named `.` replaces the root while a layer is unpacked | a test |
//! | 2021-30465 | runc: a link at a mount's target leads out | a test |
//! | 2021-32760 | containerd: unpacking changes the mode of a file of the machine | a test |
//! | 2021-41190 | OCI: a document that is both a manifest and an index | a test |
//! | 2022-0492 | Linux: a function mounts a cgroup, and sets its release agent | a test |
//! | 2022-23648 | containerd: VOLUME copies files of the machine | a test |
//! | 2023-25153 | containerd: an import reads any file of an archive into memory | a test |
//! | 2024-21626 | runc: an open descriptor leads out | `descriptors` |
//! | 2024-23651 | BuildKit: two builds race for a source in a shared cache | nothing: nothing is built, and each source of a mount is the user's own words |
//! | 2024-23652 | BuildKit: removing a mount's target removes a file of the machine | a test |
//! | 2024-40635 | containerd: a USER above the largest number is root | a test |
//! | 2024-45310 | runc: creating a mount's target creates a file of the machine | a test |
//! | 2025-31133 | runc: the image's /dev/null decides what masks a path | a test |
//! | 2025-52881 | runc: the image decides where writes to /proc go | a test |
//! | 2025-62518 | tokio-tar: two readers disagree about an entry's size | a test |

mod running;
mod unpacking;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use porch_fn_tests::image_user::ImageUser;

use super::open_folder;

const SECRET: &str = "secret of the machine";

/// A folder of the machine that images name. Everybody may read and change it.
fn outside(user: &ImageUser) -> PathBuf {
    let folder = open_folder(user.sandbox(), "home/outside");
    user.sandbox().write("home/outside/secret", SECRET);
    folder
}

/// Names, modes and contents of the files in a folder.
fn state(folder: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut state: Vec<_> = files
        .map(|path| {
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            (path, metadata.mode(), content)
        })
        .collect();
    state.sort();
    state.push((folder.to_owned(), fs::metadata(folder).unwrap().mode(), Vec::new()));
    state
}
